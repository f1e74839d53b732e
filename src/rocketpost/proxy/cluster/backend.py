"""The proxy's backend for the brokers of a cluster, over the SDK's connections.

Routes come from name servers, configurations of topics and groups from brokers; both are kept for a
while. Requests of all clients share one connection to each broker. Brokers know the proxy as a
producer of the topics with transactions, so that they can ask about them. A client's own
connections announce its groups to them (``proxy.cluster.announcements``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import msgspec

from rocketpost.client.session import Session
from rocketpost.codec.bodies.client import Heartbeat
from rocketpost.codec.bodies.group import decode_group_config
from rocketpost.codec.bodies.leniency import decode_body
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.command import Command
from rocketpost.codec.headers.group import GroupRequest
from rocketpost.codec.headers.topic import TopicRequest
from rocketpost.errors import (
    ConnectionLost,
    Fault,
    RequestCodeNotSupported,
    RouteNotFound,
)
from rocketpost.model.group import GroupConfig
from rocketpost.model.route import TopicRoute
from rocketpost.model.topic import TopicConfig
from rocketpost.proxy.backend import CALL_SECONDS, BrokerRequest, Identity
from rocketpost.proxy.cluster.announcements import Announcements
from rocketpost.proxy.cluster.masters import Masters
from rocketpost.proxy.message_types import accepted_types
from rocketpost.proxy.settings import ProxyConfig
from rocketpost.proxy.wire.enums import MessageType

logger = logging.getLogger(__name__)

T = TypeVar("T")


class _Kept(Generic[T]):
    """Answers that are kept for a while. Belongs to the event loop.

    Args:
        ask: Asks a broker.
        seconds: Time for which an answer is used before it is asked for again.
        count_max: Most answers.
    """

    def __init__(
        self, ask: Callable[[str], Awaitable[T | None]], *, seconds: float, count_max: int
    ) -> None:
        self._ask = ask
        self._seconds = seconds
        self._count_max = count_max
        self._entries: dict[str, tuple[float, T | None]] = {}

    async def get(self, name: str) -> T | None:
        """Return an answer; ask if it is not known or old."""
        now = asyncio.get_running_loop().time()
        entry = self._entries.get(name)
        if entry is not None and entry[0] > now:
            return entry[1]
        found = await self._ask(name)
        if len(self._entries) >= self._count_max:
            self._entries.clear()
        if found is not None:  # a missing topic or group may be created at any time
            self._entries[name] = now + self._seconds, found
        return found


class ClusterBackend:
    """The brokers of a cluster. Belongs to the event loop.

    Args:
        session: The connections to name servers and brokers.
        masters: Finds the masters of brokers.
        config: The settings of the proxy.
    """

    def __init__(self, session: Session, masters: Masters, config: ProxyConfig) -> None:
        self._session = session
        self._masters = masters
        self._announces_clients = config.announces_clients
        self._topics = _Kept(
            self._ask_topic, seconds=config.topic_seconds, count_max=config.topics_max
        )
        self._groups = _Kept(
            self._ask_group, seconds=config.group_seconds, count_max=config.groups_max
        )
        self._announced: set[str] = set()

    def serve(self, on_request: BrokerRequest) -> None:
        """Let ``on_request`` answer the questions of brokers about transactions."""

        def ask(connection: object, command: Command) -> None:
            on_request(connection, command)  # type: ignore[arg-type]

        self._session.on(RequestCode.CHECK_TRANSACTION_STATE, ask)

    async def route(self, topic: str) -> TopicRoute:
        """Return the brokers and queues of a topic.

        Raises:
            RouteNotFound: No name server knows the topic.
            ClientError: No name server answers.
        """
        return await self._masters.route(topic)

    async def topic(self, topic: str) -> TopicConfig | None:
        """Return the configuration of a topic at one of its brokers."""
        return await self._topics.get(topic)

    async def group(self, group: str) -> GroupConfig | None:
        """Return the configuration of a group at a broker that has it."""
        return await self._groups.get(group)

    def link(self, identity: Identity, on_request: BrokerRequest) -> SharedLink:
        """Return the link of a client to brokers; all clients share its connections."""
        announced = None
        if self._announces_clients:
            announced = Announcements(self._session, identity, on_request)
        return SharedLink(self._session, self._masters, self._announce, announced)

    async def _ask_topic(self, topic: str) -> TopicConfig | None:
        try:
            route = await self.route(topic)
        except RouteNotFound:
            return None
        header = TopicRequest(topic=topic)
        for broker in route.broker_datas:
            if broker.reader is None:
                continue
            try:
                answer = await self._session.call(
                    broker.reader, RequestCode.GET_TOPIC_CONFIG, header
                )
            except RequestCodeNotSupported:
                return TopicConfig(topic_name=topic)  # a broker without types of topics
            except (Fault, ConnectionLost) as error:
                logger.info("topic not known: broker=%s reason=%s", broker.broker_name, error)
                continue
            return decode_body(answer.body, TopicConfig)
        return None

    async def _ask_group(self, group: str) -> GroupConfig | None:
        header = GroupRequest(group=group)
        for address in self._session.routes.broker_addresses(masters_only=True):
            try:
                answer = await self._session.call(
                    address, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, header
                )
            except (Fault, ConnectionLost):
                continue  # it has no such group, or another broker knows more
            return decode_group_config(answer.body)
        return None

    async def _announce(self, topics: list[str]) -> None:
        """Announce to brokers that this proxy can be asked about transactions of topics."""
        new = [topic for topic in topics if topic not in self._announced]
        for topic in new:
            if MessageType.TRANSACTION not in accepted_types(await self.topic(topic)):
                continue
            self._announced.add(topic)
            self._session.add_producer(topic)
        if self._announced.intersection(new):
            await self._session.heartbeat_all()


class SharedLink:
    """The link of one client to brokers. Belongs to the event loop.

    Args:
        session: The connections for requests.
        masters: Finds the masters of brokers.
        announce: Tells brokers of topics with transactions.
        announced: The connections by which brokers know the client; None if they do not.
    """

    def __init__(
        self,
        session: Session,
        masters: Masters,
        announce: Callable[[list[str]], Awaitable[None]],
        announced: Announcements | None,
    ) -> None:
        self._session = session
        self._masters = masters
        self._announce = announce
        self._announced = announced

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
        """Send a request to the master of a broker name and return its response.

        Raises:
            RouteNotFound: No such broker is known.
            Fault: The broker refuses.
            ClientError: It cannot be reached or does not answer.
        """

        async def attempt(address: str) -> Command:
            return await self._session.call(
                address, code, header, body=body, timeout=timeout, accept=accept
            )

        return await self._masters.call(broker, attempt)

    async def register(self, heartbeat: Heartbeat) -> None:
        """Announce the client, and the topics to which it sends."""
        await self._announce([each.group_name for each in heartbeat.producer_data_set])
        if self._announced is not None:
            self._announced.renew(heartbeat)

    def close(self) -> None:
        """Make brokers forget the client; the connections for requests serve others too."""
        if self._announced is not None:
            self._announced.close()
