"""Message traces of a client, written to a topic that tools can search.

Traced code only appends to a bounded queue; a separate task writes its contents, many records per
message, and flushes at the stop. If the queue is full or writing fails, traces are dropped, counted
and logged: traced code never waits or fails because of them. Messages of the trace topic are not
traced, nor those of brokers that answer ``traceOn=false``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from rocketpost.client.config import ProducerConfig
from rocketpost.client.consumer.push.orderly import Suspend
from rocketpost.client.consumer.push.retry import Retry
from rocketpost.client.message import Message, ReceivedMessage, SendResult
from rocketpost.client.producer.flight import OutgoingSend
from rocketpost.client.producer.sender import Sender
from rocketpost.client.session import Session
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.recall_handle import decode_recall_handle
from rocketpost.codec.send_heads import SendHeads
from rocketpost.codec.trace import (
    EndTransactionTrace,
    MessageKind,
    Pub,
    RecallTrace,
    SubAfter,
    SubBefore,
    Trace,
    TraceOutcome,
    encode_trace,
)
from rocketpost.errors import Fault, RocketpostError
from rocketpost.model import properties as names
from rocketpost.model.names import AUTO_CREATE_TOPIC
from rocketpost.model.route import MessageQueue
from rocketpost.transport.unique_id import unique_id

logger = logging.getLogger(__name__)

QUEUE_MAX: Final = 2048
"""Maximum of waiting traces; further ones are lost."""
BATCH_MAX: Final = 100
"""Maximum of traces per message."""
BODY_MAX: Final = 128_000
KEYS_MAX: Final = 16_000
LINGER_SECONDS: Final = 0.5
"""Maximum wait of the first trace for others."""
FLUSH_SECONDS: Final = 5.0
_SEND_SECONDS: Final = 5.0
_REGION: Final = "DefaultRegion"
_HALF: Final = f"{names.TRANSACTION_PREPARED}\x01true\x02"
_GROUP: Final = "_INNER_TRACE_PRODUCER-{group}"


class Tracer:
    """Writes the traces of one client. Belongs to the event loop.

    Args:
        session: The session of the client; connections are shared, bounds and retries are not.
        group: The traced producer or consumer group.
        topic: The topic of the traces.
    """

    def __init__(self, session: Session, *, group: str, topic: str) -> None:
        self._session = session
        self._group = group
        self.topic = topic
        self._sender = Sender(session, ProducerConfig(send_timeout=_SEND_SECONDS))
        self._queue: deque[Trace] = deque()
        self._wake = asyncio.Event()
        self._full = asyncio.Event()
        self._writing = asyncio.Lock()
        self.lost = 0
        """Number of lost traces: there were too many, or no broker accepted them."""

    def start(self) -> None:
        """Start writing, until the session ends."""
        self._session.tasks.start(self._run(), name=f"trace {self._group}")

    async def close(self) -> None:
        """Write the remaining traces, within a time limit."""
        try:
            async with asyncio.timeout(FLUSH_SECONDS):
                await self._flush()
        except TimeoutError:
            self._lose(len(self._queue), "no time was left at close")
            self._queue.clear()
        finally:
            self._sender.close()

    # Events.

    def add(self, trace: Trace) -> None:
        """Queue ``trace`` for writing."""
        if len(self._queue) >= QUEUE_MAX:
            self._lose(1, "too many wait")
            return
        self._queue.append(trace)
        self._wake.set()
        if len(self._queue) >= BATCH_MAX:
            self._full.set()

    def watch(
        self, messages: Sequence[Message], out: OutgoingSend, queue: MessageQueue
    ) -> Callable[[asyncio.Future[SendResult]], None]:
        """Return a callback for the result of a send that begins now."""
        began_ms, began = _now_ms(), time.monotonic()

        def trace_result(future: asyncio.Future[SendResult]) -> None:
            if future.cancelled():
                return
            result = None if future.exception() is not None else future.result()
            cost_ms = round((time.monotonic() - began) * 1000)
            went = queue if result is None else result.queue
            self._trace_send(messages, out, went, result, began_ms=began_ms, cost_ms=cost_ms)

        return trace_result

    def _trace_send(
        self,
        messages: Sequence[Message],
        out: OutgoingSend,
        queue: MessageQueue,
        result: SendResult | None,
        *,
        began_ms: int,
        cost_ms: int,
    ) -> None:
        if messages[0].topic == self.topic or (result is not None and not result.trace_on):
            return
        offset_ids = result.offset_id.split(",") if result is not None else []
        if len(offset_ids) != len(messages):
            offset_ids = [result.offset_id if result is not None else ""] * len(messages)
        ids, is_half = out.message_id.split(","), _HALF in out.properties
        store_host = self._address_of(queue.broker_name)
        for message, message_id, offset_id in zip(messages, ids, offset_ids, strict=True):
            self.add(
                Pub(
                    time_ms=began_ms,
                    region=result.region if result is not None else _REGION,
                    group=self._group,
                    topic=message.topic,
                    message_id=message_id,
                    tags=message.tags or "",
                    keys=message.keys,
                    store_host=store_host,
                    body_bytes=len(message.body),
                    cost_ms=cost_ms // len(messages),
                    kind=MessageKind.TRANSACTION_HALF if is_half else _kind(message),
                    offset_id=offset_id,
                    success=result is not None,
                )
            )

    def trace_end(
        self,
        message: Message | ReceivedMessage,
        message_id: str,
        broker: str,
        *,
        transaction_id: str,
        state: str,
        from_check: bool = False,
    ) -> None:
        """Trace the decision about a half message; ``state`` is Java's name of it."""
        keys = message.keys if isinstance(message, Message) else " ".join(message.keys)
        self.add(
            EndTransactionTrace(
                time_ms=_now_ms(),
                region=_REGION,
                group=self._group,
                topic=message.topic,
                message_id=message_id,
                tags=message.tags or "",
                keys=keys,
                store_host=self._address_of(broker),
                transaction_id=transaction_id,
                state=state,
                from_check=from_check,
            )
        )

    async def follow_recall(self, topic: str, handle: str, recall: Awaitable[str]) -> str:
        """Wait for a recall and trace its result, including a broker's refusal."""
        try:
            message_id = await recall
        except Fault:
            self._trace_recall(topic, decode_recall_handle(handle).message_id, is_done=False)
            raise
        self._trace_recall(topic, message_id, is_done=True)
        return message_id

    def _trace_recall(self, topic: str, message_id: str, *, is_done: bool) -> None:
        self.add(
            RecallTrace(
                time_ms=_now_ms(),
                region=_REGION,
                group=self._group,
                topic=topic,
                message_id=message_id,
                success=is_done,
            )
        )

    def trace_handling(self, messages: Sequence[ReceivedMessage]) -> HandlingTrace | None:
        """Return the trace of messages in their handler; None if they are not traced."""
        if messages[0].topic == self.topic:
            return None
        traced = [each for each in messages if each.properties.get(names.TRACE_ON) != "false"]
        return HandlingTrace(self, self._group, traced) if traced else None

    # Writing.

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            with contextlib.suppress(TimeoutError):  # few, but the first waited long
                async with asyncio.timeout(LINGER_SECONDS):
                    await self._full.wait()
            await self._flush()

    async def _flush(self) -> None:
        async with self._writing:
            self._wake.clear()
            self._full.clear()
            while self._queue:
                await self._write(self._take())

    def _take(self) -> tuple[str, str, int]:
        """Return the text, the keys and the number of the traces for one message."""
        texts: list[str] = []
        keys: dict[str, None] = {}
        text_chars = keys_chars = 0
        while self._queue and len(texts) < BATCH_MAX:
            trace = self._queue[0]
            text, words = encode_trace(trace), _keys_of(trace)
            text_chars += len(text)
            keys_chars += sum(len(word) + 1 for word in words if word not in keys)
            if texts and (text_chars > BODY_MAX or keys_chars > KEYS_MAX):
                break
            self._queue.popleft()
            texts.append(text)
            keys.update(dict.fromkeys(words))
        return "".join(texts), " ".join(keys), len(texts)

    async def _write(self, taken: tuple[str, str, int]) -> None:
        text, keys, count = taken
        try:
            message = Message(self.topic, text.encode("utf-8", "replace"), keys=keys)
            route = await self._session.routes.publish(self.topic)
            out = self._outgoing(message)
            future = await self._sender.send(
                out, self._sender.choose(route), fixed=False, timeout=_SEND_SECONDS
            )
            await future
        except RocketpostError as error:
            self._lose(count, str(error))

    def _outgoing(self, message: Message) -> OutgoingSend:
        message_id = unique_id()
        heads = SendHeads(
            RequestCode.SEND_MESSAGE_V2,
            group=_GROUP.format(group=self._group),
            topic=self.topic,
            default_topic=AUTO_CREATE_TOPIC,
            default_queues=4,
        )
        text = message.property_text(message_id)
        return OutgoingSend(heads, message_id, text, message.body, _now_ms())

    def _address_of(self, broker: str) -> str:
        try:
            return self._session.routes.master(broker)
        except RocketpostError:
            return ""

    def _lose(self, count: int, reason: str) -> None:
        if not self.lost or (self.lost + count) // 1000 > self.lost // 1000:
            logger.warning(
                "traces lost: group=%s count=%s reason=%s", self._group, self.lost + count, reason
            )
        self.lost += count


class HandlingTrace:
    """The trace of messages in a handler. Belongs to the event loop."""

    __slots__ = ("_begun", "_group", "_messages", "_request_id", "_tracer")

    def __init__(self, tracer: Tracer, group: str, messages: Sequence[ReceivedMessage]) -> None:
        self._tracer = tracer
        self._group = group
        self._messages = messages
        self._request_id = unique_id()
        self._begun = False

    def begin(self) -> None:
        """Trace the call of the handler, once."""
        if self._begun:
            return
        self._begun, now_ms = True, _now_ms()
        for message in self._messages:
            self._tracer.add(
                SubBefore(
                    time_ms=now_ms,
                    region=message.properties.get(names.MSG_REGION, _REGION),
                    group=self._group,
                    request_id=self._request_id,
                    message_id=message.message_id,
                    retry_times=message.reconsume_times,
                    keys=" ".join(message.keys),
                )
            )

    def end(self, error: BaseException | None, seconds: float) -> None:
        """Trace the outcome and the duration of the handler."""
        self.begin()  # a thread's report of the begin may not have arrived yet
        now_ms, cost_ms = _now_ms(), round(seconds * 1000) // len(self._messages)
        for message in self._messages:
            self._tracer.add(
                SubAfter(
                    request_id=self._request_id,
                    message_id=message.message_id,
                    cost_ms=cost_ms,
                    success=error is None,
                    keys=" ".join(message.keys),
                    outcome=_outcome(error),
                    time_ms=now_ms,
                    group=self._group,
                )
            )


def _kind(message: Message) -> MessageKind:
    if message.is_delayed:
        return MessageKind.DELAYED
    return MessageKind.ORDERED if message.sharding_key else MessageKind.NORMAL


def _outcome(error: BaseException | None) -> TraceOutcome:
    if error is None:
        return TraceOutcome.SUCCESS
    return TraceOutcome.FAILED if isinstance(error, Retry | Suspend) else TraceOutcome.EXCEPTION


def _keys_of(trace: Trace) -> list[str]:
    keys = "" if isinstance(trace, RecallTrace) else trace.keys
    return [trace.message_id, *names.split_keys(keys)]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
