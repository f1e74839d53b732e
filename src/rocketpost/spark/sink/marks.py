"""Marks: offsets after which messages of a batch may be stored, on brokers of any kind.

Apache's brokers do not record which messages a producer has sent. So every message of a sink has a
unique id that follows from its row, and when a batch is committed the ends of the target queues are
stored as marks. Messages of an earlier attempt are after the mark and are found there by their ids.

Marks are offsets of two groups that no consumer uses, ``SPARK_SINK_<sink>_0`` and ``_1``. The
commit of batch ``b`` writes those of ``b % 2``, and its tasks read those of ``(b - 1) % 2``. These
do not change however often the batch runs, even after its own commit. A mark that is too low or
lost only makes the search longer. Without a mark it starts at the first message of the queue.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

import pyarrow as pa

from rocketpost.client.consumer.offset_calls import OffsetCalls
from rocketpost.codec.faults import GroupNotExist
from rocketpost.errors import AlreadyExists, ConfigError, RouteNotFound
from rocketpost.model.group import GroupConfig
from rocketpost.model.route import MessageQueue
from rocketpost.spark.broker_session import BrokerSession
from rocketpost.spark.options import SourceOptions
from rocketpost.spark.records.columns import Column
from rocketpost.spark.sink.options import SinkOptions
from rocketpost.spark.source.batches import decode_batches
from rocketpost.spark.source.plan import Bounds, Offsets, QueueKey, Range

UNMARKED_MAX: Final = 1_000_000
"""The most messages that are searched without a mark, unless the user sets a start."""
_SINK: Final = re.compile("[A-Za-z0-9_-]{1,80}")
_KEYS: Final = (
    Column("uniqKey", pa.string(), "string", nullable=True),
    Column("queueOffset", pa.int64(), "bigint"),
)
_ID_TIME: Final = slice(20, 28)
_NO_TIME: Final = "00000000"
"""The time in ids that follow from row numbers."""


@dataclass(frozen=True)
class QueueMarks:
    """The marks of even and odd batches in a queue, and its bounds."""

    marks: tuple[int, int]
    bounds: Bounds

    def search_bounds(self, batch_id: int) -> Bounds:
        """Return the bounds of offsets where messages of a batch may be stored."""
        mark = self.marks[(batch_id - 1) % 2]
        first, end = self.bounds
        # A mark beyond the end is useless: the topic was created again.
        return Bounds(max(first, mark) if mark <= end else first, end)


MarksByQueue = dict[QueueKey, QueueMarks]


def mark_group(sink: str, parity: int) -> str:
    """Return the group that stores marks of a sink."""
    name = sink if _SINK.fullmatch(sink) else sha256(sink.encode()).hexdigest()[:32]
    return f"SPARK_SINK_{name}_{parity}"


class Marks:
    """Reads and writes the marks of a sink. Blocking; belongs to one task or one driver call."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._groups = mark_group(options.sink, 0), mark_group(options.sink, 1)

    def read_marks(self, topic: str) -> MarksByQueue:
        """Return the marks and bounds of the queues of a topic; empty if the topic is unknown."""
        with self._open_session(topic) as broker_session:
            try:
                queues = broker_session.queues()
            except RouteNotFound:
                return {}
            # Marks before ends: messages stored between the two requests must be after the marks.
            even, odd = (broker_session.read_offsets(group, queues) for group in self._groups)
            bounds = broker_session.bounds(queues)
            floor = self._find_floor(broker_session, queues)
        return {
            queue: QueueMarks(
                (max(even[queue], floor[queue]), max(odd[queue], floor[queue])), bounds[queue]
            )
            for queue in queues
        }

    def find_ids(self, ranges: Iterable[Range]) -> dict[str, tuple[QueueKey, int]]:
        """Return the message ids of sinks in ranges, each with its queue and offset.

        Raises:
            ClientError: Messages cannot be read.
        """
        found: dict[str, tuple[QueueKey, int]] = {}
        by_topic: dict[str, list[Range]] = {}
        for wanted in ranges:
            if wanted.length > 0:
                by_topic.setdefault(wanted.queue.topic, []).append(wanted)
        for topic, some in by_topic.items():
            with self._open_session(topic) as broker_session:
                for wanted in some:
                    pulled = broker_session.pull(wanted)
                    for batch in decode_batches(
                        pulled, wanted, _KEYS, tags=frozenset(), decompressed=False
                    ):
                        names, offsets = (column.to_pylist() for column in batch.columns)
                        for name, offset in zip(names, offsets, strict=True):
                            if name is not None and name[_ID_TIME] == _NO_TIME:
                                found[name] = wanted.queue, offset
        return found

    def is_indexed(self, topic: str, message_id: str, *, is_known: bool) -> bool:
        """Return whether brokers find a message by its id.

        Args:
            topic: The topic.
            message_id: The id.
            is_known: Whether the topic existed before, so that the call waits for it.
        """
        with self._open_session(topic) as broker_session:
            try:
                return broker_session.is_indexed(
                    topic, message_id, unknown_max=None if is_known else 0
                )
            except RouteNotFound:
                return False

    def find_ends(self, queues: Iterable[QueueKey]) -> Offsets:
        """Return the present ends of queues."""
        queues = list(queues)
        with self._open_session(queues[0].topic) as broker_session:
            return {queue: bounds.end for queue, bounds in broker_session.bounds(queues).items()}

    def commit(self, batch_id: int, firsts: Mapping[QueueKey, int]) -> None:
        """Store the ends of queues as marks, after all messages of a batch are stored.

        Args:
            batch_id: The number of the batch.
            firsts: Offsets of the first messages of the batch; at least one for each topic.
        """
        for topic in sorted({queue.topic for queue in firsts}):
            with self._open_session(topic) as broker_session:
                queues = broker_session.queues()
                ends = {
                    queue: bounds.end for queue, bounds in broker_session.bounds(queues).items()
                }
                # A topic that is new to the sink gets the other mark, too. Otherwise a repeated
                # batch would search the whole topic.
                other = self._groups[(batch_id - 1) % 2]
                known = broker_session.read_offsets(other, queues)
                missing = [queue for queue in queues if not known[queue]]
                broker_session.store_offsets(
                    other, {queue: firsts.get(queue, ends[queue]) for queue in missing}
                )
                broker_session.store_offsets(self._groups[batch_id % 2], ends)

    def _find_floor(self, broker_session: MarkSession, queues: list[QueueKey]) -> Offsets:
        since = self._options.scan_since
        if since is None:
            return dict.fromkeys(queues, 0)
        return broker_session.search_offsets(queues, dict.fromkeys(queues, since))

    def _open_session(self, topic: str) -> MarkSession:
        options = self._options
        return MarkSession(
            SourceOptions(
                name_servers=options.name_servers,
                topic=topic,
                outage_ms=options.send_timeout_ms,
                access_key=options.access_key,
                secret_key=options.secret_key,
                security_token=options.security_token,
                tls=options.tls,
                tls_file=options.tls_file,
            )
        )


class MarkSession(BrokerSession):
    """A broker session that reads and stores offsets of any group."""

    def read_offsets(self, group: str, queues: Iterable[QueueKey]) -> Offsets:
        """Return the offsets of a group; 0 for queues without one."""

        async def one(queue: MessageQueue) -> int:
            return await OffsetCalls(self._admin.session).group_offset(group, queue) or 0

        return self._thread.call(self._ask_each_queue(queues, one))

    def store_offsets(self, group: str, offsets: Offsets) -> None:
        """Store the offsets of a group, and create the group if necessary.

        Raises:
            Fault: A broker refuses.
        """
        calls = OffsetCalls(self._admin.session)

        async def one(queue: MessageQueue) -> None:
            offset = offsets[QueueKey(queue.topic, queue.broker_name, queue.queue_id)]
            try:
                await calls.commit_offset(group, queue, offset)
            except GroupNotExist:
                config = GroupConfig(group_name=group, consume_enable=False)
                with contextlib.suppress(AlreadyExists):  # another task was faster
                    await self._admin.groups.create(await calls.master(queue), config)
                await calls.commit_offset(group, queue, offset)

        self._thread.call(self._ask_each_queue(offsets, one))

    def is_indexed(self, topic: str, message_id: str, *, unknown_max: int | None) -> bool:
        """Return whether brokers find a message by its id."""

        async def ask() -> bool:
            return bool(await self._admin.messages.by_unique_id(topic, message_id))

        return self._thread.call(self._retry(ask, unknown_max=unknown_max))


def plan_search(marks: MarksByQueue, batch_id: int, *, is_bounded: bool = False) -> list[Range]:
    """Return the ranges to search for messages of a batch, in queues of one topic.

    Args:
        marks: The marks of the queues.
        batch_id: The number of the batch.
        is_bounded: Whether the user has set the start of the search.

    Raises:
        ConfigError: There are too many messages, and the user has set no start.
    """
    ranges = []
    unmarked = 0
    for queue, each in marks.items():
        start, end = each.search_bounds(batch_id)
        if each.marks[(batch_id - 1) % 2] == 0:
            unmarked += end - start
        if start < end:
            ranges.append(Range(queue, start, end))
    if unmarked > UNMARKED_MAX and not is_bounded:
        topic = next(iter(marks)).topic
        raise ConfigError(
            f"this sink has no mark in {topic}, which has {unmarked} messages: each task "
            "would search all of them for rows that an earlier run stored. Set the time "
            "from which on the sink may have sent rows, such as scanSince=1795000000000 "
            "(ms; 1 means all)"
        )
    return ranges
