"""The proxy's backend for the broker in its own process.

Each client has a connection of its own, without a socket (``transport.memory_link``). To the broker
it is a client like any other: a member of its groups, with its address, language and version.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from rocketpost.codec.bodies.client import Heartbeat, encode_heartbeat
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.command import Command, to_fields
from rocketpost.codec.faults import fault_for
from rocketpost.errors import RouteNotFound
from rocketpost.model.group import GroupConfig
from rocketpost.model.route import MASTER_ID, BrokerData, QueueData, TopicRoute
from rocketpost.model.topic import TopicConfig
from rocketpost.proxy.backend import CALL_SECONDS, BrokerRequest, Identity
from rocketpost.proxy.gathering import Gathering
from rocketpost.proxy.registration import VERSION
from rocketpost.server.context import BrokerContext
from rocketpost.transport.connection import Connection
from rocketpost.transport.listener import Listener

_ROUTES_MAX: Final = 10_000
_GATHERED: Final = frozenset(
    {RequestCode.SEND_MESSAGE_V2, RequestCode.CHANGE_MESSAGE_INVISIBLETIME}
)
"""Requests that wait for each other; acknowledgements have done so in ``proxy.ack_batches``."""


class LocalLink:
    """One client's connection to the broker. Belongs to the event loop.

    A broker closes the connection of a member that has been silent. If the client is back, it gets
    another one.

    Args:
        connect: Returns a new connection.
        broker_name: The name of the broker.
        gathering: Has requests wait for those of other calls.
    """

    def __init__(
        self, connect: Callable[[], Connection], broker_name: str, gathering: Gathering
    ) -> None:
        self._connect = connect
        self._connection = connect()
        self._broker_name = broker_name
        self._gathering = gathering
        self._is_closed = False

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
        """Send a request to the broker and return its response.

        Raises:
            RouteNotFound: Another broker is meant.
            Fault: The broker refuses.
            ClientError: The broker is stopping, or does not answer.
        """
        if broker != self._broker_name:
            raise RouteNotFound(
                f"the broker {broker[:200]!r} is not served here, only {self._broker_name}"
            )
        if code in _GATHERED:
            await self._gathering.wait()
        if not self._connection.is_open and not self._is_closed:
            self._connection = self._connect()
        response = await self._connection.request(
            code,
            fields=None if header is None else to_fields(header),
            body=body,
            timeout=timeout,
        )
        if response.code != ResponseCode.SUCCESS and response.code not in accept:
            raise fault_for(response.code, response.remark)
        return response

    async def register(self, heartbeat: Heartbeat) -> None:
        """Announce the client's groups."""
        if heartbeat.consumer_data_set or heartbeat.producer_data_set:
            await self.call(
                self._broker_name, RequestCode.HEART_BEAT, body=encode_heartbeat(heartbeat)
            )

    def close(self) -> None:
        """Close the connection; the client leaves its groups."""
        self._is_closed = True
        self._connection.close()


class LocalBackend:
    """The broker of this process. Belongs to the event loop.

    Args:
        listener: The broker's listener, which serves the clients' connections.
        context: Returns the broker's state.
        is_leader: Tells whether the broker is a master.
        gathering: Has requests wait for those of other calls.
    """

    def __init__(
        self,
        listener: Listener,
        context: Callable[[], BrokerContext],
        is_leader: Callable[[], bool],
        gathering: Gathering,
    ) -> None:
        self._listener = listener
        self._context = context
        self._is_leader = is_leader
        self._gathering = gathering
        self._routes: dict[str, tuple[TopicConfig, int, TopicRoute]] = {}

    async def route(self, topic: str) -> TopicRoute:
        """Return the queues of a topic at this broker.

        Raises:
            RouteNotFound: The topic is unknown, or this broker is no master.
        """
        context = self._context()
        config = context.tables.topics.find(topic)
        if config is None:
            raise RouteNotFound(f"the topic {topic} does not exist")
        if not self._is_leader():
            raise RouteNotFound(
                f"the broker {context.identity.name} is no master now, so it serves no {topic}"
            )
        permission = config.perm & context.broker_config.permission
        known = self._routes.get(topic)
        if known is not None and known[0] is config and known[1] == permission:
            return known[2]
        if len(self._routes) >= _ROUTES_MAX:
            self._routes.clear()
        route = _route(context, config, permission)
        self._routes[topic] = config, permission, route
        return route

    async def topic(self, topic: str) -> TopicConfig | None:
        """Return the configuration of a topic, if it exists."""
        return self._context().tables.topics.find(topic)

    async def group(self, group: str) -> GroupConfig | None:
        """Return the configuration of a group, if it exists."""
        return self._context().tables.groups.find(group)

    def link(self, identity: Identity, on_request: BrokerRequest) -> LocalLink:
        """Return the link of a client to the broker."""

        def mark(command: Command) -> None:
            command.sender_language = identity.language
            command.version = VERSION

        def connect() -> Connection:
            return self._listener.link(client=identity.address, on_request=on_request, sees=mark)

        return LocalLink(connect, self._context().identity.name, self._gathering)


def _route(context: BrokerContext, config: TopicConfig, permission: int) -> TopicRoute:
    identity = context.identity
    return TopicRoute(
        broker_datas=[
            BrokerData(
                broker_addrs={MASTER_ID: identity.address},
                broker_name=identity.name,
                cluster=identity.cluster,
            )
        ],
        queue_datas=[
            QueueData(
                broker_name=identity.name,
                perm=permission,
                read_queue_nums=config.read_queue_nums,
                topic_sys_flag=config.topic_sys_flag,
                write_queue_nums=config.write_queue_nums,
            )
        ],
    )
