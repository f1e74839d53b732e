"""PullMessage and the methods for offsets: consumers that keep their own place in each queue."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from rocketpost.client.message import ReceivedMessage
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.headers.message import PullMessage, PullResponse
from rocketpost.codec.headers.offset import (
    OffsetResponse,
    QueryOffset,
    QueueRequest,
    SearchOffset,
    UpdateOffset,
)
from rocketpost.codec.record import decode_records
from rocketpost.errors import QueryNotFound
from rocketpost.model.route import MessageQueue
from rocketpost.model.sysflag import PULL_SUBSCRIPTION, PULL_SUSPEND
from rocketpost.proxy.backend import CALL_SECONDS, Backend
from rocketpost.proxy.calls import Call, duration_ms
from rocketpost.proxy.delivery import delivered_message
from rocketpost.proxy.refusals import OK, Refusal, status
from rocketpost.proxy.registration import subscription_of
from rocketpost.proxy.settings import ProxyConfig
from rocketpost.proxy.validation import group_name, topic_name
from rocketpost.proxy.wire.enums import Code, QueryOffsetPolicy
from rocketpost.proxy.wire.messages import (
    GetOffsetResponse,
    PullMessageResponse,
    QueryOffsetResponse,
    UpdateOffsetResponse,
    ms_of,
)

Write = Callable[[Any], Awaitable[None]]

COUNT_MAX: Final = 32
_CODES: Final = {
    int(ResponseCode.SUCCESS): Code.OK,
    int(ResponseCode.PULL_NOT_FOUND): Code.MESSAGE_NOT_FOUND,
    int(ResponseCode.PULL_RETRY_IMMEDIATELY): Code.MESSAGE_NOT_FOUND,
    int(ResponseCode.PULL_OFFSET_MOVED): Code.ILLEGAL_OFFSET,
}


class OffsetMethods:
    """Serves consumers that pull. Belongs to the event loop."""

    def __init__(self, backend: Backend, config: ProxyConfig) -> None:
        self._backend = backend
        self._config = config

    async def pull(self, call: Call, request: Any, write: Write) -> None:
        """Write the messages from an offset on, and the offset at which to continue."""
        queue, group = await self._queue(request.message_queue), group_name(request.group)
        subscription = subscription_of(queue.topic, request.filter_expression)
        wait_ms = self._wait_ms(call, request)
        header = PullMessage(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=_offset(request.offset),
            max_msg_nums=min(max(request.batch_size, 1), COUNT_MAX),
            sys_flag=PULL_SUBSCRIPTION | (PULL_SUSPEND if wait_ms else 0),
            suspend_timeout_millis=wait_ms,
            subscription=subscription.sub_string,
            expression_type=subscription.expression_type,
        )
        answer = await call.client.link.call(
            queue.broker_name,
            RequestCode.PULL_MESSAGE,
            header,
            timeout=wait_ms / 1000 + CALL_SECONDS,
            accept=frozenset(_CODES),
        )
        head = answer.read(PullResponse)
        tags = subscription.tags_set if subscription.is_tag else None
        received = [
            each
            for each in (ReceivedMessage(record, queue) for record in decode_records(answer.body))
            if not tags or each.tags in tags
        ]
        code = _CODES[answer.code]
        if code == Code.OK and not received:
            code = Code.MESSAGE_NOT_FOUND
        await write(PullMessageResponse(status=status(code, answer.remark or "")))
        for each in received:
            message = delivered_message(each, request.message_queue.topic)
            await write(PullMessageResponse(message=message))
        await write(PullMessageResponse(next_offset=head.next_begin_offset))

    async def update(self, call: Call, request: Any) -> Any:
        """Store the offset of a group."""
        queue, group = await self._queue(request.message_queue), group_name(request.group)
        header = UpdateOffset(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            commit_offset=_offset(request.offset),
        )
        await call.client.link.call(queue.broker_name, RequestCode.UPDATE_CONSUMER_OFFSET, header)
        return UpdateOffsetResponse(status=OK)

    async def get(self, call: Call, request: Any) -> Any:
        """Return the stored offset of a group."""
        queue, group = await self._queue(request.message_queue), group_name(request.group)
        header = QueryOffset(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            set_zero_if_not_found=False,
        )
        try:
            answer = await call.client.link.call(
                queue.broker_name, RequestCode.QUERY_CONSUMER_OFFSET, header
            )
        except QueryNotFound as error:
            raise Refusal(Code.OFFSET_NOT_FOUND, error.remark) from None
        return GetOffsetResponse(status=OK, offset=answer.read(OffsetResponse).offset)

    async def query(self, call: Call, request: Any) -> Any:
        """Return the offset at the beginning or end of a queue, or at a time."""
        queue = await self._queue(request.message_queue)
        code, header = _question(request, queue)
        answer = await call.client.link.call(queue.broker_name, code, header)
        return QueryOffsetResponse(status=OK, offset=answer.read(OffsetResponse).offset)

    async def _queue(self, asked: Any) -> MessageQueue:
        topic = topic_name(asked.topic)
        route = await self._backend.route(topic)
        counts = {each.broker_name: each.read_queue_nums for each in route.queue_datas}
        broker = asked.broker.name
        if broker not in counts or not 0 <= asked.id < counts[broker]:
            raise Refusal(
                Code.BAD_REQUEST, f"the topic {topic} has no queue {asked.id} at {broker[:99]!r}"
            )
        return MessageQueue(broker, asked.id, topic)

    def _wait_ms(self, call: Call, request: Any) -> int:
        wait_ms = duration_ms(request, "long_polling_timeout") or 0
        left = call.seconds_left
        if left is not None:
            wait_ms = min(wait_ms, round(left * 1000) - self._config.answer_ms)
        return min(max(wait_ms, 0), self._config.poll_ms_max)


def failed_answers(code: Any) -> list[Any]:
    """Return the answer of a pull that failed."""
    return [PullMessageResponse(status=code)]


def _offset(offset: int) -> int:
    if offset < 0:
        raise Refusal(Code.ILLEGAL_OFFSET, f"the offset {offset} is below 0")
    return offset


def _question(request: Any, queue: MessageQueue) -> tuple[RequestCode, Any]:
    policy = request.query_offset_policy
    if policy == QueryOffsetPolicy.TIMESTAMP:
        if not request.HasField("timestamp"):
            raise Refusal(Code.BAD_REQUEST, "the policy TIMESTAMP needs a timestamp")
        at_ms = min(max(ms_of(request.timestamp), 0), 2**62)
        header = SearchOffset(topic=queue.topic, queue_id=queue.queue_id, timestamp=at_ms)
        return RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header
    codes = {
        int(QueryOffsetPolicy.BEGINNING): RequestCode.GET_MIN_OFFSET,
        int(QueryOffsetPolicy.END): RequestCode.GET_MAX_OFFSET,
    }
    if policy not in codes:
        raise Refusal(Code.BAD_REQUEST, f"the policy {policy} is unknown")
    return codes[policy], QueueRequest(topic=queue.topic, queue_id=queue.queue_id)
