"""Marks: what of a batch an earlier attempt has stored, found out from any broker.

Brokers of other makes do not know what a producer has sent. So every message of a sink has a unique
id that follows from its row, and the ends of the target queues are kept as marks when a batch is
committed. What an earlier attempt stored lies behind the mark and is found there by its id.

Marks are offsets of two groups that nobody consumes with, ``SPARK_SINK_<sink>_0`` and ``_1``. The
commit of batch ``b`` writes those of ``b % 2``, and its tasks read those of ``(b - 1) % 2``: these
stay as they are however often the batch runs, also after its own commit. A mark that is too low, or
lost, only makes the search longer; without one it starts at the first message that is there.
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
"""So many messages are searched without a mark and without a word of the user."""
_SINK: Final = re.compile("[A-Za-z0-9_-]{1,80}")
_KEYS: Final = (
    Column("uniqKey", pa.string(), "string", nullable=True),
    Column("queueOffset", pa.int64(), "bigint"),
)
_ID_TIME: Final = slice(20, 28)
_NO_TIME: Final = "00000000"
"""Ids that are made of numbers have this where others have the time."""


@dataclass(frozen=True)
class Stand:
    """State of a queue: the marks of even and odd batches, and what it has."""

    marks: tuple[int, int]
    bounds: Bounds

    def unsure(self, batch_id: int) -> Bounds:
        """Return where messages of a batch may lie."""
        mark = self.marks[(batch_id - 1) % 2]
        first, end = self.bounds
        # Beyond the end: the topic was made anew, and nothing is known of it.
        return Bounds(max(first, mark) if mark <= end else first, end)


Stands = dict[QueueKey, Stand]


def group_of(sink: str, parity: int) -> str:
    """Return the group that keeps marks of a sink."""
    name = sink if _SINK.fullmatch(sink) else sha256(sink.encode()).hexdigest()[:32]
    return f"SPARK_SINK_{name}_{parity}"


class Marks:
    """Reads and writes the marks of a sink. Blocking; belongs to one task or one driver call."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._groups = group_of(options.sink, 0), group_of(options.sink, 1)

    def stands(self, topic: str) -> Stands:
        """Return what is known of the queues of a topic; of one that nobody knows nothing is."""
        with self._broker_session(topic) as broker_session:
            try:
                queues = broker_session.queues()
            except RouteNotFound:
                return {}
            # The marks first: what is stored between two looks must lie behind them.
            even, odd = (broker_session.offsets_of(group, queues) for group in self._groups)
            bounds = broker_session.bounds(queues)
            floor = self._floor(broker_session, queues)
        return {
            queue: Stand(
                (max(even[queue], floor[queue]), max(odd[queue], floor[queue])), bounds[queue]
            )
            for queue in queues
        }

    def found(self, ranges: Iterable[Range]) -> dict[str, tuple[QueueKey, int]]:
        """Return the ids of sinks in ranges of queues, and where each is.

        Raises:
            ClientError: Messages cannot be read.
        """
        found: dict[str, tuple[QueueKey, int]] = {}
        by_topic: dict[str, list[Range]] = {}
        for wanted in ranges:
            if wanted.length > 0:
                by_topic.setdefault(wanted.queue.topic, []).append(wanted)
        for topic, some in by_topic.items():
            with self._broker_session(topic) as broker_session:
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
        """Tell whether brokers know a message by its id.

        Args:
            topic: Where to look.
            message_id: The id.
            is_known: Whether the topic was there before, so that it is waited for.
        """
        with self._broker_session(topic) as broker_session:
            try:
                return broker_session.is_indexed(
                    topic, message_id, unknown_max=None if is_known else 0
                )
            except RouteNotFound:
                return False

    def ends(self, queues: Iterable[QueueKey]) -> Offsets:
        """Return where queues end now."""
        queues = list(queues)
        with self._broker_session(queues[0].topic) as broker_session:
            return {queue: bounds.end for queue, bounds in broker_session.bounds(queues).items()}

    def commit(self, batch_id: int, firsts: Mapping[QueueKey, int]) -> None:
        """Keep where the queues of a batch end, now that all of it is stored.

        Args:
            batch_id: The number of the batch.
            firsts: No message of the batch lies before these; at least one for each topic.
        """
        for topic in sorted({queue.topic for queue in firsts}):
            with self._broker_session(topic) as broker_session:
                queues = broker_session.queues()
                ends = {
                    queue: bounds.end for queue, bounds in broker_session.bounds(queues).items()
                }
                # A topic that is new to the sink gets the other mark as well, or the batch would
                # have to look through all of the topic if it ran once more.
                other = self._groups[(batch_id - 1) % 2]
                known = broker_session.offsets_of(other, queues)
                missing = [queue for queue in queues if not known[queue]]
                broker_session.commit_for(
                    other, {queue: firsts.get(queue, ends[queue]) for queue in missing}
                )
                broker_session.commit_for(self._groups[batch_id % 2], ends)

    def _floor(self, broker_session: MarkLink, queues: list[QueueKey]) -> Offsets:
        since = self._options.scan_since
        if since is None:
            return dict.fromkeys(queues, 0)
        return broker_session.search_offsets(queues, dict.fromkeys(queues, since))

    def _broker_session(self, topic: str) -> MarkLink:
        options = self._options
        return MarkLink(
            SourceOptions(
                name_servers=options.name_servers,
                topic=topic,
                outage_ms=options.send_timeout_ms,
                access_key=options.access_key,
                secret_key=options.secret_key,
                security_token=options.security_token,
            )
        )


class MarkLink(BrokerSession):
    """A link that also asks for the offsets of groups it does not pull with."""

    def offsets_of(self, group: str, queues: Iterable[QueueKey]) -> Offsets:
        """Return where a group stands, 0 where it has never been."""

        async def one(queue: MessageQueue) -> int:
            return await OffsetCalls(self._admin.session).group_offset(group, queue) or 0

        return self._thread.call(self._ask_each_queue(queues, one))

    def commit_for(self, group: str, offsets: Offsets) -> None:
        """Store where a group stands; brokers that do not know it get to know it.

        Raises:
            Fault: A broker does not let us.
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
        """Tell whether brokers know a message by its id."""

        async def ask() -> bool:
            return bool(await self._admin.messages.by_unique_id(topic, message_id))

        return self._thread.call(self._retry(ask, unknown_max=unknown_max))


def unsure(stands: Stands, batch_id: int, *, is_bounded: bool = False) -> list[Range]:
    """Return where messages of a batch may lie, in queues of one topic.

    Args:
        stands: What is known of the queues.
        batch_id: The number of the batch.
        is_bounded: Whether the user has said since when there may be any.

    Raises:
        ConfigError: That is nearly everything, and the user has said nothing.
    """
    ranges = []
    unmarked = 0
    for queue, stand in stands.items():
        start, end = stand.unsure(batch_id)
        if stand.marks[(batch_id - 1) % 2] == 0:
            unmarked += end - start
        if start < end:
            ranges.append(Range(queue, start, end))
    if unmarked > UNMARKED_MAX and not is_bounded:
        topic = next(iter(stands)).topic
        raise ConfigError(
            f"this sink has no mark in {topic}, which has {unmarked} messages: each task would "
            "look through all of them for what an earlier run stored. Say since when the sink "
            "may have sent something, such as scanSince=1795000000000 (ms; 1 means all)"
        )
    return ranges
