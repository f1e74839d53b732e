"""Spans of OpenTelemetry for messages, by its conventions for messaging systems.

    send T       PRODUCER  from the call to the answer; its context travels with the message
    create T     PRODUCER  a message of a batch; ``send T`` is then CLIENT and links to it
    receive T    CLIENT    messages that a simple consumer got; links to their contexts
    process T    CONSUMER  a handler; the child of the span that sent the message
    ack T        CLIENT    an acknowledgement of a simple consumer

The context is in the properties ``traceparent``, ``tracestate`` and ``baggage``, unless the program
has set another propagator. OpenTelemetry (``rocketpost[spans]``) is imported for clients with
``enable_spans`` only.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from rocketpost import VERSION
from rocketpost.client.consumer.push.handlers import HandlerSpec
from rocketpost.client.message import Message, ReceivedMessage, SendResult
from rocketpost.errors import ConfigError
from rocketpost.model import properties as names

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanKind

_NEEDED: Final = "enable_spans needs OpenTelemetry; install it with pip install 'rocketpost[spans]'"
_SYSTEM: Final = "rocketmq"


class SendSpan(Protocol):
    """The span of one send, or nothing. Entered while the message is sent."""

    def __enter__(self) -> Self:
        """Begin."""
        ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End."""
        ...

    def carry(self, message: Message) -> Message:
        """Return the message with the context of the span."""
        ...

    def note(self, result: SendResult) -> None:
        """Record where the message was stored."""
        ...


class NoSpan:
    """The span of a send without spans."""

    def __enter__(self) -> Self:
        """Do nothing."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Do nothing."""

    def carry(self, message: Message) -> Message:
        """Return the message as it is."""
        return message

    def note(self, result: SendResult) -> None:
        """Do nothing."""


NO_SPAN: Final = NoSpan()


class ClientSpans:
    """Makes the spans of one client. Thread-safe.

    Args:
        group: The producer or consumer group.

    Raises:
        ConfigError: OpenTelemetry is not installed.
    """

    def __init__(self, group: str) -> None:
        try:
            from opentelemetry import context, propagate, trace
        except ImportError as error:
            raise ConfigError(_NEEDED) from error
        self._group = group
        self._context = context
        self._propagate = propagate
        self._trace = trace
        self._tracer = trace.get_tracer("rocketpost", VERSION)

    # Producers.

    def begin(self, message: Message, *, type_: str | None = None) -> RecordedSend:
        """Begin the span of a send, as a child of the caller's span."""
        attributes = self._sent_attributes("send", "send", message.topic)
        attributes |= _message_attributes(message, type_)
        span = self._start("send", message.topic, self._trace.SpanKind.PRODUCER, attributes)
        return RecordedSend(self, span)

    def begin_batch(self, messages: Sequence[Message]) -> tuple[RecordedSend, list[Message]]:
        """Begin the span of a batch; return it and messages with contexts of their own."""
        kinds = self._trace.SpanKind
        topic, carrying, links = messages[0].topic, [], []
        for message in messages:
            attributes = self._sent_attributes("create", "create", topic)
            attributes |= _message_attributes(message, None)
            created = self._start("create", topic, kinds.PRODUCER, attributes)
            carrying.append(self.carry(message, created))
            links.append(self._trace.Link(created.get_span_context()))
            created.end()
        attributes = self._sent_attributes("send", "send", topic)
        attributes["messaging.batch.message_count"] = len(messages)
        span = self._start("send", topic, kinds.CLIENT, attributes, links=links)
        return RecordedSend(self, span), carrying

    def carry(self, message: Message, span: Span) -> Message:
        """Return a copy of the message with the context of a span, to be sent in its place.

        A message that has a context already, such as one that is passed on, keeps it.
        """
        if names.TRACE_PARENT in message.properties:
            return message
        carrier: dict[str, str] = {}
        self._propagate.inject(carrier, context=self._trace.set_span_in_context(span))
        return message.with_context(carrier, is_same=True) if carrier else message

    def fail(self, span: Span, error: BaseException) -> None:
        """Record the error by which something ended."""
        status = self._trace.StatusCode.ERROR
        span.set_attribute("error.type", type(error).__qualname__)
        span.set_status(self._trace.Status(status, str(error)))
        if isinstance(error, Exception):
            span.record_exception(error)

    # Consumers.

    def wrap(self, listener: HandlerSpec) -> HandlerSpec:
        """Return a handler that runs in a span."""
        handler: Callable[[Any], Any] = listener.handler

        @functools.wraps(handler)
        async def handle_async(argument: Any) -> Any:
            with self._processing(argument):
                return await handler(argument)

        @functools.wraps(handler)
        def handle(argument: Any) -> Any:
            with self._processing(argument):
                return handler(argument)

        return listener._replace(handler=handle_async if listener.is_async else handle)

    @contextlib.contextmanager
    def _processing(self, argument: ReceivedMessage | Sequence[ReceivedMessage]) -> Iterator[None]:
        kinds = self._trace.SpanKind
        if isinstance(argument, ReceivedMessage):
            topic, parent, links = argument.topic, self._context_of(argument), None
            attributes = self._taken_attributes("process", "process", topic)
            attributes |= _received_attributes(argument)
        else:
            topic, parent, links = argument[0].topic, None, self._links_to(argument)
            attributes = self._taken_attributes("process", "process", topic)
            attributes["messaging.batch.message_count"] = len(argument)
        span = self._start("process", topic, kinds.CONSUMER, attributes, parent=parent, links=links)
        token = self._context.attach(self._trace.set_span_in_context(span, parent))
        try:
            yield
        except BaseException as error:
            self.fail(span, error)
            raise
        finally:
            self._context.detach(token)
            span.end()

    async def receive(self, receive: Awaitable[list[Any]]) -> list[Any]:
        """Wait for messages, and record a span if there are some."""
        began_ns = time.time_ns()
        messages: list[Any] = await receive
        if messages:
            topic = messages[0].topic
            attributes = self._taken_attributes("receive", "receive", topic)
            attributes["messaging.batch.message_count"] = len(messages)
            links = self._links_to(messages)
            kind = self._trace.SpanKind.CLIENT
            span = self._start("receive", topic, kind, attributes, links=links, start_ns=began_ns)
            span.end()
        return messages

    async def acknowledge(self, message: ReceivedMessage, ack: Awaitable[None]) -> None:
        """Wait for an acknowledgement in a span."""
        attributes = self._taken_attributes("ack", "settle", message.topic)
        attributes |= _received_attributes(message)
        links = self._links_to([message])
        kind = self._trace.SpanKind.CLIENT
        span = self._start("ack", message.topic, kind, attributes, links=links)
        try:
            await ack
        except BaseException as error:
            self.fail(span, error)
            raise
        finally:
            span.end()

    # Parts.

    def _start(
        self,
        operation: str,
        topic: str,
        kind: SpanKind,
        attributes: Mapping[str, Any],
        *,
        parent: Context | None = None,
        links: Sequence[Link] | None = None,
        start_ns: int | None = None,
    ) -> Span:
        return self._tracer.start_span(
            f"{operation} {topic}",
            context=parent,
            kind=kind,
            attributes=attributes,
            links=links,
            start_time=start_ns,
            record_exception=False,
            set_status_on_exception=False,
        )

    def _sent_attributes(self, name: str, kind: str, topic: str) -> dict[str, Any]:
        return {
            "messaging.system": _SYSTEM,
            "messaging.destination.name": topic,
            "messaging.operation.name": name,
            "messaging.operation.type": kind,
            "messaging.rocketmq.client_group": self._group,
        }

    def _taken_attributes(self, name: str, kind: str, topic: str) -> dict[str, Any]:
        return {
            "messaging.system": _SYSTEM,
            "messaging.destination.name": topic,
            "messaging.operation.name": name,
            "messaging.operation.type": kind,
            "messaging.consumer.group.name": self._group,
        }

    def _context_of(self, message: ReceivedMessage) -> Context:
        # The program's propagator may use other names than W3C's.
        return self._propagate.extract({**message.properties, **message.trace_context})

    def _links_to(self, messages: Sequence[ReceivedMessage]) -> list[Link]:
        found = [
            self._trace.get_current_span(self._context_of(message)).get_span_context()
            for message in messages
        ]
        return [self._trace.Link(each) for each in found if each.is_valid]


class RecordedSend:
    """The span of one send, or of a batch."""

    def __init__(self, spans: ClientSpans, span: Span) -> None:
        self._spans = spans
        self._span = span

    def __enter__(self) -> Self:
        """Do nothing: the span has begun."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the span."""
        if error is not None:
            self._spans.fail(self._span, error)
        self._span.end()

    def carry(self, message: Message) -> Message:
        """Return the message with the context of the span."""
        return self._spans.carry(message, self._span)

    def note(self, result: SendResult) -> None:
        """Record where the message was stored."""
        self._span.set_attribute("messaging.message.id", result.message_id)
        partition = f"{result.queue.broker_name}/{result.queue.queue_id}"
        self._span.set_attribute("messaging.destination.partition.id", partition)

    async def follow(
        self, starting: Coroutine[Any, Any, asyncio.Future[SendResult]]
    ) -> asyncio.Future[SendResult]:
        """Wait until a send is started; the span ends with its result."""
        try:
            future = await starting
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        future.add_done_callback(self._end)
        return future

    def _end(self, future: asyncio.Future[SendResult]) -> None:
        error = asyncio.CancelledError() if future.cancelled() else future.exception()
        if error is None:
            self.note(future.result())
        self.__exit__(None, error, None)


def _message_attributes(message: Message, type_: str | None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "messaging.message.body.size": len(message.body or b""),
        "messaging.rocketmq.message.type": type_ or _type_of(message),
    }
    if message.tags:
        found["messaging.rocketmq.message.tag"] = message.tags
    if message.keys:
        found["messaging.rocketmq.message.keys"] = names.split_keys(message.keys)
    if message.sharding_key:
        found["messaging.rocketmq.message.group"] = message.sharding_key
    return found


def _type_of(message: Message) -> str:
    if message.is_delayed:
        return "delay"
    return "fifo" if message.sharding_key else "normal"


def _received_attributes(message: ReceivedMessage) -> dict[str, Any]:
    queue = message.queue
    found: dict[str, Any] = {
        "messaging.message.id": message.message_id,
        "messaging.message.body.size": message.stored_bytes,
        "messaging.destination.partition.id": f"{queue.broker_name}/{queue.queue_id}",
    }
    if message.tags:
        found["messaging.rocketmq.message.tag"] = message.tags
    if message.keys:
        found["messaging.rocketmq.message.keys"] = message.keys
    if message.sharding_key:
        found["messaging.rocketmq.message.group"] = message.sharding_key
    if message.reconsume_times:
        found["messaging.rocketmq.message.reconsume_times"] = message.reconsume_times
    return found
