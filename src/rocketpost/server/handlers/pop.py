"""Requests for messages that are popped: pop, peek, ask whether there is something.

A pop that finds nothing waits until something arrives, comes again or is let go of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeVar

import msgspec

from rocketpost.broker.filter.filters import Filters
from rocketpost.broker.filter.matching import RecordFilter
from rocketpost.broker.group.table import GroupTable, group_not_exist
from rocketpost.broker.own_state import check_pop
from rocketpost.broker.pop.in_order import OrderService
from rocketpost.broker.pop.service import Popped, PopService
from rocketpost.broker.pop.targets import COUNT_MAX, PopRequest, Targets
from rocketpost.broker.priority import FACTOR_MAX, factor_of
from rocketpost.broker.steps import Steps
from rocketpost.broker.topic import TopicTable
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.command import ONEWAY, Command, encode_response, to_fields
from rocketpost.codec.faults import (
    GroupNotExist,
    InvalidParameter,
    NoPermission,
    ServiceNotAvailable,
    SubscriptionParseFailed,
)
from rocketpost.codec.headers.pop import (
    Notification,
    PeekMessage,
    PollingInfo,
    PopMessage,
    PopResponse,
)
from rocketpost.errors import StoreError
from rocketpost.model.group import TAG, parse_tags
from rocketpost.model.topic import TopicConfig
from rocketpost.server.access import GET, SUB, of_consumer
from rocketpost.server.dispatch import refusal
from rocketpost.server.features.pop_hold import Fresh, Place, PopHolds, Waiting
from rocketpost.server.features.pop_recorder import PopRecorder
from rocketpost.server.handlers.pop_replies import PopReplies
from rocketpost.server.handlers.receipts import check_invisible
from rocketpost.server.route import Reply, Route, plain, sliced
from rocketpost.server.settings.limits import share
from rocketpost.store.draft import Appended
from rocketpost.transport.connection import Buffer, Connection
from rocketpost.transport.turns import Turns

T = TypeVar("T")

HELD_WEIGHT_MAX: Final = 1_000_000
"""Tags, and expressions in their measure, of all pops that wait."""
_POLL_MS_MAX: Final = 120_000
_EXPRESSION_LENGTH_MAX: Final = 64 * 1024
_ATTEMPT_LENGTH_MAX: Final = 256
_FROM_END: Final = 1


class PopRules(NamedTuple):
    """Rules for pops."""

    broker_readable: bool = True
    held_max: int = 100_000
    """Pops that may wait, in all."""
    held_in_place_max: int = 1024
    """Pops that may wait for one queue, or for all queues of a topic, in one group."""
    held_of_one_max: int = 16_384
    """Pops that may wait of one connection."""


class _Asked(NamedTuple):
    """A pop or a notification, as it waits."""

    command: Command
    request: PopRequest
    is_pop: bool


class PopHandlers:
    """Serves pops and those that ask for news. Owned by the loop."""

    def __init__(
        self,
        *,
        service: PopService,
        ordered: OrderService,
        targets: Targets,
        topics: TopicTable,
        groups: GroupTable,
        filters: Filters,
        recorder: PopRecorder,
        replies: PopReplies,
        turns: Turns | None = None,
    ) -> None:
        self._service = service
        self._ordered = ordered
        self._targets = targets
        self._topics = topics
        self._groups = groups
        self._filters = filters
        self._recorder = recorder
        self._replies = replies
        self.rules = PopRules()
        self._holds = PopHolds[_Asked](
            retry=self._try_again, time_over=self._time_over, turns=turns
        )

    def routes(self) -> Sequence[Route]:
        """Return the routes of this family."""
        return [
            sliced(RequestCode.POP_MESSAGE, PopMessage, of_consumer(SUB), self.pop),
            sliced(RequestCode.NOTIFICATION, Notification, of_consumer(SUB), self.notify),
            sliced(RequestCode.PEEK_MESSAGE, PeekMessage, of_consumer(SUB), self.peek),
            plain(RequestCode.POLLING_INFO, PollingInfo, of_consumer(GET), self.polling_info),
        ]

    @property
    def held(self) -> int:
        """Number of waiting pops."""
        return len(self._holds)

    def arrived(self, messages: list[Appended]) -> None:
        """Offer messages to the pops that wait for them."""
        self._holds.arrived(messages)

    def wake(self, topic: str, queue_id: int) -> None:
        """Have waiting pops look at a queue again: there may be something for them now."""
        self._holds.offer(topic, queue_id)

    def connection_lost(self, connection: Connection) -> None:
        """Forget the pops of a connection that is gone."""
        self._holds.drop(connection)

    def close(self) -> None:
        """Answer every pop that waits."""
        self._holds.close()

    # Popping.

    def pop(self, connection: Connection, command: Command, header: PopMessage) -> Steps[None]:
        """Answer a pop when what it takes is stored, or hold it."""
        topic = self._check(connection, header.topic, header.consumer_group, header.queue_id)
        if not 0 < header.max_msg_nums <= COUNT_MAX:
            raise InvalidParameter(f"maxMsgNums must be between 1 and {COUNT_MAX}")
        check_invisible(header.invisible_time)
        if len(header.attempt_id or "") > _ATTEMPT_LENGTH_MAX:
            raise InvalidParameter(f"attemptId has more than {_ATTEMPT_LENGTH_MAX} characters")
        request = PopRequest(
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
        popped = yield from self._look(self._pop, request, lambda each: bool(each.parts))
        if popped.parts:
            self._answer_when_stored(connection.answer, connection, command, request, popped)
        elif header.poll_time <= 0 or popped.is_cut:
            _answer(connection.answer, command, Reply(ResponseCode.POLLING_TIMEOUT))
        else:
            self._hold(connection, _Asked(command, request, is_pop=True), header.poll_time)

    def notify(self, connection: Connection, command: Command, header: Notification) -> Steps[None]:
        """Answer as soon as a pop might find something."""
        topic = self._check(connection, header.topic, header.consumer_group, header.queue_id)
        request = PopRequest(
            topic,
            header.consumer_group,
            header.queue_id,
            in_order=header.order,
            attempt_id=header.attempt_id or "",
        )
        found = yield from self._look(self._has_message, request, bool)
        if header.poll_time <= 0 or found:
            _answer(connection.answer, command, _notified(found=found))
        else:
            self._hold(connection, _Asked(command, request, is_pop=False), header.poll_time)

    def peek(self, connection: Connection, command: Command, header: PeekMessage) -> Steps[Reply]:
        """Return what a pop would take, without taking it."""
        topic = self._check(connection, header.topic, header.consumer_group, header.queue_id)
        if not 0 < header.max_msg_nums <= COUNT_MAX:
            raise InvalidParameter(f"maxMsgNums must be between 1 and {COUNT_MAX}")
        request = PopRequest(
            topic, header.consumer_group, header.queue_id, count_max=header.max_msg_nums
        )
        views, rest = yield from self._service.peek(request)
        head = PopResponse(pop_time=0, invisible_time=0, revive_qid=0, rest_num=rest)
        code = ResponseCode.SUCCESS if views else ResponseCode.PULL_NOT_FOUND
        return Reply(code, fields=to_fields(head), body=list[Buffer](views))

    def polling_info(self, connection: Connection, command: Command, header: PollingInfo) -> Reply:
        """Return how many pops wait in one place."""
        self._check(connection, header.topic, header.consumer_group, header.queue_id)
        place = Place(header.topic, header.consumer_group, header.queue_id)
        return Reply(fields={"pollingNum": str(self._holds.count(place))})

    # Checks, in RocketMQ's order.

    def _check(
        self, connection: Connection, topic_name: str, group_name: str, queue_id: int
    ) -> TopicConfig:
        if not self.rules.broker_readable:
            raise NoPermission("this broker is not readable: brokerPermission forbids it")
        topic = self._topics.require(topic_name)
        if not topic.readable:
            raise NoPermission(f"the topic {topic_name} is not readable")
        if not -1 <= queue_id < topic.read_queue_nums:
            raise InvalidParameter(
                f"queue {queue_id} of the topic {topic_name} cannot be read: "
                f"it has {topic.read_queue_nums} read queues"
            )
        check_pop(topic_name, group_name)
        group = self._groups.find(group_name)
        if group is None:
            by = f"{connection.peer_text} cause=pop"
            group = self._groups.find_or_create(group_name, by=by)
        if group is None:
            raise group_not_exist(group_name)
        if not group.consume_enable:
            raise NoPermission(f"the group {group_name} is not allowed to consume")
        if not self._groups.may_read(group_name, topic_name):
            raise NoPermission(f"the group {group_name} is forbidden to read {topic_name}")
        return topic

    def _priority_factor(self, group_name: str) -> int:
        group = self._groups.find_or_create(group_name)
        return FACTOR_MAX if group is None else factor_of(group.attributes)

    def _matcher(self, header: PopMessage) -> RecordFilter | None:
        if header.exp_type in (None, "", TAG):
            return None
        return self._filters.check(header.exp_type, header.exp)

    # Waiting and answering.

    def _look(
        self,
        look: Callable[[PopRequest], Steps[T]],
        request: PopRequest,
        is_found: Callable[[T], bool],
    ) -> Steps[T]:
        """Look for messages; those that arrive during the look count as well."""
        steps = look(request)
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        topic = request.topic.topic_name
        retry_topics = self._targets.retry_topics(topic, request.group)
        with self._holds.looking([topic, *retry_topics]) as fresh:
            result = yield from steps
        if fresh and not is_found(result):
            result = yield from self._look(look, request._replace(only=fresh), is_found)
        return result

    def _pop(self, request: PopRequest) -> Steps[Popped]:
        service = self._ordered if request.in_order else self._service
        try:
            return (yield from self._recorder.run(service, service.pop_steps(request)))
        except StoreError as error:
            raise ServiceNotAvailable(str(error)) from error

    def _has_message(self, request: PopRequest) -> Steps[bool]:
        return (self._ordered if request.in_order else self._service).has_message(request)

    def _hold(self, connection: Connection, asked: _Asked, poll_ms: int) -> None:
        request = asked.request
        place = Place(request.topic.topic_name, request.group, request.queue_id)
        weight = len(request.tags) + (0 if request.matcher is None else request.matcher.weight)
        if self._is_full(connection, place, weight):
            full = Reply(ResponseCode.POLLING_FULL) if asked.is_pop else _notified(full=True)
            _answer(connection.answer, asked.command, full)
            return
        asked.command.body = b""
        asked.command.raw_fields = msgspec.Raw(b"")
        asked.command.text_fields = {}
        connection.no_answer()
        # Whoever takes anything has taken it all; the others leave something for the next.
        is_modest = (
            request.queue_id >= 0 or request.is_picky or request.in_order or not asked.is_pop
        )
        self._holds.park(
            Waiting(connection, place, asked, is_modest=is_modest, weight=weight),
            retry_topics=self._targets.retry_topics(place.topic, place.group),
            seconds=min(poll_ms, _POLL_MS_MAX) / 1000,
        )

    def _is_full(self, connection: Connection, place: Place, weight: int) -> bool:
        holds, rules = self._holds, self.rules
        of_one_max = share(len(holds), rules.held_max, rules.held_of_one_max)
        weight_max = share(holds.weight, HELD_WEIGHT_MAX, HELD_WEIGHT_MAX)
        return (
            holds.count(place) >= rules.held_in_place_max
            or holds.count_of(connection) >= of_one_max
            or bool(weight and holds.weight_of(connection) + weight > weight_max)
        )

    def _try_again(self, waiting: Waiting[_Asked], fresh: Fresh) -> Steps[bool]:
        connection: Connection = waiting.connection
        command, request, is_pop = waiting.payload
        topic = self._topics.find(request.topic.topic_name)
        if topic is not None and topic is not request.topic:
            request = request._replace(topic=topic)  # it may have got more queues meanwhile
        if self._service.unacked_max is None:  # else acks make room in any queue, and tell nobody
            request = request._replace(only=fresh)
        try:
            if not is_pop:
                found = yield from self._look(self._has_message, request, bool)
                if found:
                    _answer(connection.send, command, _notified(found=True))
                return found
            if self._groups.find(request.group) is None:
                raise GroupNotExist(f"the group {request.group!r} was deleted meanwhile")
            popped = yield from self._look(self._pop, request, lambda each: bool(each.parts))
            if popped.parts:
                self._answer_when_stored(connection.send, connection, command, request, popped)
            elif popped.is_cut:
                _answer(connection.send, command, Reply(ResponseCode.POLLING_TIMEOUT))
            return bool(popped.parts) or popped.is_cut
        except Exception as error:
            # An arrival woke it: what goes wrong here must not fail the send that arrived.
            _answer(connection.send, command, refusal(connection, command, error))
            return True

    def _time_over(self, waiting: Waiting[_Asked]) -> None:
        timed_out = Reply(ResponseCode.POLLING_TIMEOUT)
        reply = timed_out if waiting.payload.is_pop else _notified()
        _answer(waiting.connection.send, waiting.payload.command, reply)

    def _answer_when_stored(
        self,
        send: Callable[..., None],
        connection: Connection,
        command: Command,
        request: PopRequest,
        popped: Popped,
    ) -> None:
        def stored() -> None:
            try:
                reply = self._replies.reply(request, popped)
            except Exception as error:
                reply = refusal(connection, command, error)
            _answer(send, command, reply)

        # There is one log: the newest is known last.
        self._recorder.when_settled(popped.parts[-1].change, stored)


def _tags(header: PopMessage) -> frozenset[int]:
    if header.exp_type not in (None, "", TAG):
        return frozenset()
    if len(header.exp or "") > _EXPRESSION_LENGTH_MAX:
        raise SubscriptionParseFailed(
            f"the expression has more than {_EXPRESSION_LENGTH_MAX} characters"
        )
    subscription = parse_tags(header.topic, header.exp, version=0)
    return frozenset() if subscription.takes_all else (subscription.code_set or frozenset())


def _notified(*, found: bool = False, full: bool = False) -> Reply:
    def text(is_so: bool) -> str:
        return "true" if is_so else "false"

    return Reply(fields={"hasMsg": text(found), "pollingFull": text(full)})


def _answer(send: Callable[..., None], command: Command, reply: Reply) -> None:
    if command.flag & ONEWAY:
        return
    buffers: list[Buffer] = reply.body if isinstance(reply.body, list) else []
    head = encode_response(
        command,
        reply.code,
        remark=reply.remark,
        fields=reply.fields,
        body_bytes=sum(map(len, buffers)),
    )
    send(head, *buffers)
