"""Requests about popped messages: acknowledge, change the invisible time, query the state.

A change is answered once it is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from rocketpost.broker.own_state import check_pop
from rocketpost.broker.pop.changes import Change
from rocketpost.broker.pop.in_flight import Key
from rocketpost.broker.pop.in_order import OrderService
from rocketpost.broker.pop.receipts import ReceiptService
from rocketpost.broker.pop.requests import check_invisible
from rocketpost.broker.pop.targets import Cursor
from rocketpost.broker.topic import TopicTable
from rocketpost.codec.bodies.pop import decode_batch_ack
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.command import Command
from rocketpost.codec.faults import (
    InvalidParameter,
    MessageIllegal,
    NoMessage,
    ServiceNotAvailable,
)
from rocketpost.codec.headers.pop import (
    IN_RETRY_TOPIC,
    IN_RETRY_TOPIC_V2,
    IN_TOPIC,
    ORDER_QUEUE,
    AckMessage,
    ChangeInvisibleTime,
    ChangeInvisibleTimeResponse,
    GetPopState,
    PopState,
    Receipt,
    parse_receipt,
    real_topic,
)
from rocketpost.errors import RemoteProtocolError
from rocketpost.model.ids import QueueOffset
from rocketpost.server.handlers.replies import fields_reply
from rocketpost.server.popping.recorder import PopRecorder
from rocketpost.server.routes.access import GET, SUB, of_consumer, strict
from rocketpost.server.routes.body_access import BATCH_ACK
from rocketpost.server.routes.pools import PoolKind
from rocketpost.server.routes.route import NO_HEADER, Reply, Route, plain, waiting
from rocketpost.store.message_store import MessageStore
from rocketpost.transport.connection import Connection

_RETRY: Final = {"1": IN_RETRY_TOPIC, "2": IN_RETRY_TOPIC_V2}


class ReceiptHandlers:
    """Serves receipts. Owned by the loop.

    Args:
        receipts: Serves messages popped in any order.
        ordered: Serves messages popped in order.
    """

    def __init__(
        self,
        *,
        receipts: ReceiptService,
        ordered: OrderService,
        recorder: PopRecorder,
        store: MessageStore,
        topics: TopicTable,
    ) -> None:
        self._receipts = receipts
        self._ordered = ordered
        self._recorder = recorder
        self._store = store
        self._topics = topics

    def routes(self) -> Sequence[Route]:
        """Return the routes of this family."""
        return [
            waiting(
                RequestCode.ACK_MESSAGE, AckMessage, of_consumer(SUB), self.ack, PoolKind.MESSAGES
            ),
            waiting(
                RequestCode.BATCH_ACK_MESSAGE,
                NO_HEADER,
                BATCH_ACK,
                self.batch_ack,
                PoolKind.MESSAGES,
            ),
            waiting(
                RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
                ChangeInvisibleTime,
                of_consumer(SUB),
                self.change,
                PoolKind.MESSAGES,
            ),
            plain(RequestCode.GET_POP_STATE, GetPopState, strict(of_consumer(GET)), self.state),
        ]

    async def ack(self, connection: Connection, command: Command, header: AckMessage) -> Reply:
        """Acknowledge a message; answer once that is stored."""
        cursor, receipt = self._named(header)
        if receipt.revive_queue == ORDER_QUEUE:
            change = self._recorder.decide(
                self._ordered, partial(self._ordered.ack, cursor, receipt.pop_ms, header.offset)
            )
        else:
            key = Key(*cursor, receipt.start_offset, receipt.pop_ms)
            change = self._recorder.decide(
                self._receipts, partial(self._receipts.ack, key, [header.offset])
            )
        await self._wait([change])
        return Reply()

    async def batch_ack(self, connection: Connection, command: Command, header: None) -> Reply:
        """Acknowledge messages of several checkpoints; answer once all is stored."""
        try:
            batch = decode_batch_ack(command.body)
            named = [(each, each.offsets) for each in batch.acks]
        except RemoteProtocolError as error:
            raise InvalidParameter(str(error)) from None
        if not any(offsets for _, offsets in named):
            raise NoMessage("the batch acknowledges nothing")
        cursors = []
        for each, _ in named:
            topic = real_topic(_RETRY.get(each.r, IN_TOPIC), each.c, each.t)
            self._topics.require(topic)
            check_pop(topic, each.c)
            cursors.append(Cursor(topic, each.c, each.q))
        changes = []
        for cursor, (each, offsets) in zip(cursors, named, strict=True):
            if each.rq == ORDER_QUEUE:
                ack_all = partial(self._ordered.ack_all, cursor, each.pt, offsets)
                changes.append(self._recorder.decide(self._ordered, ack_all))
            else:
                ack = partial(self._receipts.ack, Key(*cursor, each.so, each.pt), offsets)
                changes.append(self._recorder.decide(self._receipts, ack))
        await self._wait(changes)
        return Reply()

    async def change(
        self, connection: Connection, command: Command, header: ChangeInvisibleTime
    ) -> Reply:
        """Change the invisible time of a message; answer once that is stored."""
        cursor, receipt = self._named(header)
        check_invisible(header.invisible_time)
        if receipt.revive_queue == ORDER_QUEUE:
            ordered = self._recorder.decide(
                self._ordered,
                partial(
                    self._ordered.change_invisible_time,
                    cursor,
                    receipt.pop_ms,
                    header.offset,
                    header.invisible_time,
                ),
            )
            await self._wait([ordered])
            return fields_reply(
                ChangeInvisibleTimeResponse(
                    pop_time=ordered.pop_ms,
                    invisible_time=ordered.invisible_ms,
                    revive_qid=ORDER_QUEUE,
                )
            )
        key = Key(*cursor, receipt.start_offset, receipt.pop_ms)
        changed = self._recorder.decide(
            self._receipts,
            partial(
                self._receipts.change_invisible_time, key, header.offset, header.invisible_time
            ),
        )
        await self._wait([changed])
        return fields_reply(
            ChangeInvisibleTimeResponse(
                pop_time=changed.pop_ms,
                invisible_time=header.invisible_time,
                revive_qid=changed.revive_queue,
            )
        )

    def state(self, connection: Connection, command: Command, header: GetPopState) -> Reply:
        """Return the time until which a message is invisible, 0 if it is not."""
        cursor = Cursor(header.topic, header.consumer_group, header.queue_id)
        until_ms = self._receipts.until_ms(cursor, header.offset)
        if until_ms is None:
            until_ms = self._ordered.until_ms(cursor, header.offset)
        return fields_reply(PopState(until_timestamp=until_ms or 0))

    async def _wait(self, changes: Sequence[Change | None]) -> None:
        """Wait until all changes are stored.

        Raises:
            ServiceNotAvailable: A change is not stored, or may not be.
        """
        await self._recorder.wait(changes)
        for change in changes:
            if change is not None and not change.is_stored:
                raise ServiceNotAvailable(f"not stored: {change.reason}")

    def _named(self, header: AckMessage) -> tuple[Cursor, Receipt]:
        """Return the queue of a receipt, and the decoded receipt.

        Raises:
            TopicNotExist: There is no such topic.
            NoPermission: Only the broker pops there.
            MessageIllegal: There is no such queue.
            NoMessage: The queue has no such message.
            InvalidParameter: The receipt is malformed.
        """
        topic = self._topics.require(header.topic)
        check_pop(header.topic, header.consumer_group)
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
        return Cursor(header.topic, header.consumer_group, header.queue_id), receipt
