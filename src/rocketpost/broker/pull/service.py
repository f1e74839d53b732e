"""Decides the outcome of a pull: an answer now, or a hold.

A hold is a value: it names the queue that the pull waits for, the wanted messages and the time. The
caller parks it, and calls :meth:`PullService.resume` when a wanted message has arrived or the time
is over. A hold with cold records waits for the disk instead. The service does not use connections,
so that any protocol can use it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple, Protocol

from rocketpost.broker.filter.matching import Matcher
from rocketpost.broker.group.offsets import OffsetTable
from rocketpost.broker.group.table import GroupTable, group_not_exist
from rocketpost.broker.pull.reader import ColdRecords, PullResult, QueueReader
from rocketpost.broker.pull.subscriptions import PullFilter, PullSubscriptions
from rocketpost.broker.stats import BrokerStats
from rocketpost.broker.topic import TopicTable
from rocketpost.codec.codes import ResponseCode
from rocketpost.codec.faults import InvalidParameter, NoPermission, SystemBusy, TopicNotExist
from rocketpost.codec.headers.message import PullMessage
from rocketpost.model import sysflag
from rocketpost.model.group import GroupConfig
from rocketpost.model.names import is_own_offset
from rocketpost.model.route import MASTER_ID
from rocketpost.model.topic import TopicConfig

logger = logging.getLogger(__name__)

_SUSPEND_MS_MAX: Final = 120_000
_NO_SLAVE_READS: Final = (
    "[REJECTREQUEST]system busy, start flow control for a while: this slave serves no pulls; pull "
    "from its master, or set slaveReadEnable=true"
)
"""Begins with RocketMQ's words."""


class PullRules(NamedTuple):
    """Settings of the broker that concern pulls; some may change at run time."""

    broker_readable: bool
    lite_pull: bool
    long_polling: bool
    short_polling_ms: int
    is_slave: bool = False
    """Whether this broker follows a master."""
    reads_from_slaves: bool = False
    """``slaveReadEnable``: whether masters send slow readers to slaves, and slaves serve pulls."""
    slave_corrects_offsets: bool = False
    """``offsetCheckInSlave``: whether a slave without a master corrects offsets."""
    keeps_offsets: bool = True
    """Whether offsets that come with pulls are kept; only the leader of a group keeps them."""


class Caller(Protocol):
    """The client that pulls, as named in log lines."""

    @property
    def peer_text(self) -> str:
        """The caller's address or name."""
        ...


class PullAnswer(NamedTuple):
    """An answer to a pull."""

    pulled: PullResult
    topic: TopicConfig
    group: GroupConfig
    suggested_id: int = MASTER_ID
    """Id of the broker of this group that should serve the next pull."""


class PullHold(NamedTuple):
    """A pull that has found nothing yet, and what it waits for."""

    request: PullMessage
    tags: AbstractSet[int]
    matcher: Matcher | None
    topic: TopicConfig
    group: GroupConfig
    seconds: float
    """Longest time to wait for a message."""
    cold: Sequence[tuple[int, int]] = ()
    """Parts of the log, as position and size, that it waits for instead of a message."""

    @property
    def queue(self) -> tuple[str, int]:
        """The topic and queue that the pull waits for."""
        return self.request.topic, self.request.queue_id

    @property
    def weight(self) -> int:
        """Its tags plus its expression, counted in tags, as if no other pull shared it."""
        return len(self.tags) + (0 if self.matcher is None else self.matcher.weight)


class PullService:
    """Answers pulls or holds them. Owned by the event loop; waits for nothing.

    Args:
        rules: Returns the rules in force.
        has_master: Tells whether the master of this broker is alive, if this broker is a slave.
    """

    def __init__(
        self,
        *,
        reader: QueueReader,
        topics: TopicTable,
        groups: GroupTable,
        subscriptions: PullSubscriptions,
        offsets: OffsetTable,
        stats: BrokerStats,
        rules: Callable[[], PullRules],
        has_master: Callable[[], bool] = lambda: True,
    ) -> None:
        self._reader = reader
        self._topics = topics
        self._groups = groups
        self._subscriptions = subscriptions
        self._offsets = offsets
        self._stats = stats
        self._rules = rules
        self._has_master = has_master

    def pull(
        self, request: PullMessage, caller: Caller, *, is_lite: bool = False
    ) -> PullAnswer | PullHold:
        """Return the answer to a pull, or a hold.

        Raises:
            Fault: The pull is refused.
        """
        rules = self._rules()
        if rules.is_slave and not rules.reads_from_slaves:
            raise SystemBusy(_NO_SLAVE_READS)
        if not rules.broker_readable:
            raise NoPermission("this broker is not readable: brokerPermission forbids it")
        if is_lite and not rules.lite_pull:
            raise NoPermission(
                "lite pull is switched off on this broker: litePullMessageEnable=false"
            )
        group = self._check_group(request, caller)
        topic = self._check_topic(request)
        wanted = self._subscriptions.find(request, group)
        if request.sys_flag & sysflag.PULL_COMMIT_OFFSET and request.commit_offset >= 0:
            self._commit(request, caller)
        pulled = self._read(request, wanted, defers_cold=True)
        if isinstance(pulled, ColdRecords):
            return PullHold(request, *wanted, topic, group, 0, pulled.spans)
        if (
            pulled.code == ResponseCode.PULL_NOT_FOUND
            and request.sys_flag & sysflag.PULL_SUSPEND
            and request.suspend_timeout_millis
        ):
            limit_ms = (
                request.suspend_timeout_millis if rules.long_polling else rules.short_polling_ms
            )
            seconds = min(max(limit_ms, 0), _SUSPEND_MS_MAX) / 1000
            return PullHold(request, *wanted, topic, group, seconds)
        self._count(request, pulled)
        if not rules.reads_from_slaves:  # the usual case
            return PullAnswer(pulled, topic, group)
        return PullAnswer(pulled, topic, group, self._suggest(rules, group, pulled))

    def resume(self, hold: PullHold) -> PullAnswer:
        """Return the answer to a held pull."""
        pulled = self._read(hold.request, PullFilter(hold.tags, hold.matcher))
        assert isinstance(pulled, PullResult)
        self._count(hold.request, pulled)
        suggested_id = self._suggest(self._rules(), hold.group, pulled)
        return PullAnswer(pulled, hold.topic, hold.group, suggested_id)

    # Checks, in RocketMQ's order.

    def _check_group(self, request: PullMessage, caller: Caller) -> GroupConfig:
        group = self._groups.find(request.consumer_group)
        if group is None:
            by = f"{caller.peer_text} cause=pull"
            group = self._groups.find_or_create(request.consumer_group, by=by)
        if group is None:
            raise group_not_exist(request.consumer_group)
        if not group.consume_enable:
            raise NoPermission(f"the group {request.consumer_group} is not allowed to consume")
        return group

    def _check_topic(self, request: PullMessage) -> TopicConfig:
        topic = self._topics.find(request.topic)
        if topic is None:
            raise TopicNotExist(f"the topic {request.topic!r} does not exist on this broker")
        if not topic.readable:
            raise NoPermission(f"the topic {request.topic} is not readable")
        if not 0 <= request.queue_id < topic.read_queue_nums:
            raise InvalidParameter(
                f"queue {request.queue_id} of the topic {request.topic} cannot be read: "
                f"the topic has {topic.read_queue_nums} read queues"
            )
        return topic

    # Reading and counting.

    def _commit(self, request: PullMessage, caller: Caller) -> None:
        topic, group, offset = request.topic, request.consumer_group, request.commit_offset
        if is_own_offset(topic, group) or not self._rules().keeps_offsets:
            return  # only the broker moves its own ones
        end = self._reader.end(topic, request.queue_id)
        if offset > end:
            # The group would skip messages that are still to arrive; the pull is answered as usual.
            logger.warning(
                "commit refused: peer=%s topic=%s queue=%s group=%s offset=%s end=%s",
                caller.peer_text, topic, request.queue_id, group, offset, end,
            )  # fmt: skip
            return
        self._offsets.commit(topic, group, request.queue_id, offset)

    def _read(
        self, request: PullMessage, wanted: PullFilter, *, defers_cold: bool = False
    ) -> PullResult | ColdRecords:
        rules = self._rules()
        if not rules.is_slave:
            reset = self._offsets.take_reset(
                request.topic, request.consumer_group, request.queue_id
            )
            if reset is not None:
                return PullResult(
                    ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET", reset, 0, reset, []
                )
        pulled = self._reader.read(
            request.topic,
            request.queue_id,
            request.queue_offset,
            count_max=request.max_msg_nums,
            tags=wanted.tags,
            matcher=wanted.matcher,
            bytes_max=request.max_msg_bytes,
            defers_cold=defers_cold,
        )
        if isinstance(pulled, ColdRecords) or not rules.is_slave:
            return pulled
        return self._answer_of_slave(rules, request, pulled)

    # Masters and slaves.

    def _answer_of_slave(
        self, rules: PullRules, request: PullMessage, pulled: PullResult
    ) -> PullResult:
        """Change the answer of a slave that has no message for a pull.

        A live master may have the message, so the reader is sent there at once. Without one the
        pull waits here: a message that this slave does not have yet, or no longer, is not skipped,
        because the master may return with it.
        """
        if pulled.code == ResponseCode.SUCCESS:
            return pulled
        has_master = self._has_master()
        if pulled.code == ResponseCode.PULL_OFFSET_MOVED:
            if not has_master and rules.slave_corrects_offsets:
                return pulled
            pulled = pulled._replace(
                code=ResponseCode.PULL_NOT_FOUND, next_offset=request.queue_offset
            )
        if has_master:
            return pulled._replace(code=ResponseCode.PULL_RETRY_IMMEDIATELY)
        return pulled

    def _suggest(self, rules: PullRules, group: GroupConfig, pulled: PullResult) -> int:
        """Return the id of the broker that should serve the next pull."""
        if not rules.reads_from_slaves:
            return MASTER_ID
        if pulled.is_far_behind:
            return group.which_broker_when_consume_slowly
        if rules.is_slave and self._has_master():
            return MASTER_ID
        return group.broker_id

    def _count(self, request: PullMessage, pulled: PullResult) -> None:
        if pulled.code == ResponseCode.SUCCESS:
            topic, group = request.topic, request.consumer_group
            self._stats.count_get(topic, group, pulled.message_count, pulled.size)
            self._offsets.note_pull(topic, group, request.queue_id, pulled.next_offset)
            return
        self._stats.count_empty_get()
        if pulled.code == ResponseCode.PULL_OFFSET_MOVED:
            logger.info(
                "offset moved: topic=%s queue=%s group=%s asked=%s next=%s status=%s",
                request.topic,
                request.queue_id,
                request.consumer_group,
                request.queue_offset,
                pulled.next_offset,
                pulled.status,
            )
