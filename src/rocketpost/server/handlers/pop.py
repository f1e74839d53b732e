"""Requests of popping: pop, acknowledge, give more time, peek, ask whether there is something."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from rocketpost.broker.filters import Filters
from rocketpost.broker.group import GroupTable
from rocketpost.broker.pop import COUNT_MAX, Part, Popped, PopService, Wish
from rocketpost.broker.pop_flight import Key, Stored, has_failed
from rocketpost.broker.pop_receipts import ReceiptService
from rocketpost.broker.record_filter import RecordFilter
from rocketpost.broker.stats import BrokerStats
from rocketpost.broker.topic import TopicTable
from rocketpost.codec.bodies.pop import decode_batch_ack
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.command import ONEWAY, Command, encode_response, to_fields
from rocketpost.codec.faults import (
    GroupNotExist,
    InvalidParameter,
    MessageIllegal,
    NoMessage,
    NoPermission,
    ServiceNotAvailable,
    SubscriptionParseFailed,
)
from rocketpost.codec.headers.pop import (
    IN_RETRY_TOPIC,
    IN_RETRY_TOPIC_V2,
    IN_TOPIC,
    ORDER_QUEUE,
    AckMessage,
    ChangedInvisibleTime,
    ChangeInvisibleTime,
    Notification,
    PeekMessage,
    PollingInfo,
    PopMessage,
    PopResponse,
    Receipt,
    offsets_text,
    parse_receipt,
    real_topic,
    start_offsets_text,
)
from rocketpost.codec.properties import PROPERTIES_BYTES_MAX, encode_properties
from rocketpost.codec.record import decode_record, encode_record
from rocketpost.errors import RemoteProtocolError, StoreError
from rocketpost.model import properties as names
from rocketpost.model.group import TAG, parse_tags
from rocketpost.model.ids import QueueOffset
from rocketpost.model.topic import TopicConfig
from rocketpost.server.dispatch import Dispatcher, Reply, refusal
from rocketpost.server.handlers.pull import PullRules
from rocketpost.server.pop_hold import PER_QUEUE_MAX, Place, PopHolds, Waiting
from rocketpost.store.draft import Appended
from rocketpost.store.message_store import MessageStore
from rocketpost.transport.connection import Buffer, Connection

INVISIBLE_MS_MAX: Final = 3 * 24 * 3600 * 1000
"""Longer than that the log does not promise to keep what was handed out."""
_POLL_MS_MAX: Final = 120_000
_EXPRESSION_LENGTH_MAX: Final = 64 * 1024
_FROM_END: Final = 1
_RETRY: Final = {"1": IN_RETRY_TOPIC, "2": IN_RETRY_TOPIC_V2}


class _Asked(NamedTuple):
    """A pop or a notification, as it waits."""

    command: Command
    wish: Wish
    is_pop: bool


class PopHandlers:
    """Serves popping. Owned by the loop.

    Args:
        rules: Returns the rules in force.
    """

    def __init__(
        self,
        *,
        service: PopService,
        receipts: ReceiptService,
        store: MessageStore,
        topics: TopicTable,
        groups: GroupTable,
        filters: Filters,
        stats: BrokerStats,
        broker_name: str,
        rules: Callable[[], PullRules],
    ) -> None:
        self._service = service
        self._receipts = receipts
        self._store = store
        self._topics = topics
        self._groups = groups
        self._filters = filters
        self._stats = stats
        self._broker_name = broker_name
        self._rules = rules
        self._holds = PopHolds[_Asked](retry=self._try_again, time_over=self._time_over)

    def register(self, dispatcher: Dispatcher) -> None:
        """Serve every request of this family."""
        dispatcher.on(RequestCode.POP_MESSAGE, self.pop)
        dispatcher.on(RequestCode.NOTIFICATION, self.notify)
        dispatcher.on(RequestCode.PEEK_MESSAGE, self.peek)
        dispatcher.on(RequestCode.POLLING_INFO, self.polling_info)
        dispatcher.on_async(RequestCode.ACK_MESSAGE, self.ack)
        dispatcher.on_async(RequestCode.BATCH_ACK_MESSAGE, self.batch_ack)
        dispatcher.on_async(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, self.change)

    @property
    def held(self) -> int:
        """How many pops wait."""
        return len(self._holds)

    def arrived(self, messages: list[Appended]) -> None:
        """Offer messages to the pops that wait for them."""
        self._holds.arrived(messages)

    def wake(self, topic: str, queue_id: int) -> None:
        """Have waiting pops of a topic look again: their group is to go on elsewhere."""
        self._holds.offer(topic)

    def connection_lost(self, connection: Connection) -> None:
        """Forget the pops of a connection that is gone."""
        self._holds.drop(connection)

    def close(self) -> None:
        """Answer every pop that waits."""
        self._holds.close()

    # Popping.

    def pop(self, connection: Connection, command: Command) -> None:
        """Answer a pop when what it takes is stored, or hold it."""
        header = command.read(PopMessage)
        topic = self._check(header.topic, header.consumer_group, header.queue_id)
        if not 0 < header.max_msg_nums <= COUNT_MAX:
            raise InvalidParameter(f"maxMsgNums must be between 1 and {COUNT_MAX}")
        _check_invisible(header.invisible_time)
        if header.order:
            raise NoPermission("popping in order is not supported by this broker")
        wish = Wish(
            topic,
            header.consumer_group,
            header.queue_id,
            count_max=header.max_msg_nums,
            invisible_ms=header.invisible_time,
            tags=_tags(header),
            judge=self._judge(header),
            from_end=header.init_mode == _FROM_END,
        )
        popped = self._pop(wish)
        if popped.parts:
            self._answer_when_stored(connection.answer, connection, command, wish, popped)
        elif header.poll_time <= 0 or popped.is_cut:
            _answer(connection.answer, command, Reply(ResponseCode.POLLING_TIMEOUT))
        else:
            self._hold(connection, _Asked(command, wish, is_pop=True), header.poll_time)

    def notify(self, connection: Connection, command: Command) -> None:
        """Answer as soon as a pop might find something."""
        header = command.read(Notification)
        topic = self._check(header.topic, header.consumer_group, header.queue_id)
        wish = Wish(topic, header.consumer_group, header.queue_id)
        if header.poll_time <= 0 or self._service.has_message(wish):
            found = self._service.has_message(wish)
            _answer(connection.answer, command, _notified(found=found))
        else:
            self._hold(connection, _Asked(command, wish, is_pop=False), header.poll_time)

    def peek(self, connection: Connection, command: Command) -> Reply:
        """Return what a pop would take, without taking it."""
        header = command.read(PeekMessage)
        topic = self._check(header.topic, header.consumer_group, header.queue_id)
        if not 0 < header.max_msg_nums <= COUNT_MAX:
            raise InvalidParameter(f"maxMsgNums must be between 1 and {COUNT_MAX}")
        wish = Wish(topic, header.consumer_group, header.queue_id, count_max=header.max_msg_nums)
        views, rest = self._service.peek(wish)
        head = PopResponse(pop_time=0, invisible_time=0, revive_qid=0, rest_num=rest)
        code = ResponseCode.SUCCESS if views else ResponseCode.PULL_NOT_FOUND
        return Reply(code, fields=to_fields(head), body=list[Buffer](views))

    def polling_info(self, connection: Connection, command: Command) -> Reply:
        """Return how many pops wait in one place."""
        header = command.read(PollingInfo)
        self._check(header.topic, header.consumer_group, header.queue_id)
        place = Place(header.topic, header.consumer_group, header.queue_id)
        return Reply(fields={"pollingNum": str(self._holds.count(place))})

    # Receipts.

    async def ack(self, connection: Connection, command: Command) -> Reply:
        """Acknowledge a message; answered when that is stored."""
        header = command.read(AckMessage)
        key = self._key(header)
        await _wait([self._receipts.ack(key, [header.offset])])
        return Reply()

    async def batch_ack(self, connection: Connection, command: Command) -> Reply:
        """Acknowledge messages of several checkpoints; answered when all that is stored."""
        try:
            batch = decode_batch_ack(command.body)
            named = [(each, each.offsets) for each in batch.acks]
        except RemoteProtocolError as error:
            raise InvalidParameter(str(error)) from None
        if not any(offsets for _, offsets in named):
            raise NoMessage("the batch acknowledges nothing")
        keys = []
        for each, _ in named:
            if each.rq == ORDER_QUEUE:
                raise NoPermission("popping in order is not supported by this broker")
            topic = real_topic(_RETRY.get(each.r, IN_TOPIC), each.c, each.t)
            self._topics.require(topic)
            keys.append(Key(topic, each.c, each.q, each.so, each.pt))
        storing = [
            self._receipts.ack(key, offsets) for key, (_, offsets) in zip(keys, named, strict=True)
        ]
        await _wait(storing)
        return Reply()

    async def change(self, connection: Connection, command: Command) -> Reply:
        """Give a message more or less time; answered when that is stored."""
        header = command.read(ChangeInvisibleTime)
        key = self._key(header)
        _check_invisible(header.invisible_time)
        changed = self._receipts.change(key, header.offset, header.invisible_time)
        await _wait([changed.stored])
        head = ChangedInvisibleTime(
            pop_time=changed.pop_ms,
            invisible_time=header.invisible_time,
            revive_qid=changed.revive_queue,
        )
        return Reply(fields=to_fields(head))

    def _key(self, header: AckMessage) -> Key:
        topic = self._topics.require(header.topic)
        if not 0 <= header.queue_id < topic.read_queue_nums:
            raise MessageIllegal(f"queue {header.queue_id} of {header.topic} does not exist")
        queue = self._store.queue(header.topic, header.queue_id)
        first, end = (queue.first, queue.end) if queue else (QueueOffset(0), QueueOffset(0))
        if not first <= header.offset <= end:
            raise NoMessage(f"offset {header.offset} is outside [{first}, {end}]")
        try:
            receipt = parse_receipt(header.extra_info)
        except RemoteProtocolError as error:
            raise InvalidParameter(str(error)) from None
        if receipt.revive_queue == ORDER_QUEUE:
            raise NoPermission("popping in order is not supported by this broker")
        group, queue_id = header.consumer_group, header.queue_id
        return Key(header.topic, group, queue_id, receipt.start_offset, receipt.pop_ms)

    # Checks, in RocketMQ's order.

    def _check(self, topic_name: str, group_name: str, queue_id: int) -> TopicConfig:
        if not self._rules().broker_readable:
            raise NoPermission("this broker is not readable: brokerPermission forbids it")
        topic = self._topics.require(topic_name)
        if not topic.readable:
            raise NoPermission(f"the topic {topic_name} is not readable")
        if not -1 <= queue_id < topic.read_queue_nums:
            raise InvalidParameter(
                f"queue {queue_id} of the topic {topic_name} cannot be read: "
                f"it has {topic.read_queue_nums} read queues"
            )
        group = self._groups.find_or_create(group_name)
        if group is None:
            raise GroupNotExist(f"the group {group_name} does not exist on this broker")
        if not group.consume_enable:
            raise NoPermission(f"the group {group_name} is not allowed to consume")
        if not self._groups.may_read(group_name, topic_name):
            raise NoPermission(f"the group {group_name} is forbidden to read {topic_name}")
        return topic

    def _judge(self, header: PopMessage) -> RecordFilter | None:
        if header.exp_type in (None, "", TAG):
            return None
        return self._filters.check(header.exp_type, header.exp)

    # Waiting and answering.

    def _pop(self, wish: Wish) -> Popped:
        try:
            return self._service.pop(wish)
        except StoreError as error:
            raise ServiceNotAvailable(str(error)) from error

    def _hold(self, connection: Connection, asked: _Asked, poll_ms: int) -> None:
        wish = asked.wish
        place = Place(wish.topic.topic_name, wish.group, wish.queue_id)
        is_full = len(self._holds) >= self._rules().held_max
        if is_full or self._holds.count(place) >= PER_QUEUE_MAX:
            full = Reply(ResponseCode.POLLING_FULL) if asked.is_pop else _notified(full=True)
            _answer(connection.answer, asked.command, full)
            return
        asked.command.body = b""
        asked.command.raw_fields = msgspec.Raw(b"")
        asked.command.text_fields = {}
        connection.no_answer()
        is_picky = bool(wish.tags) or wish.judge is not None
        is_modest = wish.queue_id >= 0 or is_picky or not asked.is_pop
        self._holds.park(
            Waiting(connection, place, asked, is_modest=is_modest),
            retry_topic=self._service.retry_topic(place.topic, place.group),
            seconds=min(poll_ms, _POLL_MS_MAX) / 1000,
        )

    def _try_again(self, waiting: Waiting[_Asked]) -> bool:
        connection: Connection = waiting.connection
        command, wish, is_pop = waiting.payload
        try:
            if not is_pop:
                found = self._service.has_message(wish)
                if found:
                    _answer(connection.send, command, _notified(found=True))
                return found
            popped = self._pop(wish)
            if popped.parts:
                self._answer_when_stored(connection.send, connection, command, wish, popped)
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
        wish: Wish,
        popped: Popped,
    ) -> None:
        storing = [part.stored for part in popped.parts]

        def stored(_: object) -> None:
            if not all(each.done() for each in storing):
                return
            try:
                reply = self._reply(wish, popped)
            except Exception as error:
                reply = refusal(connection, command, error)
            _answer(send, command, reply)

        # There is one log: the newest is known last.
        storing[-1].add_done_callback(stored)

    def _reply(self, wish: Wish, popped: Popped) -> Reply:
        parts = [part for part in popped.parts if not has_failed(part.stored)]
        if not parts:
            raise ServiceNotAvailable("what was popped could not be noted; try again later")
        body: list[Buffer] = []
        for part in parts:
            if part.retry == IN_TOPIC:
                body += part.views
            else:
                for offset, view in zip(part.offsets, part.views, strict=True):
                    body += self._as_in_topic(wish, popped, part, offset, view)
        self._stats.got(
            wish.topic.topic_name,
            wish.group,
            sum(len(part.offsets) for part in parts),
            sum(map(len, body)),
        )
        head = PopResponse(
            pop_time=popped.pop_ms,
            invisible_time=popped.invisible_ms,
            revive_qid=popped.revive_queue,
            rest_num=popped.rest_count,
            start_offset_info=start_offsets_text(
                (part.retry, part.queue_id, part.start_offset) for part in parts
            ),
            msg_offset_info=offsets_text(
                (part.retry, part.queue_id, part.offsets) for part in parts
            ),
            order_count_info="",
        )
        return Reply(fields=to_fields(head), body=body)

    def _as_in_topic(
        self, wish: Wish, popped: Popped, part: Part, offset: int, view: memoryview
    ) -> list[Buffer]:
        """Return a message of a retry topic as one of its own topic, with its receipt in it."""
        receipt = Receipt(
            part.start_offset,
            popped.pop_ms,
            popped.invisible_ms,
            popped.revive_queue,
            IN_RETRY_TOPIC,
            self._broker_name,
            part.queue_id,
            offset,
        )
        record = decode_record(view, verify_crc=False)
        properties = encode_properties(record.properties | {names.POP_CK: str(receipt)})
        if len(properties) > PROPERTIES_BYTES_MAX:
            return [view]  # clients make the receipt from the header then
        topic = wish.topic.topic_name
        changed = msgspec.structs.replace(record, topic=topic, properties_bytes=properties)
        return list[Buffer](encode_record(changed))


def _tags(header: PopMessage) -> frozenset[int]:
    if header.exp_type not in (None, "", TAG):
        return frozenset()
    if len(header.exp or "") > _EXPRESSION_LENGTH_MAX:
        raise SubscriptionParseFailed(
            f"the expression has more than {_EXPRESSION_LENGTH_MAX} characters"
        )
    subscription = parse_tags(header.topic, header.exp, version=0)
    return frozenset() if subscription.takes_all else (subscription.code_set or frozenset())


def _check_invisible(invisible_ms: int) -> None:
    if not 0 <= invisible_ms <= INVISIBLE_MS_MAX:
        raise InvalidParameter(f"invisibleTime must be between 0 and {INVISIBLE_MS_MAX}")


def _notified(*, found: bool = False, full: bool = False) -> Reply:
    def text(is_so: bool) -> str:
        return "true" if is_so else "false"

    return Reply(fields={"hasMsg": text(found), "pollingFull": text(full)})


async def _wait(storing: list[Stored | None]) -> None:
    """Return when everything is stored.

    Raises:
        ServiceNotAvailable: Something is not, or may not be.
    """
    futures: list[Any] = [each for each in storing if each is not None]
    if not futures:
        return
    await asyncio.wait(set(futures))
    for future in futures:
        if has_failed(future):
            raise ServiceNotAvailable(f"not stored: {future.exception()}")


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
