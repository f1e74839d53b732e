"""ReceiveMessage: messages for push and simple consumers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, NamedTuple

from rocketpost.client.consumer.pop_calls import PoppedMessage
from rocketpost.codec.headers.pop import PopMessage
from rocketpost.errors import ConnectionLost, RemoteProtocolError, RocketpostError
from rocketpost.model.group import Subscription
from rocketpost.proxy.backend import Backend, Link
from rocketpost.proxy.calls import Call, duration_ms
from rocketpost.proxy.client_settings import max_attempts
from rocketpost.proxy.delivery import delivered_message
from rocketpost.proxy.handles import ReceiptHandle
from rocketpost.proxy.popped import Taken, acknowledge, give_up, pop
from rocketpost.proxy.refusals import OK, Refusal, status
from rocketpost.proxy.registration import subscription_of
from rocketpost.proxy.renewal import Renewals
from rocketpost.proxy.services.routes import ALL_QUEUES
from rocketpost.proxy.settings import ProxyConfig
from rocketpost.proxy.validation import group_name, topic_name
from rocketpost.proxy.wire.enums import Code
from rocketpost.proxy.wire.messages import ReceiveMessageResponse, set_ms

logger = logging.getLogger(__name__)

COUNT_MAX: Final = 32
_FROM_END: Final = 1

Write = Callable[[Any], Awaitable[None]]


class _Wish(NamedTuple):
    """A checked request."""

    broker: str
    header: PopMessage
    subscription: Subscription
    attempts_max: int


class ReceiveMethods:
    """Serves consumers. Belongs to the event loop."""

    def __init__(self, backend: Backend, renewals: Renewals, config: ProxyConfig) -> None:
        self._backend = backend
        self._renewals = renewals
        self._config = config
        self._returning: set[asyncio.Task[None]] = set()

    async def receive(self, call: Call, request: Any, write: Write) -> None:
        """Write the messages that a consumer gets, or that there are none."""
        wish = await self._wish(call, request)
        link = call.client.link
        popping = asyncio.ensure_future(pop(link, wish.broker, wish.header))
        try:
            messages = await asyncio.shield(popping)
        except asyncio.CancelledError:
            # The client is gone; a message that is found for it must not wait for long.
            self._keep(self._return_found(popping, wish))
            raise
        except ConnectionLost:
            if not call.client.is_closed:
                raise
            messages = []  # the client has left
        ready: list[tuple[Any, Taken]] = []
        popped = [(message, _taken(wish, message)) for message in messages]
        for at, (message, taken) in enumerate(popped):
            try:
                if await self._is_wanted(link, wish, message, taken):
                    ready.append(
                        (
                            delivered_message(
                                message, request.message_queue.topic, str(taken.handle)
                            ),
                            taken,
                        )
                    )
            except RemoteProtocolError as error:
                logger.warning("message not delivered: topic=%s reason=%s", taken.topic, error)
            except BaseException:  # the client is gone
                left = [taken for _, taken in (*ready, *popped[at:])]
                self._keep(self._renewals.give_back(left))
                raise
        await self._write_all(call, request, ready, write)

    async def _write_all(
        self, call: Call, request: Any, ready: list[tuple[Any, Taken]], write: Write
    ) -> None:
        renews = request.auto_renew and self._config.renews
        written = 0

        def is_served() -> bool:
            # The messages of a client that has left were returned: nothing would return later ones.
            return not (renews and call.client.is_gone)

        try:
            found = bool(ready) and is_served()
            code = OK if found else status(Code.MESSAGE_NOT_FOUND, "there is no new message")
            await write(ReceiveMessageResponse(status=code))
            for message, taken in ready:
                if not is_served():
                    break
                if renews:
                    # Before it is written: its acknowledgement may come at any time after that.
                    message_id = message.system_properties.message_id
                    self._renewals.hold(call.client, taken, message_id)
                await write(ReceiveMessageResponse(message=message))
                written += 1
            await write(_delivery_time())
        finally:
            if written < len(ready):
                self._keep(self._renewals.give_back([taken for _, taken in ready[written:]]))

    async def _wish(self, call: Call, request: Any) -> _Wish:
        queue = request.message_queue
        topic, group = topic_name(queue.topic), group_name(request.group)
        if request.auto_renew and self._renewals.is_full:
            raise Refusal(Code.TOO_MANY_REQUESTS, "too many messages wait to be acknowledged")
        config = await self._backend.group(group)
        subscription = subscription_of(topic, request.filter_expression)
        broker = await self._broker(topic, queue.broker.name)
        in_order = config is not None and config.consume_message_orderly
        header = PopMessage(
            consumer_group=group,
            topic=topic,
            queue_id=ALL_QUEUES,
            max_msg_nums=min(max(request.batch_size, 1), COUNT_MAX),
            invisible_time=self._invisible_ms(request),
            poll_time=self._poll_ms(call, request),
            born_time=time.time_ns() // 1_000_000,
            init_mode=_FROM_END,
            exp_type=subscription.expression_type,
            exp=subscription.sub_string,
            order=in_order,
            attempt_id=request.attempt_id if in_order and request.attempt_id else None,
        )
        return _Wish(broker, header, subscription, max_attempts(config))

    async def _broker(self, topic: str, wanted: str) -> str:
        """Return the broker that a call names, or any with queues of the topic."""
        route = await self._backend.route(topic)
        known = [each.broker_name for each in route.broker_datas if each.master is not None]
        if wanted in known:
            return wanted
        if not known:
            raise Refusal(Code.FORBIDDEN, f"no broker serves the topic {topic} now")
        return known[0]

    def _invisible_ms(self, request: Any) -> int:
        config = self._config
        if request.auto_renew and config.renews:
            return config.invisible_ms
        given = duration_ms(request, "invisible_duration")
        invisible_ms = config.invisible_ms if given is None else given
        if not config.invisible_ms_min <= invisible_ms <= config.invisible_ms_max:
            raise Refusal(
                Code.ILLEGAL_INVISIBLE_TIME,
                f"the invisible duration of {invisible_ms} ms is not within "
                f"{config.invisible_ms_min} to {config.invisible_ms_max} ms",
            )
        return invisible_ms

    def _poll_ms(self, call: Call, request: Any) -> int:
        config = self._config
        left = call.seconds_left
        left_ms = None if left is None else round(left * 1000)
        poll_ms = duration_ms(request, "long_polling_timeout")
        if poll_ms is None:
            poll_ms = config.poll_ms_max if left_ms is None else left_ms - 1_500
        poll_ms = min(max(poll_ms, config.poll_ms_min), config.poll_ms_max)
        if left_ms is not None and poll_ms > left_ms - config.answer_ms:
            poll_ms = left_ms - config.answer_ms
            if poll_ms < config.poll_ms_min - config.answer_ms:
                raise Refusal(
                    Code.ILLEGAL_POLLING_TIME,
                    f"the deadline of the call is in {left_ms} ms; {config.poll_ms_min} are needed",
                )
        return poll_ms

    async def _is_wanted(
        self, link: Link, wish: _Wish, message: PoppedMessage, taken: Taken
    ) -> bool:
        """Tell whether a message is delivered; acknowledge or give up the others."""
        tags = wish.subscription.tags_set
        try:
            if tags and wish.subscription.is_tag and message.tags not in tags:
                await acknowledge(link, taken)  # brokers compare hashes of tags
                return False
            if message.reconsume_times >= wish.attempts_max:
                await give_up(link, taken, message.message_id)
                return False
        except RocketpostError as error:
            logger.warning("message comes again: topic=%s reason=%s", taken.topic, error)
            return False
        return True

    async def _return_found(
        self, popping: asyncio.Future[list[PoppedMessage]], wish: _Wish
    ) -> None:
        try:
            messages = await popping
        except RocketpostError:
            return  # nothing was popped, or it is unknown
        await self._renewals.give_back([_taken(wish, message) for message in messages])

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._returning.add(task)
        task.add_done_callback(self._returning.discard)


def _taken(wish: _Wish, message: PoppedMessage) -> Taken:
    handle = ReceiptHandle(message.receipt, message.position)
    return Taken(wish.header.consumer_group, wish.header.topic, handle)


def _delivery_time() -> Any:
    response = ReceiveMessageResponse()
    set_ms(response.delivery_timestamp, time.time_ns() // 1_000_000)
    return response


def failed_answers(code: Any) -> list[Any]:
    """Return the answers of a call that failed: its status, and a time that clients expect."""
    return [ReceiveMessageResponse(status=code), _delivery_time()]
