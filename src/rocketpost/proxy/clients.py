"""The clients of the proxy: their settings, telemetry streams and links to brokers.

A client is known by its id and its user from its first call on. It is forgotten when it announces
its end, or when it has been silent for some time and has no stream. A broken stream alone is no
reason, since clients open it again. Silence alone is none either: a client that was paused or cut
off uses its old stream, and does not know that it should send its settings again (ADR 0260). Two
users with the same id are two clients: neither gets requests that a broker sends to the other.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from rocketpost.errors import RocketpostError
from rocketpost.proxy.backend import Backend, BrokerRequest, Identity
from rocketpost.proxy.refusals import Refusal
from rocketpost.proxy.registration import heartbeat_of
from rocketpost.proxy.settings import ProxyConfig
from rocketpost.proxy.wire.enums import ClientType, Code

logger = logging.getLogger(__name__)

_SCAN_SECONDS: Final = 5.0
_LOST_SECONDS: Final = 25.0
"""Silence after which a client without a stream seems dead: it has missed two heartbeats."""
PRODUCER_TOPICS_MAX: Final = 1000
"""Most topics of one producer that are remembered for questions about transactions."""


class Stream(Protocol):
    """A telemetry stream, as seen by those who write to it."""

    async def send(self, command: Any) -> bool:
        """Send a command; return False if the stream is closed."""
        ...


class GrpcClient:
    """One client. Belongs to the event loop.

    Attributes:
        identity: Its id, address, language and version.
        user: The user who has proved to be its caller; empty without access control.
        settings: The settings that it sent last; None until then.
        topics: The topics to which it sends.
        streams: Its open telemetry streams, the newest last.
    """

    def __init__(
        self,
        identity: Identity,
        backend: Backend,
        on_request: Callable[[GrpcClient], BrokerRequest],
        *,
        user: str = "",
    ) -> None:
        self.identity = identity
        self.user = user
        self.link = backend.link(identity, on_request(self))
        self.settings: Any | None = None
        self.topics: dict[str, None] = {}
        self.streams: list[Stream] = []
        self.started_ms = time.time_ns() // 1_000_000
        self.seen_at = asyncio.get_running_loop().time()
        self.is_lost = False
        """Whether it seems dead: its messages have been returned."""
        self.is_closed = False

    def __repr__(self) -> str:
        return f"<client {self.identity.client_id}>"

    @property
    def is_gone(self) -> bool:
        """Whether its messages have been returned, and it was not heard since."""
        return self.is_closed or self.is_lost

    @property
    def kind(self) -> ClientType:
        """The kind of client, as far as it is known."""
        kind = self.settings.client_type if self.settings is not None else 0
        known = kind in ClientType._value2member_map_
        return ClientType(kind) if known else ClientType.CLIENT_TYPE_UNSPECIFIED

    @property
    def is_consumer(self) -> bool:
        """Whether it consumes."""
        return self.settings is not None and self.settings.HasField("subscription")

    @property
    def group(self) -> str:
        """The consumer group; empty for producers."""
        name: str = self.settings.subscription.group.name if self.settings is not None else ""
        return name

    async def send(self, command: Any) -> bool:
        """Send a command on the newest stream that takes it; return whether one did."""
        for stream in reversed(list(self.streams)):
            if await stream.send(command):
                return True
        return False

    def note_topic(self, topic: str) -> bool:
        """Remember a topic to which it sends; return whether the topic is new."""
        if topic in self.topics or len(self.topics) >= PRODUCER_TOPICS_MAX:
            return False
        self.topics[topic] = None
        return True

    async def register(self) -> None:
        """Announce its groups to brokers.

        Raises:
            RocketpostError: Brokers could not be reached, or refused.
        """
        await self.link.register(heartbeat_of(self.identity, self.settings, self.topics))


class ClientTable:
    """All clients. Belongs to the event loop.

    Args:
        backend: The brokers.
        config: The limits.

    Attributes:
        on_request: Returns the function that serves requests of brokers to a client.
        on_leave: Called with each client that is forgotten or seems dead.
    """

    def __init__(self, backend: Backend, config: ProxyConfig) -> None:
        self._backend = backend
        self._config = config
        self._clients: dict[tuple[str, str], GrpcClient] = {}
        self._loop = asyncio.get_running_loop()
        self.on_request: Callable[[GrpcClient], BrokerRequest] = lambda client: _ignore
        self.on_leave: Callable[[GrpcClient], Awaitable[None]] = _nobody

    def __len__(self) -> int:
        return len(self._clients)

    def all(self) -> list[GrpcClient]:
        """Return every client."""
        return list(self._clients.values())

    def find(self, client_id: str, user: str = "") -> GrpcClient | None:
        """Return a client, if it is known."""
        return self._clients.get((user, client_id))

    def note(self, identity: Identity, user: str = "") -> GrpcClient:
        """Return the client of a call, which need not have been known before.

        Args:
            identity: The identity that it states.
            user: The user who has proved to make the call; empty without access control.

        Raises:
            Refusal: There are too many clients already.
        """
        client = self.find(identity.client_id, user)
        if client is None:
            if len(self._clients) >= self._config.client_count_max:
                raise Refusal(
                    Code.TOO_MANY_REQUESTS,
                    f"{self._config.client_count_max} clients are connected already",
                )
            client = GrpcClient(identity, self._backend, self.on_request, user=user)
            self._clients[user, identity.client_id] = client
        client.seen_at = self._loop.time()
        client.is_lost = False
        return client

    def producer_of(
        self, topic: str, is_allowed: Callable[[GrpcClient], bool]
    ) -> GrpcClient | None:
        """Return the client heard last of those that send to a topic, have a stream, and still may.

        One that is silent may be paused or cut off, so that it would not answer.
        """
        found = [
            client
            for client in self._clients.values()
            if topic in client.topics and client.streams and is_allowed(client)
        ]
        return max(found, key=lambda client: client.seen_at, default=None)

    async def remove(self, client: GrpcClient) -> None:
        """Forget a client."""
        if self.find(client.identity.client_id, client.user) is client:
            self._forget(client)
            await self.on_leave(client)

    async def run(self) -> None:
        """Forget silent clients until cancelled."""
        while True:
            await asyncio.sleep(_SCAN_SECONDS)
            for client in self.all():
                await self._look_at(client)

    async def _look_at(self, client: GrpcClient) -> None:
        silence = self._loop.time() - client.seen_at
        expiry = self._config.client_expiry_ms / 1000
        if silence > expiry and not client.streams:
            logger.info("silent client removed: client=%s", client.identity.client_id)
            await self.remove(client)
        elif silence > (expiry if client.streams else _LOST_SECONDS) and not client.is_lost:
            # Its settings stay: it may return without knowing that it seemed dead.
            client.is_lost = True
            await self.on_leave(client)

    async def renew(self, client: GrpcClient) -> None:
        """Announce a client's groups to brokers again; log a failure."""
        try:
            await client.register()
        except RocketpostError as error:
            logger.warning(
                "client not registered: client=%s reason=%s", client.identity.client_id, error
            )

    def close(self) -> None:
        """Forget every client."""
        for client in self.all():
            self._forget(client)

    def _forget(self, client: GrpcClient) -> None:
        del self._clients[client.user, client.identity.client_id]
        client.is_closed = True
        client.link.close()


def _ignore(connection: Any, command: Any) -> None:
    """Ignore a request of a broker."""


async def _nobody(client: GrpcClient) -> None:
    """Ignore a client that left."""
