"""Blocking requests to name servers and brokers, for the synchronous code that Spark calls.

The client runs on the event-loop thread that all blocking clients of a process share. Requests
about many queues are sent concurrently.

Failed requests are repeated for ``outageTimeoutMs``, so that a query survives the restart of a
server. Only an unknown name fails soon when a query starts: it is a mistake then.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Generator, Iterable
from functools import partial
from typing import Final, TypeVar

from rocketpost.client.admin import AdminClient
from rocketpost.client.config import ClientConfig, PullConsumerConfig
from rocketpost.client.consumer.fetch import PullStatus, RawPull
from rocketpost.client.consumer.pull_consumer import PullConsumer
from rocketpost.codec.faults import TopicNotExist
from rocketpost.codec.record import decode_record
from rocketpost.errors import AlreadyExists, ClientError, Fault, RouteNotFound
from rocketpost.model.group import GroupConfig
from rocketpost.model.names import is_retry_or_dlq, is_system_topic
from rocketpost.model.route import MASTER_ID, MessageQueue
from rocketpost.spark.client_group import ClientGroup
from rocketpost.spark.options import SourceOptions, find_credentials
from rocketpost.spark.outage import TemporarilyMissing, do_nothing, retry_during_outage
from rocketpost.spark.source.plan import Bounds, Offsets, QueueKey, Range, describe_queues
from rocketpost.spark.source.replicas import pull_from_replica
from rocketpost.spark.source.time_bounds import StoredMessage
from rocketpost.spark.tls_options import find_tls

T = TypeVar("T")

GROUP: Final = "CID_RMQ_SYS_SPARK"
"""The group that pulls if the user names none. Brokers let it read without creating it."""
_HOLDING: Final = {"retention.hold": "true"}
_CONCURRENT_CALLS: Final = 32
_SAMPLE_BYTES: Final = 1 << 20
_CONCURRENT_PULLS: Final = 8


class BrokerSession(ClientGroup):
    """Sends the requests of one query or one task. Thread-safe, but for one process only."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        keys, tls = find_credentials(options), find_tls(options)
        self._consumer = PullConsumer(
            options.group or GROUP,
            config=PullConsumerConfig(
                name_servers=options.name_servers,
                pull_timeout=options.pull_timeout_ms / 1000,
                credentials=keys,
                tls=tls,
            ),
        )
        self._admin = AdminClient(
            config=ClientConfig(
                name_servers=options.name_servers, call_timeout=5.0, credentials=keys, tls=tls
            )
        )
        super().__init__(self._consumer, self._admin)

    # Requests of the driver.

    def queues(
        self, *, known: Collection[QueueKey] = (), given_up: Collection[QueueKey] = ()
    ) -> list[QueueKey]:
        """Return the queues that the options select, sorted.

        Args:
            known: Queues that existed before. The call waits for them, and leaves out those that do
                not return in time.
            given_up: Queues of ``known`` for which the call does not wait.

        Raises:
            RouteNotFound: A topic is unknown, and none of its queues is in ``known``.
            ClientError: An assigned queue does not exist.
        """
        mine = frozenset(filter(self._options.selects, known))
        if not mine:
            return self._thread.call(self._list_queues_at_start())
        return self._thread.call(self._await_queues(mine, mine.difference(given_up)))

    def bounds(self, queues: Iterable[QueueKey]) -> dict[QueueKey, Bounds]:
        """Return the first and the end offset of each queue."""

        async def one(queue: MessageQueue) -> Bounds:
            first = await self._consumer.min_offset(queue)
            return Bounds(first, await self._consumer.max_offset(queue))

        return self._thread.call(self._ask_each_queue(queues, one))

    def search_offsets(self, queues: Iterable[QueueKey], ms: dict[QueueKey, int]) -> Offsets:
        """Return the first offset stored at a time or later, for each queue."""

        async def one(queue: MessageQueue) -> int:
            return await self._consumer.search_offset(queue, ms[_queue_key(queue)])

        return self._thread.call(self._ask_each_queue(queues, one))

    def group_offsets(self, queues: Iterable[QueueKey]) -> dict[QueueKey, int | None]:
        """Return the offsets of the group; None for queues without one."""
        return self._thread.call(self._ask_each_queue(queues, self._consumer.fetch_offset))

    def known_groups(self, queues: Iterable[QueueKey] | None = None) -> frozenset[str]:
        """Return every group that a broker knows, whether it consumes or not.

        Args:
            queues: Queues whose brokers are asked; None asks all brokers.

        Raises:
            Fault: A broker refuses the request.
        """
        brokers = None if queues is None else frozenset(queue.broker for queue in queues)
        return self._thread.call(self._list_known_groups(brokers))

    def consuming_groups(self, topics: Iterable[str]) -> frozenset[str]:
        """Return the groups that consume topics or did, according to one broker of each topic.

        Raises:
            Fault: A broker refuses the request.
        """
        return self._thread.call(self._list_consuming_groups(topics))

    def commit(self, offsets: Offsets) -> None:
        """Store the offsets of the group."""

        async def one(queue: MessageQueue) -> None:
            await self._consumer.commit_offset(queue, offsets[_queue_key(queue)])

        self._thread.call(self._ask_each_queue(offsets, one))

    def create_holding_group(self, group: str, queues: Iterable[QueueKey]) -> None:
        """Create a group with a retention hold at the brokers of queues.

        Raises:
            Fault: A broker does not know retention holds.
        """
        self._thread.call(
            self._create_holding_groups(group, sorted({queue.broker for queue in queues}))
        )

    def read_stored(self, offsets: Offsets) -> dict[QueueKey, StoredMessage | None]:
        """Return the first message at an offset or after it, for each queue."""

        async def one(queue: MessageQueue) -> StoredMessage | None:
            pulled = await self._consumer.pull_raw(
                queue, offsets[_queue_key(queue)], count_max=1, bytes_max=_SAMPLE_BYTES
            )
            if not pulled.data:
                return None
            record = decode_record(pulled.data, verify_crc=False)
            return StoredMessage(record.queue_offset, record.store_ms)

        return self._thread.call(self._ask_each_queue(offsets, one))

    def mean_size(self, queue: QueueKey, offset: int) -> int:
        """Return the mean size of a few records of a queue, in bytes."""

        async def one(queue: MessageQueue) -> int:
            pulled = await self._consumer.pull_raw(
                queue, offset, count_max=32, bytes_max=_SAMPLE_BYTES
            )
            count = max(1, pulled.next_offset - offset)
            return len(pulled.data) // count

        return self._thread.call(self._ask_each_queue([queue], one))[queue]

    async def _list_known_groups(self, brokers: frozenset[str] | None) -> frozenset[str]:
        async def ask() -> frozenset[str]:
            table = (await self._admin.cluster.info()).broker_addr_table
            asked = table.keys() if brokers is None else brokers
            if away := asked - table.keys():
                raise TemporarilyMissing(f"the broker {min(away)} is unavailable")
            # The lowest id, because a slave also has the groups of its master.
            found = [min(table[broker].broker_addrs.items())[1] for broker in sorted(asked)]
            tables = await asyncio.gather(*map(self._admin.groups.table, found))
            return frozenset(name for each in tables for name in each.subscription_group_table)

        return await self._retry(ask)

    async def _list_consuming_groups(self, topics: Iterable[str]) -> frozenset[str]:
        asked = [self._retry(partial(self._admin.topics.groups_of, topic)) for topic in topics]
        return frozenset(group for groups in await asyncio.gather(*asked) for group in groups)

    async def _create_holding_groups(self, group: str, brokers: list[str]) -> None:
        for broker in brokers:
            await self._retry(partial(self._create_holding_group_at, group, broker))

    async def _create_holding_group_at(self, group: str, broker: str) -> None:
        addresses = await self._admin.cluster.broker_addresses(broker)
        if MASTER_ID not in addresses:
            raise TemporarilyMissing(f"the broker {broker} has no master that could hold messages")
        address = addresses[MASTER_ID]
        config = GroupConfig(group_name=group, attributes=_HOLDING)
        try:
            await self._admin.groups.create(address, config)
        except AlreadyExists:
            await self._admin.groups.update(address, group, attributes=_HOLDING)

    async def _list_queues_at_start(self) -> list[QueueKey]:
        """Return the queues of a query that starts. An unknown name is a mistake."""

        async def ask() -> list[QueueKey]:
            try:
                return await self._list_queues()
            except RouteNotFound as error:
                if (await self._admin.cluster.info()).broker_addr_table:
                    raise
                raise TemporarilyMissing(f"{error}; no broker is available") from error

        return await self._retry(ask, unknown_max=self._options.retries)

    async def _await_queues(
        self, known: frozenset[QueueKey], awaited: frozenset[QueueKey]
    ) -> list[QueueKey]:
        """Return the queues of a running query, when all awaited ones exist or the time is over."""
        found: list[QueueKey] = []

        async def ask() -> None:
            nonlocal found
            found = await self._list_queues(known)
            if missing := awaited - set(found):
                raise TemporarilyMissing(f"{min(missing)} is unavailable")

        with contextlib.suppress(TemporarilyMissing):
            await self._retry(ask)
        return found

    async def _list_queues(self, known: frozenset[QueueKey] = frozenset()) -> list[QueueKey]:
        """Return the queues that name servers know now; topics of ``known`` may be unknown."""
        options = self._options
        if options.topic_pattern:
            names = await self._admin.cluster.topics()
            topics = [name for name in names if _is_user_topic(name) and options.matches(name)]
        else:
            topics = options.topics or sorted({queue.topic for queue in options.assigned})
        found: set[QueueKey] = set()
        for topic in topics:
            try:
                queues = await self._consumer.queues(topic, refresh=True)
            except (RouteNotFound, TopicNotExist):
                if topic not in {queue.topic for queue in known}:
                    raise
            else:
                found |= set(map(_queue_key, queues))
        if options.assign:
            assigned = set(options.assigned)
            if missing := assigned - found - known:
                raise ClientError(
                    f"assign names queues that do not exist: {describe_queues(missing)}; "
                    f"existing are {describe_queues(found) or 'no queues'}"
                )
            found &= assigned
        return sorted(found)

    async def _ask_each_queue(
        self, queues: Iterable[QueueKey], ask: Callable[[MessageQueue], Awaitable[T]]
    ) -> dict[QueueKey, T]:
        gate = asyncio.Semaphore(_CONCURRENT_CALLS)

        async def one(queue: QueueKey) -> tuple[QueueKey, T]:
            async with gate:
                return queue, await self._ask_about_queue(queue, lambda: ask(_message_queue(queue)))

        return dict(await asyncio.gather(*[one(queue) for queue in queues]))

    async def _ask_about_queue(self, queue: QueueKey, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask about a queue. After a failure, look for its broker at a new address."""

        async def refresh() -> None:
            with contextlib.suppress(ClientError, Fault):
                await self._consumer.queues(queue.topic, refresh=True)

        return await self._retry(ask, between=refresh)

    async def _retry(
        self,
        ask: Callable[[], Awaitable[T]],
        *,
        unknown_max: int | None = None,
        between: Callable[[], Awaitable[None]] = do_nothing,
    ) -> T:
        return await retry_during_outage(
            ask,
            seconds=self._options.outage_ms / 1000,
            pause=self._options.retry_interval_ms / 1000,
            unknown_max=unknown_max,
            between=between,
        )

    # Requests of tasks.

    def pull(self, wanted: Range) -> Generator[bytes, None, None]:
        """Yield the records of a range in order, one pull at a time.

        Brokers limit the size of one pull, so several are under way at the same time.
        """
        answers = self._pull_range(wanted)

        async def next_answer() -> bytes | None:
            return await anext(answers, None)

        try:
            while (data := self._thread.call(next_answer())) is not None:
                yield data
        finally:
            self._thread.call(answers.aclose())  # type: ignore[attr-defined]

    async def _pull_range(self, wanted: Range) -> AsyncIterator[bytes]:
        first, at = await self._pull_once(wanted, wanted.start)
        yield first
        while at < wanted.end and self._options.is_filtered:
            # The start of the next pull is known only when this one is complete.
            data, at = await self._pull_once(wanted, at)
            yield data
        step = max(1, min(at - wanted.start, self._options.pull_count))
        waiting: list[asyncio.Task[list[bytes]]] = []
        try:
            while at < wanted.end or waiting:
                while at < wanted.end and len(waiting) < _CONCURRENT_PULLS:
                    end = min(at + step, wanted.end)
                    step_range = Range(wanted.queue, at, end)
                    waiting.append(asyncio.create_task(self._pull_all(step_range)))
                    at = end
                for data in await waiting.pop(0):
                    yield data
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def _pull_all(self, wanted: Range) -> list[bytes]:
        found = []
        at = wanted.start
        while at < wanted.end:
            data, at = await self._pull_once(wanted, at)
            found.append(data)
        return found

    async def _pull_once(self, wanted: Range, at: int) -> tuple[bytes, int]:
        """Return records from ``at`` on, and the offset after them."""
        pulled = await self._ask_about_queue(wanted.queue, partial(self._pull_or_raise, wanted, at))
        if pulled.status is PullStatus.OFFSET_ILLEGAL:
            if self._options.fail_on_data_loss:
                raise ClientError(
                    f"{wanted.queue} has offsets {pulled.min_offset} to "
                    f"{pulled.max_offset}, but {at} was requested: it was deleted during "
                    "the read. Set failOnDataLoss=false to continue without it"
                )
            after = pulled.next_offset if pulled.next_offset > at else wanted.end
            return b"", min(after, wanted.end)
        return pulled.data, pulled.next_offset

    async def _pull_or_raise(self, wanted: Range, at: int) -> RawPull:
        options = self._options
        is_tag = options.expression_type == "TAG"
        pull = partial(
            self._consumer.pull_raw,
            _message_queue(wanted.queue),
            at,
            count_max=min(wanted.end - at, options.pull_count),
            bytes_max=options.pull_bytes,
            tags=options.expression if is_tag else "*",
            sql=None if is_tag else options.expression,
        )
        pulled = await pull_from_replica(options.read_from, at, lambda each: pull(replica=each))
        is_lost = pulled.status is PullStatus.OFFSET_ILLEGAL and pulled.next_offset != at
        if pulled.next_offset <= at and not is_lost:
            # Not the end of the range, which is known beforehand.
            raise TemporarilyMissing(
                f"{wanted.queue} returns nothing at offset {at} ({pulled.status.name}), "
                f"although it had messages up to {wanted.end}; it now ends at "
                f"{pulled.max_offset}"
            )
        return pulled


def _is_user_topic(topic: str) -> bool:
    return not is_system_topic(topic) and not is_retry_or_dlq(topic)


def _queue_key(queue: MessageQueue) -> QueueKey:
    return QueueKey(queue.topic, queue.broker_name, queue.queue_id)


def _message_queue(queue: QueueKey) -> MessageQueue:
    return MessageQueue(topic=queue.topic, broker_name=queue.broker, queue_id=queue.queue_id)
