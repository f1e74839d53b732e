"""A blocking line to name servers and brokers, for code that Spark calls.

Drivers and tasks are ordinary synchronous Python; the client runs on the loop thread that all
blocking clients of a process share. Calls about many queues are made side by side.

What fails on the way is tried again for ``outageTimeoutMs``, so that a query outlives the restart
of a server. Only a name that nobody knows fails soon, when a query starts: it is a mistake then.
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
from rocketpost.spark.client_group import Line
from rocketpost.spark.options import SourceOptions, credentials
from rocketpost.spark.outage import NotYet, ask_again, nothing
from rocketpost.spark.source.narrowing import Stored
from rocketpost.spark.source.plan import Bounds, Offsets, QueueKey, Range, in_words
from rocketpost.spark.source.replicas import pulled_from

T = TypeVar("T")

GROUP: Final = "CID_RMQ_SYS_SPARK"
"""Who pulls when the user names no group; brokers let such a group read without being made."""
_HOLDING: Final = {"retention.hold": "true"}
_CALLS_AT_ONCE: Final = 32
_SAMPLE_BYTES: Final = 1 << 20
_CHUNKS_AT_ONCE: Final = 8


class Link(Line):
    """Asks and pulls for one query or one task. Thread-safe, but for one process only."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        keys = credentials(options)
        self._consumer = PullConsumer(
            options.group or GROUP,
            config=PullConsumerConfig(
                name_servers=options.name_servers,
                pull_timeout=options.pull_timeout_ms / 1000,
                credentials=keys,
            ),
        )
        self._admin = AdminClient(
            config=ClientConfig(
                name_servers=options.name_servers, call_timeout=5.0, credentials=keys
            )
        )
        super().__init__(self._consumer, self._admin)

    # What the driver asks.

    def queues(
        self, *, known: Collection[QueueKey] = (), given_up: Collection[QueueKey] = ()
    ) -> list[QueueKey]:
        """Return the queues that the options name, sorted.

        Args:
            known: Those that were there before. They are waited for, and missing from what is
                returned only if they have not come back in time.
            given_up: Those of ``known`` that are not waited for any more.

        Raises:
            RouteNotFound: A topic is unknown, and nothing of it was there before.
            ClientError: A queue that was assigned does not exist.
        """
        mine = frozenset(filter(self._options.takes, known))
        if not mine:
            return self._thread.call(self._queues_at_start())
        return self._thread.call(self._queues_back(mine, mine.difference(given_up)))

    def bounds(self, queues: Iterable[QueueKey]) -> dict[QueueKey, Bounds]:
        """Return what each queue has."""

        async def one(queue: MessageQueue) -> Bounds:
            first = await self._consumer.min_offset(queue)
            return Bounds(first, await self._consumer.max_offset(queue))

        return self._thread.call(self._of_each(queues, one))

    def at_time(self, queues: Iterable[QueueKey], ms: dict[QueueKey, int]) -> Offsets:
        """Return the first offset stored at a time or later, for each queue."""

        async def one(queue: MessageQueue) -> int:
            return await self._consumer.search_offset(queue, ms[_key(queue)])

        return self._thread.call(self._of_each(queues, one))

    def group_offsets(self, queues: Iterable[QueueKey]) -> dict[QueueKey, int | None]:
        """Return where the group stands, None where it has never been."""
        return self._thread.call(self._of_each(queues, self._consumer.fetch_offset))

    def known_groups(self, queues: Iterable[QueueKey] | None = None) -> frozenset[str]:
        """Return every group that a broker knows, whether it consumes or not.

        Args:
            queues: Whose brokers are asked; None asks all that are there.

        Raises:
            Fault: A broker tells not everybody.
        """
        brokers = None if queues is None else frozenset(queue.broker for queue in queues)
        return self._thread.call(self._known_groups(brokers))

    def consuming(self, topics: Iterable[str]) -> frozenset[str]:
        """Return the groups that consume topics or did, as one broker of each topic knows them.

        Raises:
            Fault: A broker tells not everybody.
        """
        return self._thread.call(self._consuming(topics))

    def commit(self, offsets: Offsets) -> None:
        """Store where the group stands."""

        async def one(queue: MessageQueue) -> None:
            await self._consumer.commit_offset(queue, offsets[_key(queue)])

        self._thread.call(self._of_each(offsets, one))

    def hold(self, group: str, queues: Iterable[QueueKey]) -> None:
        """Make a group at the brokers of queues that holds what it has not passed.

        Raises:
            Fault: A broker does not know of holds.
        """
        self._thread.call(self._hold(group, sorted({queue.broker for queue in queues})))

    def stored(self, offsets: Offsets) -> dict[QueueKey, Stored | None]:
        """Return the first message at an offset or behind it and its store time, for each queue."""

        async def one(queue: MessageQueue) -> Stored | None:
            pulled = await self._consumer.pull_raw(
                queue, offsets[_key(queue)], count_max=1, bytes_max=_SAMPLE_BYTES
            )
            if not pulled.data:
                return None
            record = decode_record(pulled.data, verify_crc=False)
            return Stored(record.queue_offset, record.store_ms)

        return self._thread.call(self._of_each(offsets, one))

    def mean_size(self, queue: QueueKey, offset: int) -> int:
        """Return how many bytes a record of a queue takes, by the mean of a few."""

        async def one(queue: MessageQueue) -> int:
            pulled = await self._consumer.pull_raw(
                queue, offset, count_max=32, bytes_max=_SAMPLE_BYTES
            )
            count = max(1, pulled.next_offset - offset)
            return len(pulled.data) // count

        return self._thread.call(self._of_each([queue], one))[queue]

    async def _known_groups(self, brokers: frozenset[str] | None) -> frozenset[str]:
        async def ask() -> frozenset[str]:
            table = (await self._admin.cluster.info()).broker_addr_table
            asked = table.keys() if brokers is None else brokers
            if away := asked - table.keys():
                raise NotYet(f"the broker {min(away)} is gone")
            # By the lowest id: a slave has the groups of its master as well.
            found = [min(table[broker].broker_addrs.items())[1] for broker in sorted(asked)]
            tables = await asyncio.gather(*map(self._admin.groups.table, found))
            return frozenset(name for each in tables for name in each.subscription_group_table)

        return await self._again(ask)

    async def _consuming(self, topics: Iterable[str]) -> frozenset[str]:
        asked = [self._again(partial(self._admin.topics.groups_of, topic)) for topic in topics]
        return frozenset(group for groups in await asyncio.gather(*asked) for group in groups)

    async def _hold(self, group: str, brokers: list[str]) -> None:
        for broker in brokers:
            await self._again(partial(self._hold_at, group, broker))

    async def _hold_at(self, group: str, broker: str) -> None:
        addresses = await self._admin.cluster.broker_addresses(broker)
        if MASTER_ID not in addresses:
            raise NotYet(f"the broker {broker} has no master that could hold messages")
        address = addresses[MASTER_ID]
        config = GroupConfig(group_name=group, attributes=_HOLDING)
        try:
            await self._admin.groups.create(address, config)
        except AlreadyExists:
            await self._admin.groups.update(address, group, attributes=_HOLDING)

    async def _queues_at_start(self) -> list[QueueKey]:
        """Return the queues of a query that starts: a name that nobody knows is a mistake."""

        async def ask() -> list[QueueKey]:
            try:
                return await self._queues()
            except RouteNotFound as error:
                if (await self._admin.cluster.info()).broker_addr_table:
                    raise
                raise NotYet(f"{error}; no broker is there at all") from error

        return await self._again(ask, unknown_max=self._options.retries)

    async def _queues_back(
        self, known: frozenset[QueueKey], awaited: frozenset[QueueKey]
    ) -> list[QueueKey]:
        """Return the queues of a query that runs, once all awaited are there or time is over."""
        found: list[QueueKey] = []

        async def ask() -> None:
            nonlocal found
            found = await self._queues(known)
            if missing := awaited - set(found):
                raise NotYet(f"{min(missing)} is gone")

        with contextlib.suppress(NotYet):
            await self._again(ask)
        return found

    async def _queues(self, known: frozenset[QueueKey] = frozenset()) -> list[QueueKey]:
        """Return what name servers say now; topics of ``known`` may be unknown."""
        options = self._options
        if options.topic_pattern:
            names = await self._admin.cluster.topics()
            topics = [name for name in names if _is_users(name) and options.matches(name)]
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
                found |= set(map(_key, queues))
        if options.assign:
            assigned = set(options.assigned)
            if missing := assigned - found - known:
                raise ClientError(
                    f"assign names what does not exist: {in_words(missing)}; "
                    f"there are {in_words(found) or 'no queues'}"
                )
            found &= assigned
        return sorted(found)

    async def _of_each(
        self, queues: Iterable[QueueKey], ask: Callable[[MessageQueue], Awaitable[T]]
    ) -> dict[QueueKey, T]:
        places = asyncio.Semaphore(_CALLS_AT_ONCE)

        async def one(queue: QueueKey) -> tuple[QueueKey, T]:
            async with places:
                return queue, await self._of(queue, lambda: ask(_message_queue(queue)))

        return dict(await asyncio.gather(*[one(queue) for queue in queues]))

    async def _of(self, queue: QueueKey, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask about a queue; its broker may have come back elsewhere when that fails."""

        async def refresh() -> None:
            with contextlib.suppress(ClientError, Fault):
                await self._consumer.queues(queue.topic, refresh=True)

        return await self._again(ask, between=refresh)

    async def _again(
        self,
        ask: Callable[[], Awaitable[T]],
        *,
        unknown_max: int | None = None,
        between: Callable[[], Awaitable[None]] = nothing,
    ) -> T:
        return await ask_again(
            ask,
            seconds=self._options.outage_ms / 1000,
            pause=self._options.retry_interval_ms / 1000,
            unknown_max=unknown_max,
            between=between,
        )

    # What a task pulls.

    def pull(self, wanted: Range) -> Generator[bytes, None, None]:
        """Yield the records of a range, in order, a pull's worth at a time.

        Brokers cap what one pull returns, so several are under way side by side.
        """
        chunks = self._chunks(wanted)

        async def following() -> bytes | None:
            return await anext(chunks, None)

        try:
            while (data := self._thread.call(following())) is not None:
                yield data
        finally:
            self._thread.call(chunks.aclose())  # type: ignore[attr-defined]

    async def _chunks(self, wanted: Range) -> AsyncIterator[bytes]:
        first, at = await self._pull_once(wanted, wanted.start)
        yield first
        while at < wanted.end and self._options.is_filtered:
            # How far the next pull gets is only known when it is back.
            data, at = await self._pull_once(wanted, at)
            yield data
        step = max(1, min(at - wanted.start, self._options.pull_count))
        waiting: list[asyncio.Task[list[bytes]]] = []
        try:
            while at < wanted.end or waiting:
                while at < wanted.end and len(waiting) < _CHUNKS_AT_ONCE:
                    end = min(at + step, wanted.end)
                    piece = Range(wanted.queue, at, end)
                    waiting.append(asyncio.create_task(self._pull_all(piece)))
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
        """Return records from ``at`` on, and where to go on."""
        pulled = await self._of(wanted.queue, partial(self._pulled, wanted, at))
        if pulled.status is PullStatus.OFFSET_ILLEGAL:
            if self._options.fail_on_data_loss:
                raise ClientError(
                    f"{wanted.queue} has offsets {pulled.min_offset} to {pulled.max_offset}, but "
                    f"{at} was wanted: it was deleted while it was read. "
                    f"Set failOnDataLoss=false to go on without it"
                )
            after = pulled.next_offset if pulled.next_offset > at else wanted.end
            return b"", min(after, wanted.end)
        return pulled.data, pulled.next_offset

    async def _pulled(self, wanted: Range, at: int) -> RawPull:
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
        pulled = await pulled_from(options.read_from, at, lambda each: pull(replica=each))
        is_lost = pulled.status is PullStatus.OFFSET_ILLEGAL and pulled.next_offset != at
        if pulled.next_offset <= at and not is_lost:
            # Never the end of a range: that is known beforehand.
            raise NotYet(
                f"{wanted.queue} returns nothing at offset {at} ({pulled.status.name}), though "
                f"messages up to {wanted.end} were there; it now ends at {pulled.max_offset}"
            )
        return pulled


def _is_users(topic: str) -> bool:
    return not is_system_topic(topic) and not is_retry_or_dlq(topic)


def _key(queue: MessageQueue) -> QueueKey:
    return QueueKey(queue.topic, queue.broker_name, queue.queue_id)


def _message_queue(queue: QueueKey) -> MessageQueue:
    return MessageQueue(topic=queue.topic, broker_name=queue.broker, queue_id=queue.queue_id)
