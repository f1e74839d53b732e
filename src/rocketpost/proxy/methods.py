"""The table of methods, and the steps of a call: bytes in, rights checked, bytes out.

A call is refused before its message is read if its headers do not prove who calls: a stranger must
not fill the memory. The answer of a call that has waited is only written if its user still has the
rights.

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
from rocketpost.proxy.backend import Identity
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
_HEARTBEAT: Final = "Heartbeat"
_IDENTITIES_MAX: Final = 10_000


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
        self._identities: dict[str, tuple[dict[str, str], Identity]] = {}
        self.counts: dict[str, int] = {}
        """Number of calls by method."""
        handlers: dict[str, grpc.RpcMethodHandler] = {}
        refusals: dict[str, grpc.RpcMethodHandler] = {}
        for name, unary_method in unary.items():
            serve = self._unary(name, unary_method)
            handlers[name] = grpc.unary_unary_rpc_method_handler(serve)
            refusals[name] = self._refuser(name, _one_answer(name))
        for name, (method, failed) in streaming.items():
            serve_all = self._streaming(name, method, failed)
            handlers[name] = grpc.unary_stream_rpc_method_handler(serve_all)
            refusals[name] = self._refuser(name, failed)
        handlers[_TELEMETRY] = grpc.stream_stream_rpc_method_handler(self._serve_telemetry)
        self.handler: grpc.GenericRpcHandler = _Entrance(
            grpc.method_handlers_generic_handler(messages.SERVICE, handlers),
            grpc.method_handlers_generic_handler(messages.SERVICE, refusals),
            guard,
        )
        """The methods in the form that the gRPC library takes."""

    def _unary(self, name: str, method: Method) -> Callable[[bytes, Any], Awaitable[bytes]]:
        parse, failed = _parser(name), _one_answer(name)

        async def serve(data: bytes, context: Any) -> bytes:
            try:
                call = self._admit(name, context)
                request = parse(data)
                self._check(call, name, request)
                answer = await method(call, request)
            except Exception as error:
                refused = await _refused(error, name)
                (answer,) = failed(status(refused.code, refused.text))
            encoded: bytes = answer.SerializeToString()
            return encoded

        return serve

    def _streaming(
        self, name: str, method: StreamMethod, failed: Failed
    ) -> Callable[[bytes, Any], Awaitable[None]]:
        parse = _parser(name)

        async def serve(data: bytes, context: Any) -> None:
            is_checked = True

            async def write(answer: Any) -> None:
                nonlocal is_checked
                if not is_checked:
                    is_checked = True
                    self._check(call, name, request)  # rights may be gone since it began to wait
                await context.write(answer.SerializeToString())

            try:
                call = self._admit(name, context)
                request = parse(data)
                self._check(call, name, request)
                is_checked = False
                await method(call, request, write)
            except Exception as error:
                refused = await _refused(error, name)
                is_checked = True
                for answer in failed(status(refused.code, refused.text)):
                    await write(answer)

        return serve

    def _refuser(self, name: str, failed: Failed) -> grpc.RpcMethodHandler:
        """Return the refusal of calls whose headers prove no user; it reads no message."""

        async def refuse(requests: Any, context: Any) -> None:
            try:
                self._admit(name, context)
                raise Refusal(Code.UNAUTHORIZED, "the user was not known a moment ago; try again")
            except Exception as error:
                refused = await _refused(error, name)
                for answer in failed(status(refused.code, refused.text)):
                    await context.write(answer.SerializeToString())

        return grpc.stream_stream_rpc_method_handler(refuse)

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
            Refusal: The client has not proved who it is, or it does not name itself.
        """
        self.counts[name] = self.counts.get(name, 0) + 1
        headers = read_headers(context.invocation_metadata())
        peer = context.peer()
        known = self._identities.get(peer)
        if known is None or known[0] != headers:
            identity = identity_of(headers, self.peer_of(peer) or parse_peer(peer))
            if not self._guard.is_on:  # signed headers are never the same
                if len(self._identities) >= _IDENTITIES_MAX:
                    self._identities.clear()
                self._identities[peer] = headers, identity
        else:
            identity = known[1]
        user = self._guard.admit(identity, headers, name)
        return Call(self._clients.note(identity, user), context, user)

    def _check(self, call: Call, name: str, request: Any) -> None:
        if not self._guard.is_on:
            return
        needed = rights.NEEDED[name](request)
        if name == _HEARTBEAT and call.client.settings is not None:
            needed += rights.of_settings(call.client.settings)  # these groups are announced
        self._guard.check(call.client.identity, call.user, needed, name)


class _Entrance(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Chooses what serves a call by its headers, before its message is read.

    Args:
        methods: Serves calls.
        refusals: Refuses them.
        guard: Judges the headers.
    """

    def __init__(
        self,
        methods: grpc.GenericRpcHandler,
        refusals: grpc.GenericRpcHandler,
        guard: rights.Guard,
    ) -> None:
        self._methods = methods
        self._refusals = refusals
        self._guard = guard

    def service(self, handler_call_details: Any) -> grpc.RpcMethodHandler | None:
        """Return what serves a call; None if there is no such method."""
        if not self._guard.is_signed(handler_call_details.invocation_metadata or ()):
            refusal = self._refusals.service(handler_call_details)
            if refusal is not None:
                return refusal
        return self._methods.service(handler_call_details)


def _one_answer(name: str) -> Failed:
    """Return the answers of a method with one answer to a call that failed."""
    response = messages.message_class(f"{name}Response")
    return lambda code: [response(status=code)]


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
