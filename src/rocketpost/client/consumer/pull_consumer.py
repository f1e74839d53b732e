"""The pull consumer: the application chooses queue and offset of each pull."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from rocketpost.client.checks import (
    check_message_queue,
    check_number,
    check_seconds,
    check_timeout,
)
from rocketpost.client.config import (
    MessageModel,
    PullConsumerConfig,
    check_group,
    with_name_servers,
    with_stable_name,
)
from rocketpost.client.consumer.fetch import Fetcher, PullQuery, PullResult, RawPull, Replica
from rocketpost.client.consumer.local_offsets import LocalOffsets
from rocketpost.client.consumer.offset_calls import Boundary, OffsetCalls
from rocketpost.client.consumer.subscriptions import make_subscription
from rocketpost.client.lifecycle import Lifecycle
from rocketpost.client.session import Session
from rocketpost.errors import ClientError, ConfigError
from rocketpost.model.route import MessageQueue

T = TypeVar("T")


class PullConsumer(Lifecycle):
    """Pulls messages by queue and offset. Belongs to the event loop.

    ::

        async with PullConsumer("audit", name_servers="127.0.0.1:9876") as consumer:
            for queue in await consumer.queues("Orders"):
                result = await consumer.pull(queue, await consumer.min_offset(queue))

    It keeps no offsets; :meth:`commit_offset` stores one on the broker for the group. The group is
    not announced to brokers, so it does not share queues. A broker that cannot be reached is tried
    again until the timeout of the call: a pull's, or ``call_timeout``.

    Args:
        group: The consumer group.
        name_servers: ``host:port;host:port``; overrides that of ``config``.
        config: The other settings.

    Raises:
        ConfigError: The group's name is illegal.
    """

    def __init__(
        self,
        group: str,
        *,
        name_servers: str | None = None,
        config: PullConsumerConfig | None = None,
    ) -> None:
        check_group(group)
        config = with_name_servers(config or PullConsumerConfig(), name_servers, PullConsumerConfig)
        config = with_stable_name(config)
        self.group = group
        self.config = config
        self._local: LocalOffsets | None = None
        self._session: Session | None = None

    async def start(self) -> None:
        """Find the name servers.

        Raises:
            NoNameServer: No address of a name server is known.
        """
        if self._session is not None:
            raise ClientError("the consumer is running already")
        session = Session(self.config)
        await session.start()
        if self.config.model is MessageModel.BROADCASTING:
            try:
                self._local = await self._open_local(session)
            except BaseException:
                await session.stop()
                raise
        self._session = session
        self._fetcher = Fetcher(session, self.group)
        self._offsets = OffsetCalls(session)

    async def stop(self) -> None:
        """Close the connections."""
        session, self._session = self._session, None
        local, self._local = self._local, None
        if local is not None:
            await local.close()
        if session is not None:
            await session.stop()

    async def _open_local(self, session: Session) -> LocalOffsets:
        local = LocalOffsets(self.config.offset_directory, session.client_id, self.group)
        await local.open()
        return local

    async def queues(self, topic: str, *, refresh: bool = False) -> list[MessageQueue]:
        """Return the readable queues of ``topic``, sorted.

        Args:
            topic: The topic.
            refresh: Whether to ask a name server even if the route is cached.

        Raises:
            RouteNotFound: The topic is unknown.
            NoNameServer: No name server answers.
        """
        routes = self._running().routes
        if refresh:
            await routes.fetch(topic)
        return await routes.subscribe(topic)

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        count_max: int = 32,
        tags: str = "*",
        sql: str | None = None,
        hold: bool = False,
        hold_seconds: float | None = None,
        timeout: float | None = None,
    ) -> PullResult:
        """Return the messages of ``queue`` from ``offset`` on, or the reason for none.

        Args:
            queue: The queue.
            offset: The first offset; 0 or more.
            count_max: Maximum of messages; brokers have their own bounds.
            tags: A tag expression, such as ``A || B``.
            sql: A SQL92 filter instead of tags.
            hold: Whether the broker waits for a message when there is none.
            hold_seconds: Maximum wait; the configured time if None.
            timeout: Timeout of the pull in seconds; the configured one if None.

        Raises:
            ConfigError: An argument is invalid.
            FilterError: The SQL filter is wrong; the text says where and why.
            Fault: The broker refuses.
            RequestTimeout: No answer in time.
            ConnectionLost: The broker cannot be reached.
            RouteNotFound: The broker is unknown.
        """
        self._running()
        check_message_queue("queue", queue)
        check_number("offset", offset)
        check_number("count_max", count_max, least=1)
        check_timeout(timeout)
        if hold_seconds is not None:
            if not hold:
                raise ConfigError("hold_seconds has no effect without hold=True")
            check_seconds("hold_seconds", hold_seconds)
        config = self.config
        wait = (config.hold_seconds if hold_seconds is None else hold_seconds) if hold else 0.0
        bound = config.hold_timeout if hold else config.pull_timeout
        wish = PullQuery(
            queue=queue,
            offset=offset,
            subscription=make_subscription(queue.topic, tags, sql, version=0),
            count_max=count_max,
            hold_ms=round(wait * 1000),
        )
        seconds = timeout or max(bound, wait + 5.0)
        return await self._patiently(
            queue, lambda: self._fetcher.pull(wish, timeout=seconds), seconds=timeout or bound
        )

    async def pull_raw(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        count_max: int,
        bytes_max: int,
        tags: str = "*",
        sql: str | None = None,
        replica: Replica = Replica.SUGGESTED,
        timeout: float | None = None,
    ) -> RawPull:
        """Return records of ``queue`` as stored, for a caller that decodes many together.

        The broker filters by hashes of tags only; the caller must compare the tags themselves.

        Raises:
            ConfigError, Fault, RequestTimeout, ConnectionLost, RouteNotFound: See :meth:`pull`.
        """
        self._running()
        if offset < 0 or count_max < 1 or bytes_max < 1:
            raise ConfigError(f"offset {offset} or a bound of the pull is too small")
        wish = PullQuery(
            queue=queue,
            offset=offset,
            subscription=make_subscription(queue.topic, tags, sql, version=0),
            count_max=count_max,
            bytes_max=bytes_max,
            replica=replica,
        )
        return await self._fetcher.pull_raw(wish, timeout=timeout or self.config.pull_timeout)

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the oldest message."""
        return await self._patiently(queue, lambda: self._offsets.min_offset(queue))

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the next message to be stored."""
        return await self._patiently(queue, lambda: self._offsets.max_offset(queue))

    async def search_offset(
        self, queue: MessageQueue, timestamp_ms: int, *, boundary: Boundary = Boundary.LOWER
    ) -> int:
        """Return the offset of the message stored around ``timestamp_ms``."""
        return await self._patiently(
            queue, lambda: self._offsets.search_offset(queue, timestamp_ms, boundary)
        )

    async def fetch_offset(self, queue: MessageQueue) -> int | None:
        """Return the group's offset; None if it has never committed one here."""
        self._running()
        if self._local is not None:
            return await self._local.load(queue)
        return await self._patiently(queue, lambda: self._offsets.group_offset(self.group, queue))

    async def commit_offset(self, queue: MessageQueue, offset: int) -> None:
        """Store ``offset`` as the group's next one."""
        check_number("offset", offset)
        self._running()
        if self._local is not None:
            await self._local.store({queue: offset})
            return
        await self._patiently(queue, lambda: self._offsets.commit_offset(self.group, queue, offset))

    async def _patiently(
        self,
        queue: MessageQueue,
        call: Callable[[], Awaitable[T]],
        *,
        seconds: float | None = None,
    ) -> T:
        """Repeat an idempotent call while the broker cannot be reached."""
        check_message_queue("queue", queue)
        return await self._running().patiently(queue.topic, call, seconds=seconds)

    def _running(self) -> Session:
        if self._session is None:
            raise ClientError("the consumer is not running; use `async with` or call start()")
        return self._session
