"""The machinery beneath a producer: its parts, and the start of a send.

``producer`` has the public calls; they check, encode and choose, and start their sends here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Sequence
from typing import Any

from rocketpost.client.config import ProducerConfig
from rocketpost.client.lifecycle import Lifecycle
from rocketpost.client.message import Message, SendResult
from rocketpost.client.patience import TimeLimit
from rocketpost.client.producer.batching import PackedBatch, join_results, pack
from rocketpost.client.producer.envelopes import Envelopes
from rocketpost.client.producer.flight import OutgoingSend
from rocketpost.client.producer.gathering import AutoBatcher
from rocketpost.client.producer.idempotence import IdempotentSends
from rocketpost.client.producer.numbering import Numbering, check_numbers
from rocketpost.client.producer.queue_choice import (
    QueueSelector,
    Target,
    check_send,
    choose_queue,
    target_queue,
)
from rocketpost.client.producer.requesting import Requests
from rocketpost.client.producer.sender import Sender
from rocketpost.client.route_cache import PublishRoute
from rocketpost.client.send_turns import SendTurns
from rocketpost.client.session import Session
from rocketpost.client.spans import NO_SPAN, ClientSpans, SendSpan
from rocketpost.client.tracing import Tracer
from rocketpost.errors import ClientError
from rocketpost.model.route import MessageQueue
from rocketpost.model.stamp import Stamp

Started = asyncio.Future[SendResult] | Coroutine[Any, Any, asyncio.Future[SendResult]]
"""The future of a send's result, or a coroutine that returns it when the send is started."""


class ProducerBase(Lifecycle):
    """The parts of a producer. Belongs to the event loop.

    Args:
        group: The producer group.
        config: The settings.
        numbers: The sequences of an idempotent producer; None for another one.
    """

    _turns: SendTurns

    def __init__(self, group: str, config: ProducerConfig, numbers: Numbering | None) -> None:
        self.group = group
        self.config = config
        self._numbers = numbers
        self._envelopes = Envelopes(group, config)
        self._session: Session | None = None
        self._sender: Sender | None = None
        self._plain: Sender | None = None
        """The sender of a running producer without numbers, traces, spans and automatic batches."""
        self._requests: Requests | None = None
        self._tracer: Tracer | None = None
        self._spans = ClientSpans(group) if config.enable_spans else None
        self._batcher: AutoBatcher | None = None
        self._idempotent: IdempotentSends | None = None

    def start_send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        timeout: float | None = None,
        sequence: int | None = None,
        message_id: str | None = None,
    ) -> Started:
        """Start a send; return the future of its result, or a coroutine if it has to wait first.

        This is ``send_soon`` without a coroutine, for callers that start many sends.

        Raises:
            MessageRefused: The message breaks a rule; nothing was sent.
            ConfigError: Another argument is invalid.
        """
        if selector is None and sequence is None and message_id is None:
            started = self._start_plain(message, queue, timeout)
            if started is not None:
                return started
        return self._start_slow(message, queue, selector, timeout, sequence, message_id)

    def _start_slow(
        self,
        message: Message,
        queue: MessageQueue | None,
        selector: QueueSelector | None,
        timeout: float | None,
        sequence: int | None,
        message_id: str | None,
    ) -> Coroutine[Any, Any, asyncio.Future[SendResult]]:
        """Start a send of any kind, in a span if spans are enabled.

        The span begins here, in the context of the caller.
        """
        if self._spans is None:
            return self._start_other(message, queue, selector, timeout, sequence, message_id)
        check_send(message, queue, selector, timeout)
        span = self._spans.begin(message)
        carrying = span.carry(message)
        return span.follow(
            self._start_other(carrying, queue, selector, timeout, sequence, message_id)
        )

    def _begin_span(self, message: Message, *, type_: str | None = None) -> SendSpan:
        return NO_SPAN if self._spans is None else self._spans.begin(message, type_=type_)

    async def _start_other(
        self,
        message: Message,
        queue: MessageQueue | None,
        selector: QueueSelector | None,
        timeout: float | None,
        sequence: int | None,
        message_id: str | None,
    ) -> asyncio.Future[SendResult]:
        """Start a send of any kind."""
        _, sender = self._running()
        check_send(message, queue, selector, timeout)
        check_numbers(sequence, message_id, is_idempotent=self._numbers is not None)
        if (sends := self._idempotent) is not None:
            return await self._start_numbered(sends, message, queue, selector, timeout, sequence)
        batcher = self._batcher
        is_usual = selector is None and timeout is None and message_id is None
        if batcher and is_usual and batcher.takes(message):
            return await batcher.add(message, queue)
        out = self._envelopes.one(message, message_id=message_id)

        seconds = self._seconds(timeout)

        def start(seconds: float) -> Awaitable[asyncio.Future[SendResult]]:
            return self._turns.take(
                message.topic,
                seconds,
                lambda route, seconds: self._send(
                    [message], out, target_queue(message, route, sender, queue, selector), seconds
                ),
            )

        if batcher and (queue is not None or selector is not None or message.sharding_key):
            return await batcher.send_alone(message.topic, seconds, start)
        return await start(seconds)

    async def _start_numbered(
        self,
        sends: IdempotentSends,
        message: Message,
        queue: MessageQueue | None,
        selector: QueueSelector | None,
        timeout: float | None,
        sequence: int | None,
    ) -> asyncio.Future[SendResult]:
        stamp, message_id = sends.stamp(message, sequence)

        def aim_and_send(
            route: PublishRoute, seconds: float
        ) -> Awaitable[asyncio.Future[SendResult]]:
            wished = choose_queue(message, route, queue, selector)
            target = sends.aim(out, stamp, route, wished), wished is not None
            return self._send([message], out, target, seconds, stamp)

        try:
            out = self._envelopes.one(message, message_id=message_id)
            return await self._turns.take(message.topic, self._seconds(timeout), aim_and_send)
        except BaseException:  # it was not sent
            sends.put_back([message], [stamp])
            raise

    def _start_plain(
        self, message: Message, queue: MessageQueue | None, timeout: float | None
    ) -> Started | None:
        """Start a send whose route is known, usually without a coroutine.

        Returns:
            The future of the result; a coroutine that returns the future if the send has to wait
            for room or a connection; None, and nothing is done, if the send is not of this kind.

        Raises:
            MessageRefused: The message breaks a rule.
            ConfigError: Another argument is invalid.
        """
        sender = self._plain
        if sender is None:
            return None
        if queue is not None or timeout is not None or type(message) is not Message:
            check_send(message, queue, None, timeout)
        route = self._turns.peek(message.topic)
        if route is None:
            return None
        out = self._envelopes.one(message)
        if queue is None and not message.sharding_key:
            target = sender.choose(route) if sender.avoids_slow else route.next()
            fixed = False
        else:
            target, fixed = target_queue(message, route, sender, queue)
        seconds = timeout or self.config.send_timeout
        return sender.start(out, target, fixed, seconds) or sender.send(
            out, target, fixed=fixed, timeout=seconds
        )

    async def _send_batch_once(
        self,
        sends: IdempotentSends,
        messages: Sequence[Message],
        queue: MessageQueue | None,
        timeout: float | None,
        first: int | None,
    ) -> list[SendResult]:
        config, limit = self.config, TimeLimit(self._seconds(timeout))
        route = await sends.prepare(messages[0].topic, limit.seconds)
        wished = choose_queue(messages[0], route, queue, None)
        stamped = [
            sends.stamp(message, None if first is None else first + at)
            for at, message in enumerate(messages)
        ]
        stamps = [stamp for stamp, _ in stamped]
        started: list[tuple[OutgoingSend, MessageQueue, asyncio.Future[SendResult]]] = []
        try:
            packs = pack(
                messages,
                bytes_max=config.message_bytes_max,
                count_max=config.batch_count_max,
                ids=[message_id for _, message_id in stamped],
                ends=sends.ends(stamps, route if wished is None else None),
            )
            at = 0
            for packed, out in [(packed, self._envelopes.batch(packed)) for packed in packs]:
                aimed = sends.aim(out, stamps[at], route, wished)
                target = aimed, wished is not None
                future = await self._send(packed.messages, out, target, limit.left, stamps[at])
                started.append((out, aimed, future))
                at += out.count
            return await join_results(
                [out for out, _, _ in started], [future for _, _, future in started]
            )
        except BaseException:
            sends.repeat_all(messages, stamps, started)
            raise

    def _require_idempotent(self) -> IdempotentSends:
        self._running()
        if self._idempotent is None:
            raise ClientError("only a producer made with idempotent=True has sequences")
        return self._idempotent

    def _seconds(self, timeout: float | None) -> float:
        return timeout or self.config.send_timeout

    def _running(self) -> tuple[Session, Sender]:
        if self._session is None or self._sender is None:
            raise ClientError("the producer is not running; use `async with` or call start()")
        return self._session, self._sender

    async def _send_together(
        self, packed: PackedBatch, queue: MessageQueue | None
    ) -> tuple[OutgoingSend, asyncio.Future[SendResult]]:
        _, sender = self._running()
        first, out = packed.messages[0], self._envelopes.batch(packed)
        return out, await self._turns.take(
            first.topic,
            self.config.send_timeout,
            lambda route, seconds: self._send(
                packed.messages, out, target_queue(first, route, sender, queue), seconds
            ),
        )

    async def _send_with(
        self,
        extra: str,
        message: Message,
        *,
        queue: MessageQueue | None,
        selector: QueueSelector | None,
        timeout: float | None,
    ) -> SendResult:
        """Send a message with properties that users cannot set."""
        session, sender = self._running()
        check_send(message, queue, selector, timeout)
        with self._begin_span(message, type_="transaction") as span:
            message = span.carry(message)
            out = self._envelopes.one(message, extra)
            limit = TimeLimit(self._seconds(timeout))
            route = await session.routes.publish(message.topic, seconds=limit.seconds)
            target = target_queue(message, route, sender, queue, selector)
            result = await (await self._send([message], out, target, limit.left))
            span.note(result)
        return result

    async def _send(
        self,
        messages: Sequence[Message],
        out: OutgoingSend,
        target: Target,
        seconds: float,
        stamp: Stamp | None = None,
    ) -> asyncio.Future[SendResult]:
        """Start a send that may take so many seconds; trace its result if tracing is enabled."""
        assert self._sender is not None
        queue, fixed = target
        traced = None
        if self._tracer is not None:
            traced = self._tracer.watch(messages, out, queue)
        if stamp is not None and self._idempotent is not None:
            future = await self._idempotent.send(
                out, messages, stamp, queue, is_ordered=fixed, timeout=seconds
            )
        else:
            future = await self._sender.send(out, queue, fixed=fixed, timeout=seconds)
        if traced is not None:
            future.add_done_callback(traced)
        return future
