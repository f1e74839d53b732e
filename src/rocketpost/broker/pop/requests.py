"""Pop requests: checks them, then answers or holds them.

The outcome of a pop is a value: an answer, or a hold that says what the pop waits for and how long.
The caller parks a hold and tries again, by :meth:`PopRequests.renew`, when a message has arrived.
This module does not use connections, so that any protocol can use it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

from rocketpost.broker.filter.filters import Filters
from rocketpost.broker.filter.matching import RecordFilter
from rocketpost.broker.group.table import GroupTable, group_not_exist
from rocketpost.broker.own_state import check_pop
from rocketpost.broker.pop.service import PopResult
from rocketpost.broker.pop.targets import COUNT_MAX, PopRequest, Targets
from rocketpost.broker.priority import FACTOR_MAX, factor_of
from rocketpost.broker.topic import TopicTable
from rocketpost.codec.codes import ResponseCode
from rocketpost.codec.faults import (
    GroupNotExist,
    InvalidParameter,
    NoPermission,
    SubscriptionParseFailed,
)
from rocketpost.codec.headers.pop import Notification, PeekMessage, PollingInfo, PopMessage
from rocketpost.model.group import TAG, parse_tags
from rocketpost.model.topic import TopicConfig

INVISIBLE_MS_MAX: Final = 3 * 24 * 3600 * 1000
"""Longest invisible time; the log does not promise to keep the messages longer."""
_POLL_MS_MAX: Final = 120_000
_EXPRESSION_LENGTH_MAX: Final = 64 * 1024
_ATTEMPT_LENGTH_MAX: Final = 256
_FROM_END: Final = 1


class Caller(Protocol):
    """The client that pops, as named in log lines."""

    @property
    def peer_text(self) -> str:
        """The caller's address or name."""
        ...


class PopPlace(NamedTuple):
    """Topic, group and queue that a pop waits for; the queue is -1 for all queues."""

    topic: str
    group: str
    queue_id: int


class PopAnswer(NamedTuple):
    """An answer to a pop, or to a notification request, which asks whether there are messages.

    Attributes:
        code: SUCCESS if messages were found, else POLLING_TIMEOUT or POLLING_FULL.
        popped: The messages, once their checkpoints are stored; None for a notification.
    """

    code: int
    request: PopRequest
    popped: PopResult | None = None


class PopHold(NamedTuple):
    """A pop or notification request that has found nothing yet, and what it waits for."""

    request: PopRequest
    is_pop: bool
    seconds: float
    """Longest time to wait."""
    retry_topics: list[str]
    """Retry topics of its group; the pop waits for their messages as well."""

    @property
    def place(self) -> PopPlace:
        """The queue, or all queues of a topic, that the pop waits for."""
        request = self.request
        return PopPlace(request.topic.topic_name, request.group, request.queue_id)

    @property
    def weight(self) -> int:
        """Its tags plus its expression, counted in tags."""
        request = self.request
        return len(request.tags) + (0 if request.matcher is None else request.matcher.weight)

    @property
    def leaves_messages(self) -> bool:
        """Whether it may leave new messages for other pops; if not, it takes any message."""
        request = self.request
        return request.queue_id >= 0 or request.is_filtered or request.in_order or not self.is_pop


class PopRequests:
    """Checks requests for popped messages and decides which wait. Owned by the event loop."""

    def __init__(
        self, *, targets: Targets, topics: TopicTable, groups: GroupTable, filters: Filters
    ) -> None:
        self._targets = targets
        self._topics = topics
        self._groups = groups
        self._filters = filters
        self.broker_readable = True

    def pop_request(self, header: PopMessage, caller: Caller) -> PopRequest:
        """Check a pop and return it as a request.

        Raises:
            Fault: The pop is refused.
        """
        topic = self.check(header, caller)
        _check_count(header.max_msg_nums)
        check_invisible(header.invisible_time)
        if len(header.attempt_id or "") > _ATTEMPT_LENGTH_MAX:
            raise InvalidParameter(f"attemptId has more than {_ATTEMPT_LENGTH_MAX} characters")
        return PopRequest(
            topic,
            header.consumer_group,
            header.queue_id,
            count_max=header.max_msg_nums,
            invisible_ms=header.invisible_time,
            tags=_tags(header),
            matcher=self._matcher(header),
            from_end=header.init_mode == _FROM_END,
            priority_factor=self._priority_factor(header.consumer_group),
            in_order=header.order,
            attempt_id=header.attempt_id or "",
        )

    def notification_request(self, header: Notification, caller: Caller) -> PopRequest:
        """Check a notification request and return it as a request.

        Raises:
            Fault: The notification request is refused.
        """
        topic = self.check(header, caller)
        return PopRequest(
            topic,
            header.consumer_group,
            header.queue_id,
            in_order=header.order,
            attempt_id=header.attempt_id or "",
        )

    def peek_request(self, header: PeekMessage, caller: Caller) -> PopRequest:
        """Check a peek and return it as a request.

        Raises:
            Fault: The peek is refused.
        """
        topic = self.check(header, caller)
        _check_count(header.max_msg_nums)
        return PopRequest(
            topic, header.consumer_group, header.queue_id, count_max=header.max_msg_nums
        )

    def decide_pop(
        self, request: PopRequest, popped: PopResult, poll_ms: int
    ) -> PopAnswer | PopHold:
        """Return the answer to a pop, valid once its changes are stored, or a hold."""
        if popped.parts:
            return PopAnswer(ResponseCode.SUCCESS, request, popped)
        if poll_ms <= 0 or popped.is_cut:
            return PopAnswer(ResponseCode.POLLING_TIMEOUT, request)
        return self._hold(request, poll_ms, is_pop=True)

    def decide_notification(
        self, request: PopRequest, poll_ms: int, *, found: bool
    ) -> PopAnswer | PopHold:
        """Return the answer to a notification request, or a hold."""
        if found:
            return PopAnswer(ResponseCode.SUCCESS, request)
        if poll_ms <= 0:
            return PopAnswer(ResponseCode.POLLING_TIMEOUT, request)
        return self._hold(request, poll_ms, is_pop=False)

    def renew(self, hold: PopHold, fresh: Mapping[tuple[str, int], None] | None) -> PopRequest:
        """Return a held request, updated to the current configuration.

        Args:
            hold: The held request.
            fresh: The queues that have new messages; None to read all of them.

        Raises:
            GroupNotExist: The group was deleted.
        """
        request = hold.request
        if hold.is_pop and self._groups.find(request.group) is None:
            raise GroupNotExist(f"the group {request.group!r} was deleted while the pop waited")
        topic = self._topics.find(request.topic.topic_name)
        if topic is not None and topic is not request.topic:
            request = request._replace(topic=topic)  # it may have more queues now
        return request._replace(only=fresh)

    def topics_of(self, request: PopRequest) -> list[str]:
        """Return the topics that a request reads: its own and its retry topics."""
        topic = request.topic.topic_name
        return [topic, *self._targets.retry_topics(topic, request.group)]

    def check(
        self, header: PopMessage | Notification | PeekMessage | PollingInfo, caller: Caller
    ) -> TopicConfig:
        """Check a request in RocketMQ's order; return its topic.

        Raises:
            Fault: The request is refused.
        """
        topic_name, group_name = header.topic, header.consumer_group
        if not self.broker_readable:
            raise NoPermission("this broker is not readable: brokerPermission forbids it")
        topic = self._topics.require(topic_name)
        if not topic.readable:
            raise NoPermission(f"the topic {topic_name} is not readable")
        if not -1 <= header.queue_id < topic.read_queue_nums:
            raise InvalidParameter(
                f"queue {header.queue_id} of the topic {topic_name} cannot be read: "
                f"the topic has {topic.read_queue_nums} read queues"
            )
        check_pop(topic_name, group_name)
        group = self._groups.find(group_name)
        if group is None:
            by = f"{caller.peer_text} cause=pop"
            group = self._groups.find_or_create(group_name, by=by)
        if group is None:
            raise group_not_exist(group_name)
        if not group.consume_enable:
            raise NoPermission(f"the group {group_name} is not allowed to consume")
        if not self._groups.may_read(group_name, topic_name):
            raise NoPermission(f"the group {group_name} is forbidden to read {topic_name}")
        return topic

    def _hold(self, request: PopRequest, poll_ms: int, *, is_pop: bool) -> PopHold:
        seconds = min(poll_ms, _POLL_MS_MAX) / 1000
        return PopHold(request, is_pop, seconds, self.topics_of(request)[1:])

    def _priority_factor(self, group_name: str) -> int:
        group = self._groups.find_or_create(group_name)
        return FACTOR_MAX if group is None else factor_of(group.attributes)

    def _matcher(self, header: PopMessage) -> RecordFilter | None:
        if header.exp_type in (None, "", TAG):
            return None
        return self._filters.check(header.exp_type, header.exp)


def check_invisible(invisible_ms: int) -> None:
    """Check an invisible time.

    Raises:
        InvalidParameter: The time is negative or too long.
    """
    if not 0 <= invisible_ms <= INVISIBLE_MS_MAX:
        raise InvalidParameter(f"invisibleTime must be between 0 and {INVISIBLE_MS_MAX}")


def _check_count(count: int) -> None:
    if not 0 < count <= COUNT_MAX:
        raise InvalidParameter(f"maxMsgNums must be between 1 and {COUNT_MAX}")


def _tags(header: PopMessage) -> frozenset[int]:
    if header.exp_type not in (None, "", TAG):
        return frozenset()
    if len(header.exp or "") > _EXPRESSION_LENGTH_MAX:
        raise SubscriptionParseFailed(
            f"the expression has more than {_EXPRESSION_LENGTH_MAX} characters"
        )
    subscription = parse_tags(header.topic, header.exp, version=0)
    return frozenset() if subscription.takes_all else (subscription.code_set or frozenset())
