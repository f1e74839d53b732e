"""The interface between the proxy's methods and brokers.

The methods work with values: routes, configurations of topics and groups, and requests of the
remoting protocol with their answers. The backend decides whether an answer comes from a broker in
this process or from another one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

import msgspec

from rocketpost.codec.bodies.client import Heartbeat
from rocketpost.codec.command import Command
from rocketpost.errors import RocketpostError
from rocketpost.model.group import GroupConfig
from rocketpost.model.route import TopicRoute
from rocketpost.model.topic import TopicConfig
from rocketpost.transport.connection import Connection

CALL_SECONDS: Final = 3.0
"""Time limit of a request to a broker that does not wait for messages."""


class Identity(NamedTuple):
    """A client of the proxy."""

    client_id: str
    address: tuple[str, int]
    language: str
    version: str


BrokerRequest = Callable[[Connection, Command], None]
"""Serves a request that a broker sends to a client."""


class Link(Protocol):
    """The link of one client of the proxy to brokers."""

    async def call(
        self,
        broker: str,
        code: int,
        header: msgspec.Struct | None = None,
        *,
        body: bytes = b"",
        timeout: float = CALL_SECONDS,
        accept: frozenset[int] = frozenset(),
    ) -> Command:
        """Send a request to the master of a broker name, and return its response.

        Args:
            broker: The broker name.
            code: The request code.
            header: The header fields.
            body: The body.
            timeout: Seconds to wait.
            accept: Response codes that are not failures, in addition to success.

        Raises:
            Fault: The broker refuses.
            ClientError: It is not known, cannot be reached or does not answer.
        """
        ...

    async def register(self, heartbeat: Heartbeat) -> None:
        """Announce the client's groups to brokers.

        Raises:
            RocketpostError: Brokers could not be reached, or refused.
        """
        ...

    def close(self) -> None:
        """Forget the client: it leaves its groups, and its waiting requests end."""
        ...


class Backend(Protocol):
    """Brokers, as the proxy sees them."""

    async def route(self, topic: str) -> TopicRoute:
        """Return the brokers and queues of a topic.

        Raises:
            RouteNotFound: The topic is unknown.
            RocketpostError: Nobody could be asked.
        """
        ...

    async def topic(self, topic: str) -> TopicConfig | None:
        """Return the configuration of a topic; None if there is no such topic.

        Raises:
            RocketpostError: Nobody could be asked.
        """
        ...

    async def group(self, group: str) -> GroupConfig | None:
        """Return the configuration of a consumer group; None if it has none yet.

        Raises:
            RocketpostError: Nobody could be asked.
        """
        ...

    def link(self, identity: Identity, on_request: BrokerRequest) -> Link:
        """Return the link of a client to brokers.

        Args:
            identity: The client.
            on_request: Serves requests of brokers to this client.
        """
        ...


class NoSuchBroker(RocketpostError):  # noqa: N818 - named after what is wrong
    """A call names a broker that this proxy cannot reach."""
