"""Telemetry, Heartbeat and NotifyClientTermination: clients that connect, stay and leave."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from rocketpost.errors import RocketpostError
from rocketpost.proxy.backend import Backend
from rocketpost.proxy.calls import Call
from rocketpost.proxy.client_settings import merge_settings
from rocketpost.proxy.clients import ClientTable, GrpcClient
from rocketpost.proxy.refusals import OK, Refusal, status
from rocketpost.proxy.settings import ProxyConfig
from rocketpost.proxy.validation import group_name, topic_name
from rocketpost.proxy.wire.enums import ClientType, Code
from rocketpost.proxy.wire.messages import (
    HeartbeatResponse,
    NotifyClientTerminationResponse,
    TelemetryCommand,
)

logger = logging.getLogger(__name__)

STREAMS_MAX: Final = 16
"""Most telemetry streams of one client."""
_PUBLISHING: Final = frozenset({ClientType.PRODUCER})
_SUBSCRIBING: Final = frozenset(
    {ClientType.PUSH_CONSUMER, ClientType.SIMPLE_CONSUMER, ClientType.PULL_CONSUMER}
)

Write = Callable[[Any], Awaitable[None]]


class Answers(Protocol):
    """The receiver of clients' answers to commands."""

    def take_answer(self, nonce: str, command: Any) -> None:
        """Take the answer to the command with a nonce."""
        ...


class TelemetryStream:
    """One open stream. Belongs to the event loop.

    Args:
        write: Writes a command to the client.
    """

    def __init__(self, write: Write) -> None:
        self._write = write
        self._turn = asyncio.Lock()
        self._is_open = True

    async def send(self, command: Any) -> bool:
        """Send a command after those before it; return False if the stream is closed."""
        async with self._turn:
            if not self._is_open:
                return False
            try:
                await self._write(command)
            except Exception as error:
                # The library raises its own errors when the client is gone.
                logger.info("telemetry stream broken: reason=%s", error)
                self._is_open = False
            return self._is_open

    def close(self) -> None:
        """Send nothing more."""
        self._is_open = False


class TelemetryMethods:
    """Serves the streams and the heartbeats of clients. Belongs to the event loop."""

    def __init__(
        self,
        backend: Backend,
        clients: ClientTable,
        config: ProxyConfig,
        answers: Answers,
    ) -> None:
        self._backend = backend
        self._clients = clients
        self._config = config
        self._answers = answers

    def open(self, call: Call, write: Write) -> TelemetryStream:
        """Open a stream of a client.

        Raises:
            Refusal: The client has too many already.
        """
        if len(call.client.streams) >= STREAMS_MAX:
            raise Refusal(Code.TOO_MANY_REQUESTS, f"a client may have {STREAMS_MAX} streams")
        stream = TelemetryStream(write)
        call.client.streams.append(stream)
        return stream

    def close(self, call: Call, stream: TelemetryStream) -> None:
        """Forget a stream that has ended; its client stays until it is silent for some time."""
        stream.close()
        call.client.streams.remove(stream)

    async def receive(self, call: Call, stream: TelemetryStream, command: Any) -> None:
        """Handle a command of a client.

        Raises:
            Refusal: The settings in it are wrong.
        """
        kind = command.WhichOneof("command")
        if kind == "settings":
            answer = await self._take_settings(call, command.settings)
            await stream.send(answer)
        elif kind == "thread_stack_trace":
            self._answers.take_answer(command.thread_stack_trace.nonce, command)
        elif kind == "verify_message_result":
            self._answers.take_answer(command.verify_message_result.nonce, command)
        else:
            logger.info("telemetry ignored: client=%s kind=%s", call.client, kind)

    async def heartbeat(self, call: Call, request: Any) -> Any:
        """Note that a client lives."""
        client = self._known(call.client)
        if client.is_consumer:
            group_name(client.settings.subscription.group)  # type: ignore[union-attr]
        await client.register()
        return HeartbeatResponse(status=OK)

    async def terminate(self, call: Call, request: Any) -> Any:
        """Forget a client that stops."""
        await self._clients.remove(call.client)
        self._known(call.client)
        return NotifyClientTerminationResponse(status=OK)

    async def merged_settings(self, client: GrpcClient) -> Any:
        """Return a client's settings with the server's values as they are now.

        Raises:
            Refusal: The client has sent no settings.
            RocketpostError: Its group's configuration is not known.
        """
        settings = self._known(client).settings
        group = await self._backend.group(client.group) if client.is_consumer else None
        return merge_settings(
            settings,
            config=self._config,
            group=group,
            language=client.identity.language,
        )

    async def _take_settings(self, call: Call, settings: Any) -> Any:
        client = call.client
        _check_settings(settings)
        before, client.settings = client.settings, settings
        try:
            if settings.HasField("publishing"):
                for topic in settings.publishing.topics:
                    client.note_topic(topic.name)
            merged = await self.merged_settings(client)
            await client.register()
        except RocketpostError:
            client.settings = before
            raise
        return TelemetryCommand(status=status(Code.OK), settings=merged)

    def _known(self, client: GrpcClient) -> GrpcClient:
        """Return a client that has sent settings.

        Raises:
            Refusal: The client has sent none.
        """
        if client.settings is None:
            raise Refusal(
                Code.UNRECOGNIZED_CLIENT_TYPE, "the client has not sent its settings by Telemetry"
            )
        return client


def _check_settings(settings: Any) -> None:
    """Check the settings of a client.

    Raises:
        Refusal: They name neither topics nor a group, or a name is wrong.
    """
    kind = settings.WhichOneof("pub_sub")
    wanted = _PUBLISHING if kind == "publishing" else _SUBSCRIBING
    if kind is None:
        raise Refusal(Code.BAD_REQUEST, "the settings have neither publishing nor subscription")
    if settings.client_type in (ClientType.LITE_PUSH_CONSUMER, ClientType.LITE_SIMPLE_CONSUMER):
        raise Refusal(Code.NOT_IMPLEMENTED, "lite consumers are not supported by this server")
    if settings.HasField("client_type") and settings.client_type not in wanted:
        raise Refusal(
            Code.UNRECOGNIZED_CLIENT_TYPE,
            f"the client type {settings.client_type} does not fit its {kind}",
        )
    if kind == "publishing":
        for topic in settings.publishing.topics:
            topic_name(topic)
        return
    group_name(settings.subscription.group)
    for entry in settings.subscription.subscriptions:
        topic_name(entry.topic)
