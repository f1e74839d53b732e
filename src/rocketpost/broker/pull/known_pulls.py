"""Pulls that repeat: answered by the known meaning of their shape, without decoding them.

A consumer asks for the next messages of a queue over and over, with requests that differ in three
numbers only (``kernel.pull_lane``). The meaning of a shape is learnt once, by decoding one such
pull in the ordinary way. A pull is answered here if the ordinary way would answer it at once with
messages that need no check; then both give the same answer and have the same effects.

    answered here                                 left to the ordinary way (``broker.pull.service``)
    --------------------------------------------  ------------------------------------------------
    an offset within the queue                    others; nothing to read yet
    all messages, or some tags                    expressions; topics of retries
    records in memory, written or checked lately  others; records in two files; large records
    group, topic and subscription as they were    those that do not pass the checks any more
    commits of offsets up to the queue's end      others; the first pull after a reset

**Invariants:**

- Nothing is decided here: a pull is answered as long as topic, group and subscription are *the same
  objects* as when the ordinary checks were passed. Settings are not compared; code that changes
  them calls :meth:`KnownPulls.forget`.
- Nothing is changed for a pull that is left.
- The pulls of one read are answered together: all of them use the time, the log's end and the part
  of the log that were found for the first, and they are counted when :meth:`KnownPulls.end` is
  called. Nothing else happens in between, and none of these values is kept for the next read.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any, Final, Protocol

from rocketpost.broker.group.membership import ConsumerGroup, Membership
from rocketpost.broker.group.offsets import OffsetTable
from rocketpost.broker.group.table import GroupTable
from rocketpost.broker.pull.reader import QUEUE_UNIT_BYTES, QueueReader
from rocketpost.broker.pull.service import PullRules
from rocketpost.broker.pull.subscriptions import PullSubscriptions
from rocketpost.broker.stats import BrokerStats
from rocketpost.broker.topic import TopicTable
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.pull_shapes import PullShape, found_pieces, read_shape
from rocketpost.errors import Fault
from rocketpost.kernel.pull_lane import AnswerHead, LogPart, PullLane
from rocketpost.model import sysflag
from rocketpost.model.group import GroupConfig, Subscription
from rocketpost.model.names import RETRY_PREFIX, is_own_offset
from rocketpost.model.route import MASTER_ID
from rocketpost.model.topic import TopicConfig

SHAPES_MAX: Final = 4096
"""Most shapes that are known at a time; then all are forgotten."""
_UNREAD: Final = -1
_position_of = Struct(">q").unpack_from


class PullQueue(Protocol):
    """The part of a consume queue that is used here."""

    @property
    def first(self) -> int:
        """Offset of the oldest readable message."""
        ...

    @property
    def end(self) -> int:
        """Offset one past the newest readable message."""
        ...

    def read(self, offset: int, count_max: int) -> bytes:
        """Return entries from ``offset`` on."""
        ...


class PullRecords(Protocol):
    """The part of the store that is used here."""

    @property
    def end_position(self) -> int:
        """Position one past the newest byte."""
        ...


class TrustedAccess(Protocol):
    """Access to records that need no check."""

    def fresh_from(self) -> tuple[int, int]:
        """Return the time now in ms, and the position from which on no record needs a check."""
        ...

    def was_checked(self, queue: Any, begin: int, end: int, now_ms: int) -> bool:
        """Tell whether the records of a range of queue offsets were checked lately."""
        ...

    def part_at(self, position: int) -> tuple[memoryview, int, int] | None:
        """Return the file of the log with ``position``: its bytes, its start, its records' end."""
        ...


class KnownPull:
    """The pulls of one shape: their meaning, and what they were checked against."""

    __slots__ = (
        "bytes_max",
        "commits",
        "count_max",
        "entries_max",
        "group",
        "group_name",
        "head",
        "members",
        "message_model",
        "queue_id",
        "queue_key",
        "row",
        "shape",
        "subscription",
        "tags",
        "topic",
        "topic_name",
    )

    def __init__(self, shape: PullShape) -> None:
        request = shape.request
        self.shape = shape
        self.topic_name = request.topic
        self.group_name = request.consumer_group
        self.queue_id = request.queue_id
        self.queue_key = request.topic, request.queue_id
        self.row = f"{request.topic}@{request.consumer_group}"
        """The name of the group's row in tables of offsets and counters."""
        self.commits = bool(request.sys_flag & sysflag.PULL_COMMIT_OFFSET) and not is_own_offset(
            request.topic, request.consumer_group
        )
        self.topic: TopicConfig | None = None
        """The topic when the pull was last checked; None if it has to be checked."""
        self.group: GroupConfig | None = None
        self.members: ConsumerGroup | None = None
        """The group's members, if the pull relies on their subscription."""
        self.message_model = ""
        self.subscription: Subscription | None = None
        self.tags: frozenset[int] = frozenset()
        self.head: AnswerHead | None = None
        self.entries_max = self.count_max = self.bytes_max = 0


class KnownPulls:
    """Answers pulls of known shapes. Owned by the event loop; waits for nothing.

    Args:
        find_queue: Returns the queue with this topic and number; None if it was never written.
    """

    def __init__(
        self,
        *,
        records: PullRecords,
        find_queue: Callable[[tuple[str, int]], PullQueue | None],
        access: TrustedAccess,
        reader: QueueReader,
        topics: TopicTable,
        groups: GroupTable,
        membership: Membership,
        subscriptions: PullSubscriptions,
        offsets: OffsetTable,
        stats: BrokerStats,
        rules: Callable[[], PullRules],
    ) -> None:
        self._rules = rules
        self._known: dict[bytes, KnownPull | None] = {}
        self._seen: set[int] = set()
        self._records = records
        self._find_queue = find_queue
        self._access = access
        self._reader = reader
        self._topics = topics
        self._find_topic = topics.configs.get
        self._groups = groups
        self._find_group = groups.configs.get
        self._membership = membership
        self._subscriptions = subscriptions
        self._offsets = offsets
        self._stats = stats
        # Of the read whose pulls are being answered:
        self._now_ms = _UNREAD
        self._trusted_from = self._oldest = 0
        self._part: LogPart | None = None
        self._row = ""
        self._calls = self._count = self._size = 0

    def __len__(self) -> int:
        return len(self._known)

    def forget(self) -> None:
        """Forget all shapes, because settings have changed."""
        self._known.clear()
        self._seen.clear()

    def find(self, shape: bytes, lane: PullLane) -> KnownPull | None:
        """Return the pulls of a shape, which is learnt if it was seen before; None if odd.

        Args:
            shape: The shape of the pull that ``lane`` has split.
            lane: Has the numbers of the pull.
        """
        known = self._known.get(shape)
        return self._learn(shape, lane) if known is None else known

    def answer(self, shape: bytes, lane: PullLane) -> bytes | None:
        """Return the answer to the pull that ``lane`` has split; None to leave it.

        The caller calls :meth:`end` before it lets anything else happen.

        Args:
            shape: The shape of the pull.
            lane: Has the numbers of the pull; writes the answer.
        """
        known = self._known.get(shape)
        if known is None:
            known = self._learn(shape, lane)
            if known is None:
                return None
        queue = self._find_queue(known.queue_key)
        offset: int = lane.queue_offset
        if queue is None:
            return None
        first, end = queue.first, queue.end
        if not first <= offset < end:
            return None
        topic = self._find_topic(known.topic_name)
        if (
            topic is None
            or topic is not known.topic
            or self._find_group(known.group_name) is not known.group
            or (known.members is not None and not self._is_subscribed(known))
        ) and not self._check(known):
            return None
        offsets, queue_id, row = self._offsets, known.queue_id, known.row
        if offsets.resets and (row, queue_id) in offsets.resets:
            return None
        count_max = known.entries_max
        units = queue.read(offset, count_max if offset + count_max < end else end - offset)
        if len(units) < QUEUE_UNIT_BYTES:
            return None
        position, part = _position_of(units)[0], self._part
        if part is None or not (
            self._trusted_from <= position and part.start <= position < part.end
        ):
            part = self._trusted_part(queue, offset, units, position)
            if part is None:
                return None
        head = known.head
        assert head is not None
        answer = lane.answer(
            head, units, known.tags, known.count_max, known.bytes_max, part, first, end
        )
        if answer is None:
            return None
        if known.commits:
            commit_offset = lane.commit_offset
            if commit_offset > end:
                return None
            try:
                offsets.commit_of(row, queue_id, commit_offset)
            except Fault:
                return None  # refused again in the ordinary way
        if row != self._row:
            self._count_calls()
            self._row = row
        self._calls += 1
        self._count += lane.count
        self._size += lane.size
        offsets.note_pull_of(row, queue_id, offset + lane.passed)
        return answer

    def end(self) -> None:
        """Count the pulls that were answered, and forget what was found for them."""
        self._count_calls()
        self._now_ms = _UNREAD
        self._part = None

    def _count_calls(self) -> None:
        if self._calls:
            self._stats.count_get_of(self._row, self._count, self._size, self._calls)
            self._calls = self._count = self._size = 0

    def _trusted_part(
        self, queue: PullQueue, offset: int, units: bytes, position: int
    ) -> LogPart | None:
        """Return the part of the log with the records of queue entries, the first at ``position``.

        None if records must be checked, or may not be in memory.
        """
        if self._now_ms == _UNREAD:
            self._now_ms, fresh_from = self._access.fresh_from()
            self._oldest = self._records.end_position - self._reader.limits.memory_bytes
            self._trusted_from = max(fresh_from, self._oldest)
        if position < self._oldest or (
            position < self._trusted_from
            and not self._access.was_checked(
                queue, offset, offset + len(units) // QUEUE_UNIT_BYTES, self._now_ms
            )
        ):
            return None
        part = self._part
        if part is None or not part.start <= position < part.end:
            found = self._access.part_at(position)
            if found is None:
                return None
            part = self._part = LogPart(*found)
        return part

    def _learn(self, shape: bytes, lane: PullLane) -> KnownPull | None:
        """Learn what a shape means when it is seen for the second time.

        Not at once: if access control is off, and each request has a signature all the same, no
        shape comes back.
        """
        if shape in self._known:
            return None  # it was found to be odd
        mark = hash(shape)
        if mark not in self._seen:
            if len(self._seen) == SHAPES_MAX:
                self._seen.clear()
            self._seen.add(mark)
            return None
        if len(self._known) == SHAPES_MAX:
            self._known.clear()
        meaning = read_shape(
            shape,
            lane.encoding,
            queue_offset=lane.queue_offset,
            commit_offset=lane.commit_offset,
            opaque=lane.opaque,
        )
        known = self._known[shape] = None if meaning is None else KnownPull(meaning)
        return known

    def _is_subscribed(self, known: KnownPull) -> bool:
        """Tell whether the subscription of a pull is the one that was found for it last."""
        members = self._membership.consumer_group(known.group_name)
        return (
            members is known.members
            and members is not None
            and members.subscriptions.get(known.topic_name) is known.subscription
            and members.message_model is known.message_model
            and self._groups.may_read(known.group_name, known.topic_name)
        )

    def _check(self, known: KnownPull) -> bool:
        """Check a pull as the ordinary way does, and note what it was checked against."""
        request, rules, limits = known.shape.request, self._rules(), self._reader.limits
        group, topic = self._groups.find(known.group_name), self._topics.find(known.topic_name)
        known.topic = None
        if (
            group is None
            or topic is None
            or rules.is_slave
            or not rules.broker_readable
            or not (rules.lite_pull or known.shape.code != RequestCode.LITE_PULL_MESSAGE)
            or not group.consume_enable
            or not topic.readable
            or not 0 <= request.queue_id < topic.read_queue_nums
            or known.topic_name.startswith(RETRY_PREFIX)
        ):
            return False
        try:
            wanted = self._subscriptions.find(request, group)
        except Fault:
            return False
        if wanted.matcher is not None:
            return False
        if request.sys_flag & sysflag.PULL_SUBSCRIPTION:
            known.members = known.subscription = None
        else:
            members = self._membership.consumer_group(known.group_name)
            assert members is not None
            known.members, known.message_model = members, members.message_model
            known.subscription = members.subscriptions[known.topic_name]
        count = min(max(request.max_msg_nums, 1), limits.batch_max)
        scan = limits.scan_bytes // QUEUE_UNIT_BYTES
        known.tags = frozenset(wanted.tags)
        known.entries_max = max(scan, count) if known.tags else count
        known.count_max = min(count, limits.count_in_memory)
        known.bytes_max = limits.bytes_in_memory
        if request.max_msg_bytes is not None and 0 < request.max_msg_bytes < known.bytes_max:
            known.bytes_max = request.max_msg_bytes
        pieces, fields_at = found_pieces(
            known.shape.encoding,
            broker_id=group.broker_id if rules.reads_from_slaves else MASTER_ID,
            topic_sys_flag=topic.topic_sys_flag,
            group_sys_flag=group.group_sys_flag,
        )
        known.head = AnswerHead(pieces, known.shape.encoding, fields_at)
        known.topic, known.group = topic, group
        return True
