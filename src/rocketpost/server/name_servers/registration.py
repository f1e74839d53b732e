"""A broker's registration with its name servers, with each one independently.

One task per name server registers at start, every ``registerNameServerPeriod``, at once after a
change, and again when the connection is lost. A dead or refusing name server does not delay the
others. Each registration sends all topics. So a name server that missed one is up to date again
after the next, and a burst of changes shares one registration.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from rocketpost.client.name_servers import not_a_name_server
from rocketpost.codec.bodies import registration as body
from rocketpost.codec.bodies.cluster import decode_member_group
from rocketpost.codec.bodies.kv import decode_kv_table
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.command import Command, to_fields
from rocketpost.codec.headers.namesrv import GetMemberGroup, RegisterBroker, UnregisterBroker
from rocketpost.errors import ClientError, ConfigError, ConnectionLost, RocketpostError
from rocketpost.model.topic import PERM_READ, PERM_WRITE, DataVersion, TopicConfig
from rocketpost.server.peers import Peers
from rocketpost.transport.connection import Connection
from rocketpost.transport.connector import split_address

logger = logging.getLogger(__name__)

_FIRST_ROUND_SECONDS: Final = 5.0
_GOODBYE_SECONDS: Final = 3.0
_BURST_SECONDS: Final = 0.1
_TELL_SECONDS: Final = 1.0
_RETRY_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """A broker's description of itself.

    Args:
        cluster: The cluster's name.
        name: The broker's name.
        broker_id: 0 for a master, more for a slave.
        address: The address for clients.
        ha_address: The address for slaves; empty if there is none.
        data_version: The version of ``topics``.
        topics: Every topic, by name.
        permission: ``brokerPermission``: an upper limit of the topics' permissions.
        slaves_act: Whether the smallest slave of the broker's group acts for a lost master.
        inactive_ms: The silence after which name servers forget the broker; None for their own
            default.
    """

    cluster: str
    name: str
    broker_id: int = 0
    address: str
    ha_address: str = ""
    data_version: DataVersion
    topics: Mapping[str, TopicConfig]
    permission: int = PERM_READ | PERM_WRITE
    slaves_act: bool = False
    inactive_ms: int | None = None


def parse_name_servers(text: str) -> list[str]:
    """Split ``host:port;host:port``.

    Raises:
        ConfigError: An address is malformed.
    """
    addresses = list(dict.fromkeys(part.strip() for part in text.split(";") if part.strip()))
    for address in addresses:
        try:
            split_address(address)
        except ConnectionLost as error:
            raise ConfigError(f"namesrvAddr: {error}") from None
    return addresses


class Registration:
    """Keeps a broker known to its name servers. Belongs to the event loop.

    Args:
        name_servers: Their addresses; may be empty.
        announce: Returns the current description; called for every registration.
        period_ms: The time between registrations.
        timeout_ms: The time that an answer may take.
        on_order_topics: Called with a name server's address and the ordered topics it knows.
        on_master: Called with a slave's master: its addresses for requests and for its log.
        retry_seconds: The pause after the first failure; doubles up to the period.
        peers: Makes the connections.
    """

    def __init__(
        self,
        *,
        name_servers: Sequence[str],
        announce: Callable[[], Announcement],
        period_ms: int = 30_000,
        timeout_ms: int = 24_000,
        on_order_topics: Callable[[str, Mapping[str, str]], None] | None = None,
        on_master: Callable[[str, str], None] | None = None,
        retry_seconds: float = _RETRY_SECONDS,
        peers: Peers | None = None,
    ) -> None:
        self._announce = announce
        self._period = period_ms / 1000
        self._timeout = timeout_ms / 1000
        self._on_order_topics = on_order_topics
        self._on_master = on_master
        self._retry_seconds = retry_seconds
        self._links = {address: _Link(address) for address in name_servers}
        self._connector = (peers or Peers()).connector(on_lost=self._connection_lost)
        self._task: asyncio.Task[None] | None = None
        self._group: asyncio.TaskGroup | None = None
        self._edition = 0
        self._news = asyncio.Condition()

    @property
    def registered(self) -> frozenset[str]:
        """The name servers that know the broker, as far as we know."""
        return frozenset(each.address for each in self._links.values() if each.registered)

    @property
    def problems(self) -> dict[str, str]:
        """The reason why clients do not find the broker, by name server."""
        return {each.address: each.problem for each in self._links.values() if each.problem}

    async def start(self) -> None:
        """Begin to register; return when each name server was tried, or after some seconds."""
        assert self._task is None
        self._task = asyncio.create_task(self._run(), name="registration")
        first = [asyncio.ensure_future(link.tried.wait()) for link in self._links.values()]
        if first:
            try:
                await asyncio.wait(first, timeout=_FIRST_ROUND_SECONDS)
            finally:
                for each in first:
                    each.cancel()

    async def use(self, name_servers: Sequence[str]) -> None:
        """Register with these name servers from now on; unregister from the others."""
        gone = [link for address, link in self._links.items() if address not in name_servers]
        new = [_Link(address) for address in name_servers if address not in self._links]
        self._links = {
            address: link for address, link in self._links.items() if address in name_servers
        } | {link.address: link for link in new}
        for link in gone:
            if link.task is not None:
                link.task.cancel()
        for link in new:
            self._begin(link)
        await asyncio.gather(*(self._unregister(link) for link in gone))
        for link in gone:
            self._connector.drop(link.address)

    def note_change(self) -> None:
        """Register again soon, because of a change."""
        self._edition += 1
        for link in self._links.values():
            link.wake.set()

    async def wait_registered(self) -> None:
        """Return once the name servers that can be reached know the last change.

        A client that creates a topic asks for its route next, and should find it. A slow or
        unreachable name server does not delay the caller for long.
        """
        edition = self._edition
        try:
            async with asyncio.timeout(_TELL_SECONDS), self._news:
                await self._news.wait_for(
                    lambda: all(
                        link.edition >= edition
                        for link in self._links.values()
                        if link.registered or not link.tried.is_set()
                    )
                )
        except TimeoutError:
            logger.info("name servers are slow to accept a change: edition=%s", edition)

    async def pause(self) -> None:
        """Stop registering, without unregistering: connections stay until :meth:`close`.

        A name server would forget the broker with its connection. A broker that changes its id must
        be known until it has the new one.
        """
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = self._group = None

    async def close(self) -> None:
        """Close all connections."""
        await self._connector.close()

    async def stop(self) -> None:
        """Unregister from every name server; return when all connections are closed."""
        if self._task is not None:
            await self.pause()
            await asyncio.gather(*(self._unregister(link) for link in self._links.values()))
        await self._connector.close()

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as self._group:
            for link in self._links.values():
                self._begin(link)
            await asyncio.Event().wait()  # name servers may be added; a stop cancels this

    def _begin(self, link: _Link) -> None:
        if self._group is not None:
            name = f"registration with {link.address}"
            link.task = self._group.create_task(self._keep(link), name=name)

    async def _keep(self, link: _Link) -> None:
        while True:
            link.wake.clear()
            edition = self._edition
            news: Announcement | None = None
            try:
                news = await self._register(link)
                link.note_success()
                link.edition = edition
            except RocketpostError as error:
                link.note_failure(str(error))
            except Exception:
                logger.exception("registration failed: name_server=%s", link.address)
                link.note_failure("an error of our own")
            link.tried.set()
            async with self._news:
                self._news.notify_all()
            if news is not None:
                await self._look_for_rival(link, news)
            await link.sleep(self._delay(link))

    def _delay(self, link: _Link) -> float:
        if link.failures == 0:
            return self._period
        return min(self._period, self._retry_seconds * (1 << min(link.failures - 1, 10)))

    async def _register(self, link: _Link) -> Announcement:
        connection = await self._connector.connect(link.address)
        news = self._announce()
        data = _encode(news)
        header = RegisterBroker(
            broker_name=news.name,
            broker_addr=news.address,
            cluster_name=news.cluster,
            ha_server_addr=news.ha_address,
            broker_id=news.broker_id,
            heartbeat_timeout_millis=news.inactive_ms,
            enable_acting_master=news.slaves_act,
            body_crc32=body.body_crc(data),
        )
        response = await connection.request(
            RequestCode.REGISTER_BROKER,
            fields=to_fields(header),
            body=data,
            timeout=self._timeout,
        )
        if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise ClientError(not_a_name_server(link.address))
        response.raise_for_code()
        if response.body and self._on_order_topics is not None:
            self._on_order_topics(link.address, decode_kv_table(response.body))
        self._take_master(response)
        return news

    def _take_master(self, response: Command) -> None:
        """Pass on the addresses of a slave's master; they are empty if it is not registered."""
        if self._on_master is None:
            return
        remoting = response.fields.get("masterAddr", "")
        if remoting:
            self._on_master(remoting, response.fields.get("haServerAddr", ""))

    async def _look_for_rival(self, link: _Link, news: Announcement) -> None:
        """Check whether the name server routes clients of our name to another broker.

        Some name servers accept every registration, but keep the route to another broker.
        """
        connection = self._connector.peek(link.address)
        if connection is None:
            return
        header = GetMemberGroup(cluster_name=news.cluster, broker_name=news.name)
        try:
            response = await connection.request(
                RequestCode.GET_BROKER_MEMBER_GROUP,
                fields=to_fields(header),
                timeout=self._timeout,
            )
            if response.code != ResponseCode.SUCCESS:
                return  # it is too old for this request
            members = decode_member_group(response.body).broker_addrs
        except RocketpostError as error:
            logger.info("members not known: name_server=%s reason=%s", link.address, error)
            return
        link.saw(news, members.get(news.broker_id))

    async def _unregister(self, link: _Link) -> None:
        connection = self._connector.peek(link.address)
        if connection is None:
            return  # the name server notices the lost connection
        news = self._announce()
        header = UnregisterBroker(
            broker_name=news.name,
            broker_addr=news.address,
            cluster_name=news.cluster,
            broker_id=news.broker_id,
        )
        try:
            response = await connection.request(
                RequestCode.UNREGISTER_BROKER, fields=to_fields(header), timeout=_GOODBYE_SECONDS
            )
            response.raise_for_code()
        except RocketpostError as error:
            logger.info("not unregistered: name_server=%s reason=%s", link.address, error)
        link.registered = False

    def _connection_lost(self, address: str, _: Connection) -> None:
        link = self._links.get(address)
        if link is not None and link.registered:
            link.registered = False
            link.wake.set()


@dataclass(slots=True)
class _Link:
    """State of the registration with one name server."""

    address: str
    registered: bool = False
    edition: int = 0
    failures: int = 0
    problem: str = ""
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    tried: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    def note_success(self) -> None:
        if self.failures or not self.tried.is_set():
            logger.info("registered: name_server=%s", self.address)
        self.registered = True
        if self.failures:
            self.problem = ""
        self.failures = 0

    def saw(self, news: Announcement, address: str | None) -> None:
        """Record the address that clients get for our name and id."""
        problem = ""
        if address != news.address:
            problem = f"clients of {news.name} are sent to {address or 'nobody'}"
        if problem and problem != self.problem:
            logger.error(
                "displaced: name_server=%s name=%s id=%s ours=%s theirs=%s; another broker has "
                "registered under this name",
                self.address, news.name, news.broker_id, news.address, address,
            )  # fmt: skip
        elif self.problem and not problem:
            logger.warning("no longer displaced: name_server=%s", self.address)
        self.problem = problem

    def note_failure(self, reason: str) -> None:
        if not self.failures:
            logger.warning("not registered: name_server=%s reason=%s", self.address, reason)
        self.registered = False
        self.problem = reason
        self.failures += 1

    async def sleep(self, seconds: float) -> None:
        """Wait until woken or until the time is over; let a burst of changes collect."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(seconds):
                await self.wake.wait()
        except TimeoutError:
            return
        if loop.time() - began < _BURST_SECONDS:
            await asyncio.sleep(_BURST_SECONDS - (loop.time() - began))


def _encode(news: Announcement) -> bytes:
    topics = dict(news.topics)
    if news.permission != PERM_READ | PERM_WRITE:
        topics = {
            name: replace(config, perm=config.perm & news.permission)
            for name, config in topics.items()
        }
    table = body.RegisteredTopics(
        data_version=news.data_version,
        mapping_data_version=DataVersion(timestamp=news.data_version.timestamp),
        topic_config_table=topics,
    )
    return body.encode_registration(body.RegistrationBody(topic_config_serialize_wrapper=table))
