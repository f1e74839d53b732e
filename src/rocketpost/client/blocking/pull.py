"""The blocking pull consumers; see ``rocketpost.client.blocking``."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from rocketpost.client.blocking.base import BlockingClient
from rocketpost.client.config import LitePullConsumerConfig, PullConsumerConfig
from rocketpost.client.consumer import lite_pull_consumer as async_lite
from rocketpost.client.consumer import pull_consumer as async_pull
from rocketpost.client.consumer.allocation import AllocationStrategy
from rocketpost.client.consumer.fetch import PullResult
from rocketpost.client.consumer.offset_calls import Boundary
from rocketpost.client.consumer.progress import OffsetStore
from rocketpost.client.consumer.rebalance import QueueListener
from rocketpost.client.message import ReceivedMessage
from rocketpost.model.group import SUBSCRIBE_ALL
from rocketpost.model.route import MessageQueue


class PullConsumer(BlockingClient[async_pull.PullConsumer]):
    """Pulls by queue and offset; see :class:`rocketpost.client.PullConsumer`. Thread-safe."""

    def __init__(
        self,
        group: str,
        *,
        name_servers: str | None = None,
        config: PullConsumerConfig | None = None,
    ) -> None:
        super().__init__(
            lambda: async_pull.PullConsumer(
                group, name_servers=name_servers, config=self._rename(config)
            )
        )

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return the readable queues of ``topic``, sorted."""
        return self._call(lambda inner: inner.queues(topic))

    def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        count_max: int = 32,
        tags: str = SUBSCRIBE_ALL,
        sql: str | None = None,
        hold: bool = False,
        hold_seconds: float | None = None,
        timeout: float | None = None,
    ) -> PullResult:
        """Return the messages of ``queue`` from ``offset`` on, or the reason for none."""
        return self._call(
            lambda inner: inner.pull(
                queue,
                offset,
                count_max=count_max,
                tags=tags,
                sql=sql,
                hold=hold,
                hold_seconds=hold_seconds,
                timeout=timeout,
            )
        )

    def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the oldest message."""
        return self._call(lambda inner: inner.min_offset(queue))

    def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the next message to be stored."""
        return self._call(lambda inner: inner.max_offset(queue))

    def search_offset(
        self, queue: MessageQueue, timestamp_ms: int, *, boundary: Boundary = Boundary.LOWER
    ) -> int:
        """Return the offset of the message stored around ``timestamp_ms``."""
        return self._call(lambda inner: inner.search_offset(queue, timestamp_ms, boundary=boundary))

    def fetch_offset(self, queue: MessageQueue) -> int | None:
        """Return the group's offset; None if it has never committed one here."""
        return self._call(lambda inner: inner.fetch_offset(queue))

    def commit_offset(self, queue: MessageQueue, offset: int) -> None:
        """Store ``offset`` as the group's next one."""
        self._call(lambda inner: inner.commit_offset(queue, offset))


class LitePullConsumer(BlockingClient[async_lite.LitePullConsumer]):
    """Polls; see :class:`rocketpost.client.LitePullConsumer`. Thread-safe.

    A forked child subscribes again as its own member; it must assign queues again.
    """

    def __init__(
        self,
        group: str,
        *,
        name_servers: str | None = None,
        config: LitePullConsumerConfig | None = None,
        strategy: AllocationStrategy | None = None,
        queue_listener: QueueListener | None = None,
        offset_store: OffsetStore | None = None,
    ) -> None:
        self._topics: dict[str, tuple[str, str | None]] = {}

        def make() -> async_lite.LitePullConsumer:
            inner = async_lite.LitePullConsumer(
                group,
                name_servers=name_servers,
                config=self._rename(config),
                strategy=strategy,
                queue_listener=queue_listener,
                offset_store=offset_store,
            )
            for topic, (tags, sql) in self._topics.items():
                inner.subscribe(topic, tags=tags, sql=sql)
            return inner

        super().__init__(make)

    def subscribe(self, topic: str, *, tags: str = SUBSCRIBE_ALL, sql: str | None = None) -> None:
        """Share the queues of ``topic`` with the other members."""
        self._make().subscribe(topic, tags=tags, sql=sql)  # report mistakes here, not at the start
        if self._inner is not None:
            self._now(lambda inner: inner.subscribe(topic, tags=tags, sql=sql))
        self._topics[topic] = tags, sql

    def unsubscribe(self, topic: str) -> None:
        """Stop reading ``topic``."""
        if self._inner is not None:
            self._now(lambda inner: inner.unsubscribe(topic))
        self._topics.pop(topic, None)

    def assign(
        self,
        queues: Collection[MessageQueue],
        *,
        tags: str = SUBSCRIBE_ALL,
        sql: str | None = None,
    ) -> None:
        """Read these queues instead of those assigned before."""
        self._call(lambda inner: inner.assign(queues, tags=tags, sql=sql))

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that are being read, sorted."""
        return self._now(lambda inner: inner.assignment)

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return the readable queues of ``topic``, sorted."""
        return self._call(lambda inner: inner.queues(topic))

    def poll(self, timeout: float = 5.0) -> list[ReceivedMessage]:
        """Return messages of one queue; none if none arrive within ``timeout`` seconds."""
        return self._call(lambda inner: inner.poll(timeout))

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit everything polled, or ``offsets`` as the next ones."""
        self._call(lambda inner: inner.commit(offsets))

    def commit_soon(self) -> None:
        """Commit everything polled until now, without waiting."""
        self._now(lambda inner: inner.commit_soon())

    def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's stored offset; None if there is none."""
        return self._call(lambda inner: inner.committed(queue))

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue from ``offset``; messages fetched and not polled are dropped."""
        self._call(lambda inner: inner.seek(queue, offset))

    def seek_to_begin(self, queue: MessageQueue) -> None:
        """Continue from the oldest message."""
        self._call(lambda inner: inner.seek_to_begin(queue))

    def seek_to_end(self, queue: MessageQueue) -> None:
        """Continue after the newest message."""
        self._call(lambda inner: inner.seek_to_end(queue))

    def seek_to_time(self, queue: MessageQueue, timestamp_ms: int) -> None:
        """Continue from the first message stored at that time or later."""
        self._call(lambda inner: inner.seek_to_time(queue, timestamp_ms))

    def pause(self, queues: Collection[MessageQueue] | None = None) -> None:
        """Stop fetching, from all queues or from ``queues``."""
        self._now(lambda inner: inner.pause(queues))

    def resume(self, queues: Collection[MessageQueue] | None = None) -> None:
        """Fetch again from ``queues``, or from all paused ones."""
        self._now(lambda inner: inner.resume(queues))
