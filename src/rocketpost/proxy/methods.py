"""The table of methods, and the way of a call: bytes in, rights checked, bytes out.

Every failure becomes a status in the answer, with the gRPC status OK. Only Telemetry, whose answers
have no place for it, ends its stream with an error of gRPC, as RocketMQ's proxy does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import grpc

from rocketpost.proxy import rights
from rocketpost.proxy.calls import Call, identity_of, parse_peer, read_headers
from rocketpost.proxy.clients import ClientTable
from rocketpost.proxy.refusals import Refusal, refusal_of, status
from rocketpost.proxy.services.telemetry import TelemetryMethods, TelemetryStream
from rocketpost.proxy.wire import messages
from rocketpost.proxy.wire.enums import Code

logger = logging.getLogger(__name__)

Method = Callable[[Call, Any], Awaitable[Any]]
"""Serves one call and returns its answer."""
Write = Callable[[Any], Awaitable[None]]
StreamMethod = Callable[[Call, Any, Write], Awaitable[None]]
"""Serves one call and writes its answers."""
Failed = Callable[[Any], list[Any]]
"""Returns the answers of a call that failed with a status."""

_TELEMETRY: Final = "Telemetry"


class MethodTable:
    """Serves the methods of the protocol. Belongs to the event loop.

    Args:
        clients: The clients.
        guard: Access control.
        unary: The methods with one answer, by name.
        streaming: The methods with several answers, by name, with their answers to a failure.
        telemetry: Serves the streams of clients.
    """

    def __init__(
        self,
        *,
        clients: ClientTable,
        guard: rights.Guard,
        unary: Mapping[str, Method],
        streaming: Mapping[str, tuple[StreamMethod, Failed]],
        telemetry: TelemetryMethods,
    ) -> None:
        self._clients = clients
        self._guard = guard
        self._telemetry = telemetry
        self._loop = asyncio.get_running_loop()
        self.peer_of: Callable[[str], tuple[str, int] | None] = lambda name: None
        """Returns the address of a peer that the gRPC library knows by another name."""
        self.counts: dict[str, int] = {}
        """Number of calls by method."""
        handlers: dict[str, grpc.RpcMethodHandler] = {
            name: grpc.unary_unary_rpc_method_handler(self._unary(name, method))
            for name, method in unary.items()
        }
        for name, (method, failed) in streaming.items():
            handlers[name] = grpc.unary_stream_rpc_method_handler(
                self._streaming(name, method, failed)
            )
        handlers[_TELEMETRY] = grpc.stream_stream_rpc_method_handler(self._serve_telemetry)
        self.handler = grpc.method_handlers_generic_handler(messages.SERVICE, handlers)
        """The methods in the form that the gRPC library takes."""

    def _unary(self, name: str, method: Method) -> Callable[[bytes, Any], Awaitable[bytes]]:
        parse, response = _parser(name), messages.message_class(f"{name}Response")

        async def serve(data: bytes, context: Any) -> bytes:
            try:
                request = parse(data)
                call = self._admit(name, context)
                self._check(call, name, request)
                answer = await method(call, request)
            except Exception as error:
                refused = await _refused(error, name)
                answer = response(status=status(refused.code, refused.text))
            encoded: bytes = answer.SerializeToString()
            return encoded

        return serve

    def _streaming(
        self, name: str, method: StreamMethod, failed: Failed
    ) -> Callable[[bytes, Any], Awaitable[None]]:
        parse = _parser(name)

        async def serve(data: bytes, context: Any) -> None:
            async def write(answer: Any) -> None:
                await context.write(answer.SerializeToString())

            try:
                request = parse(data)
                call = self._admit(name, context)
                self._check(call, name, request)
                await method(call, request, write)
            except Exception as error:
                refused = await _refused(error, name)
                for answer in failed(status(refused.code, refused.text)):
                    await write(answer)

        return serve

    async def _serve_telemetry(self, requests: Any, context: Any) -> None:
        async def write(command: Any) -> None:
            await context.write(command.SerializeToString())

        try:
            call = self._admit(_TELEMETRY, context)
            stream = self._telemetry.open(call, write)
        except Refusal as error:
            refused = await _refused(error, _TELEMETRY)
            await write(messages.TelemetryCommand(status=status(refused.code, refused.text)))
            return
        # A client may wait for the headers of the answer before it sends its settings.
        await context.send_initial_metadata(())
        try:
            await self._read_commands(call, stream, context)
        finally:
            self._telemetry.close(call, stream)

    async def _read_commands(self, call: Call, stream: TelemetryStream, context: Any) -> None:
        while (data := await context.read()) is not grpc.aio.EOF:
            call.client.seen_at = self._loop.time()
            try:
                command = messages.TelemetryCommand.FromString(data)
                if command.WhichOneof("command") == "settings":
                    self._guard.check(
                        call.client.identity,
                        call.user,
                        rights.of_settings(command.settings),
                        _TELEMETRY,
                    )
                await self._telemetry.receive(call, stream, command)
            except messages.DecodeError as error:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"not a command: {error}")
            except Exception as error:
                refused = refusal_of(error, _TELEMETRY)
                await stream.send(
                    messages.TelemetryCommand(status=status(refused.code, refused.text))
                )
                if refused.code == Code.UNAUTHORIZED:
                    return
                is_bad = Code.BAD_REQUEST <= refused.code < Code.INTERNAL_ERROR
                code = grpc.StatusCode.INVALID_ARGUMENT if is_bad else grpc.StatusCode.INTERNAL
                await context.abort(code, f"{refused.code.name}: {refused.text}"[:1024])

    def _admit(self, name: str, context: Any) -> Call:
        """Return the call of a client that has proved who it is.

        Raises:
            Refusal: It has not, or it does not name itself.
        """
        self.counts[name] = self.counts.get(name, 0) + 1
        headers = read_headers(context.invocation_metadata())
        peer = context.peer()
        identity = identity_of(headers, self.peer_of(peer) or parse_peer(peer))
        user = self._guard.admit(identity, headers, name)
        left = context.time_remaining()
        deadline = None if left is None or left > 86_400 else self._loop.time() + left
        return Call(self._clients.note(identity), deadline, user)

    def _check(self, call: Call, name: str, request: Any) -> None:
        needed = rights.NEEDED[name](request)
        self._guard.check(call.client.identity, call.user, needed, name)


async def _refused(error: Exception, name: str) -> Refusal:
    refused = refusal_of(error, name)
    if refused.delay:
        await asyncio.sleep(refused.delay)
    return refused


def _parser(name: str) -> Callable[[bytes], Any]:
    parse = messages.message_class(f"{name}Request").FromString

    def read(data: bytes) -> Any:
        try:
            return parse(data)
        except messages.DecodeError as error:
            raise Refusal(Code.BAD_REQUEST, f"the {name} request cannot be read: {error}") from None

    return read
