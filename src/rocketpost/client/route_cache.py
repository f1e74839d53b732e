"""A cache of topic routes, and the queues and addresses in them."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Final

from rocketpost.client.patience import pause_seconds
from rocketpost.codec.bodies.route import decode_route
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.command import Command
from rocketpost.codec.faults import fault_for
from rocketpost.errors import RemoteProtocolError, RocketpostError, RouteNotFound
from rocketpost.model.names import AUTO_CREATE_TOPIC
from rocketpost.model.route import MASTER_ID, BrokerData, MessageQueue, QueueData, TopicRoute
from rocketpost.model.topic import PERM_READ, PERM_WRITE

logger = logging.getLogger(__name__)

Ask = Callable[[int, dict[str, str]], Awaitable[Command]]
"""Sends a request to a name server."""

REFRESH_SECONDS_MIN: Final = 1.0
QUEUES_MAX: Final = 1 << 20
"""Maximum of queues per topic; no real topic has as many, and more would fill the memory."""


class PublishRoute:
    """The writable queues of a topic, taken in turn. Belongs to the event loop."""

    __slots__ = ("_at", "queues")

    def __init__(self, queues: list[MessageQueue]) -> None:
        assert queues
        self.queues = queues
        self._at = random.randrange(len(queues))

    def next(self, avoid: str | None = None) -> MessageQueue:
        """Return the next queue, preferably of a broker other than ``avoid``."""
        queues = self.queues
        if avoid is None:
            at = self._at = (self._at + 1) % len(queues)
            return queues[at]
        for _ in queues:
            at = self._at = (self._at + 1) % len(queues)
            if queues[at].broker_name != avoid:
                break
        return queues[at]

    def next_of(
        self, accepts: Callable[[str], bool], *, avoid: str | None = None
    ) -> MessageQueue | None:
        """Return the next queue whose broker satisfies ``accepts``, or None."""
        queues = self.queues
        for _ in queues:
            at = self._at = (self._at + 1) % len(queues)
            broker = queues[at].broker_name
            if broker != avoid and accepts(broker):
                return queues[at]
        return None


def publish_queues(topic: str, route: TopicRoute) -> list[MessageQueue]:
    """Return the queues that a producer may write to, in route order."""
    if route.order_topic_conf:
        return _parse_order_conf(topic, route.order_topic_conf)
    _check_count(sum(data.write_queue_nums for data in route.queue_datas), topic)
    masters = {broker.broker_name for broker in route.broker_datas if broker.master}
    return [
        MessageQueue(data.broker_name, queue_id, topic)
        for data in sorted(route.queue_datas, key=lambda data: data.broker_name)
        if data.perm & PERM_WRITE and data.broker_name in masters
        for queue_id in range(data.write_queue_nums)
    ]


def subscribe_queues(topic: str, route: TopicRoute) -> list[MessageQueue]:
    """Return the queues that a consumer may read, in the order common to all members."""
    _check_count(sum(data.read_queue_nums for data in route.queue_datas), topic)
    queues = [
        MessageQueue(data.broker_name, queue_id, topic)
        for data in route.queue_datas
        if data.perm & PERM_READ
        for queue_id in range(data.read_queue_nums)
    ]
    return sorted(queues, key=lambda queue: queue.sort_key)


def lacks_master(route: TopicRoute) -> bool:
    """Tell whether a broker of the route takes messages as soon as it has a master."""
    headless = {broker.broker_name for broker in route.broker_datas if not broker.master}
    return any(
        data.perm & PERM_WRITE and data.broker_name in headless for data in route.queue_datas
    )


def _check_count(count: int, topic: str) -> None:
    if count > QUEUES_MAX:
        raise RemoteProtocolError(f"bad route: {topic} has {count} queues; at most {QUEUES_MAX}")


def _parse_order_conf(topic: str, conf: str) -> list[MessageQueue]:
    queues: list[MessageQueue] = []
    for part in conf.split(";"):
        broker, _, count = part.partition(":")
        if broker and count.strip().isdecimal() and len(count) <= 6:
            _check_count(len(queues) + int(count), topic)
            queues += [MessageQueue(broker, queue_id, topic) for queue_id in range(int(count))]
    return queues


def _order_reason(route: TopicRoute) -> str:
    """Return the reason for a route without queues, if the order table is it."""
    if not route.order_topic_conf:
        return ""
    return (
        f"; the order table of the name servers names no queue for it: {route.order_topic_conf!r}; "
        "`mqadmin updateOrderConf` changes it"
    )


class RouteCache:
    """The latest routes from the name servers. Belongs to the event loop.

    Args:
        ask: Sends a request to a name server.
        auto_create_queues: Queues per broker of a topic that its first send creates.
        auto_create_topic: The template of such a topic; its brokers receive the send.
    """

    def __init__(
        self,
        ask: Ask,
        *,
        auto_create_queues: int = 4,
        auto_create_topic: str = AUTO_CREATE_TOPIC,
    ) -> None:
        self._ask = ask
        self._auto_create_topic = auto_create_topic
        self._auto_create_queues = auto_create_queues
        self._routes: dict[str, TopicRoute] = {}
        self._publish: dict[str, PublishRoute] = {}
        self._templated: set[str] = set()
        self._addresses: dict[str, dict[int, str]] = {}
        self._fetching: dict[tuple[str, bool], asyncio.Task[TopicRoute]] = {}
        self._refreshed: dict[str, float] = {}

    @property
    def topics(self) -> list[str]:
        """Every topic in use."""
        return [*self._routes, *self._templated]

    def peek(self, topic: str) -> TopicRoute | None:
        """Return the cached route of ``topic``, or None."""
        return self._routes.get(topic)

    def peek_publish(self, topic: str) -> PublishRoute | None:
        """Return the cached writable queues of ``topic``, or None."""
        return self._publish.get(topic)

    async def publish(self, topic: str, *, seconds: float = 0.0) -> PublishRoute:
        """Return the writable queues of ``topic``; those of the template if it does not exist yet.

        Args:
            topic: The topic.
            seconds: Maximum time to wait for a master, while brokers have the topic and none of
                them has a master: a group elects its leader within two seconds.

        Raises:
            RouteNotFound: No broker accepts messages of this topic.
            NoNameServer: No name server answers.
        """
        loop = asyncio.get_running_loop()
        end_at, pauses = loop.time() + seconds, 0
        while (found := self._publish.get(topic)) is None:
            route = await self._fetch_once(topic, auto_create=True)
            if topic in self._publish:
                continue
            pause = pause_seconds(pauses)
            if not lacks_master(route):
                raise RouteNotFound(
                    f"no broker takes messages of the topic {topic}{_order_reason(route)}"
                )
            if loop.time() + pause > end_at:
                raise RouteNotFound(f"no broker of the topic {topic} has a master")
            await asyncio.sleep(pause)
            pauses += 1
        return found

    async def route(self, topic: str) -> TopicRoute:
        """Return the route of ``topic``; fetch it if necessary.

        Raises:
            RouteNotFound: The topic is unknown.
            NoNameServer: No name server answers.
        """
        return self._routes.get(topic) or await self.fetch(topic)

    async def subscribe(self, topic: str) -> list[MessageQueue]:
        """Return the readable queues of ``topic``, sorted.

        Raises:
            RouteNotFound: The topic is unknown.
            NoNameServer: No name server answers.
        """
        return subscribe_queues(topic, await self.route(topic))

    async def fetch(self, topic: str) -> TopicRoute:
        """Fetch the route of ``topic``, once for all concurrent callers.

        Raises:
            RouteNotFound: The topic is unknown.
            NoNameServer: No name server answers.
        """
        return await self._fetch_once(topic, auto_create=False)

    async def _fetch_once(self, topic: str, *, auto_create: bool) -> TopicRoute:
        key = topic, auto_create
        task = self._fetching.get(key)
        if task is None:
            task = self._fetching[key] = asyncio.ensure_future(self._fetch(topic, auto_create))
            task.add_done_callback(lambda done: self._end_fetch(key, done))
        # Shielded: one impatient caller must not cancel the request that others wait for.
        return await asyncio.shield(task)

    def _end_fetch(self, key: tuple[str, bool], done: asyncio.Task[TopicRoute]) -> None:
        self._fetching.pop(key, None)
        if not done.cancelled():
            done.exception()  # mark it as retrieved, even if all callers are gone

    async def close(self) -> None:
        """Cancel pending requests."""
        tasks = list(self._fetching.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def refresh_all(self) -> None:
        """Fetch all cached routes again; those that fail stay unchanged."""
        for topic in self.topics:
            await self.refresh(topic)

    async def refresh(self, topic: str) -> None:
        """Fetch one route again, unless that was done just now."""
        now = asyncio.get_running_loop().time()
        if now - self._refreshed.get(topic, -REFRESH_SECONDS_MIN) < REFRESH_SECONDS_MIN:
            return
        self._refreshed[topic] = now
        try:
            await self.fetch(topic)
        except RocketpostError as error:
            logger.info("route not refreshed: topic=%s reason=%s", topic, error)

    def broker_name_at(self, address: str) -> str:
        """Return the name of the broker at an address, or the address itself if unknown."""
        return next(
            (name for name, known in self._addresses.items() if address in known.values()), address
        )

    def master(self, broker_name: str) -> str:
        """Return the address of a broker's master.

        Raises:
            RouteNotFound: No master is known.
        """
        address = self._addresses.get(broker_name, {}).get(MASTER_ID)
        if address is None:
            raise RouteNotFound(f"no master of the broker {broker_name} is known")
        return address

    def peek_master(self, broker_name: str) -> str | None:
        """Return the address of a broker's master, or None."""
        known = self._addresses.get(broker_name)
        return known.get(MASTER_ID) if known is not None else None

    def is_master(self, broker_name: str, address: str) -> bool:
        """Tell whether a broker's master is or was at ``address``."""
        return self._addresses.get(broker_name, {}).get(MASTER_ID, address) == address

    def replicas(self, broker_name: str) -> dict[int, str]:
        """Return the known addresses of a broker's replicas by their ids; the master's id is 0."""
        return self._addresses.get(broker_name, {})

    def master_or_first(self, broker_name: str) -> str:
        """Return the address of a broker's master, or of the smallest id if it has no master.

        Raises:
            RouteNotFound: No address of that broker is known.
        """
        known = self._addresses.get(broker_name)
        if not known:
            raise RouteNotFound(f"the broker {broker_name} is unknown")
        return known[min(known)]

    def slave(self, broker_name: str) -> tuple[str, bool]:
        """Return the address of a random slave, or the master's; and whether it is a slave's.

        Raises:
            RouteNotFound: No address of that broker is known.
        """
        known = self._addresses.get(broker_name, {})
        slaves = [address for broker_id, address in known.items() if broker_id != MASTER_ID]
        return (random.choice(slaves), True) if slaves else (self.master(broker_name), False)

    def broker_addresses(self, *, masters_only: bool) -> list[str]:
        """Return the address of every known broker."""
        return [
            address
            for addresses in self._addresses.values()
            for broker_id, address in addresses.items()
            if broker_id == MASTER_ID or not masters_only
        ]

    def some_broker(self, topic: str) -> str | None:
        """Return the address of a random broker of ``topic``: its master, or else a replica."""
        route = self._routes.get(topic)
        if route is None or not route.broker_datas:
            return None
        broker = random.choice(route.broker_datas)
        addresses = list(broker.broker_addrs.values())
        return broker.master or (random.choice(addresses) if addresses else None)

    async def _fetch(self, topic: str, auto_create: bool) -> TopicRoute:
        response = await self._ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        if response.code == ResponseCode.TOPIC_NOT_EXIST and auto_create:
            return await self._fetch_template(topic)
        if response.code == ResponseCode.TOPIC_NOT_EXIST:
            raise RouteNotFound(f"no name server knows the topic {topic}")
        if response.code != ResponseCode.SUCCESS:
            raise fault_for(response.code, response.remark)
        return self._store(topic, decode_route(response.body))

    async def _fetch_template(self, topic: str) -> TopicRoute:
        fields = {"topic": self._auto_create_topic}
        response = await self._ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)
        if response.code != ResponseCode.SUCCESS:
            raise RouteNotFound(
                f"the topic {topic} does not exist, and no broker creates topics modelled on "
                f"{self._auto_create_topic}: create it, or set autoCreateTopicEnable"
            )
        template = decode_route(response.body)
        queues = [self._as_template(data) for data in template.queue_datas]
        route = TopicRoute(broker_datas=template.broker_datas, queue_datas=queues)
        self._learn_addresses(route)
        # Only for sending: a topic that does not exist has no queues to read.
        self._templated.add(topic)
        self._store_publish(topic, route)
        return route

    def _as_template(self, data: QueueData) -> QueueData:
        count = min(self._auto_create_queues, data.read_queue_nums)
        return QueueData(
            broker_name=data.broker_name,
            perm=data.perm,
            read_queue_nums=count,
            topic_sys_flag=data.topic_sys_flag,
            write_queue_nums=count,
        )

    def _store(self, topic: str, route: TopicRoute) -> TopicRoute:
        self._learn_addresses(route)
        self._templated.discard(topic)
        if _sort_key(route) == _sort_key(self._routes.get(topic)):
            return route
        self._routes[topic] = route
        self._store_publish(topic, route)
        return route

    def _store_publish(self, topic: str, route: TopicRoute) -> None:
        queues = publish_queues(topic, route)
        if queues:
            self._publish[topic] = PublishRoute(queues)
        else:
            self._publish.pop(topic, None)
        logger.info("route changed: topic=%s writable_queues=%s", topic, len(queues))

    def _learn_addresses(self, route: TopicRoute) -> None:
        for broker in route.broker_datas:
            self.learn(broker)

    def learn(self, broker: BrokerData) -> None:
        """Record the addresses of a broker's replicas."""
        self._addresses[broker.broker_name] = broker.broker_addrs

    def drop_offline(self) -> None:
        """Remove brokers that are in no route any more."""
        named = {queue.broker_name for route in self._publish.values() for queue in route.queues}
        for route in self._routes.values():
            named.update(broker.broker_name for broker in route.broker_datas)
        for name in self._addresses.keys() - named:
            del self._addresses[name]


def _sort_key(route: TopicRoute | None) -> object:
    if route is None:
        return None
    return (
        sorted(route.queue_datas, key=lambda data: data.broker_name),
        sorted(route.broker_datas, key=lambda data: data.broker_name),
        route.order_topic_conf,
    )
