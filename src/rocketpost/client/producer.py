"""The producer: sends messages to the brokers of their topics."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rocketpost.client.batching import Packed, check_batch, pack, split_result
from rocketpost.client.compression import compress
from rocketpost.client.config import ProducerConfig
from rocketpost.client.lifecycle import Lifecycle
from rocketpost.client.message import Message, ReceivedMessage, SendResult, check_message
from rocketpost.client.message_id import unique_id
from rocketpost.client.requesting import (
    Requests,
    queue_for_reply,
    reply_properties,
    request_properties,
    topic_for_reply,
)
from rocketpost.client.route_cache import PublishRoute
from rocketpost.client.sender import Outgoing, Sender
from rocketpost.client.session import Session
from rocketpost.client.tracing import Tracer
from rocketpost.codec.batch import encode_batch
from rocketpost.codec.codes import RequestCode
from rocketpost.errors import ClientError, ConfigError, MessageRefused, NoReply
from rocketpost.kernel.hashing import string_hash
from rocketpost.model.names import group_problem
from rocketpost.model.route import MessageQueue

QueueSelector = Callable[[Sequence[MessageQueue], Message], MessageQueue]
"""Chooses one of a topic's queues for a message."""

_Target = tuple[MessageQueue, bool]
"""A queue, and whether it must be that one."""

_RESERVED_GROUPS = frozenset({"DEFAULT_PRODUCER", "DEFAULT_CONSUMER"})


def check_group(group: str) -> None:
    """Check the name of a group.

    Raises:
        ConfigError: It is illegal or a reserved one.
    """
    problem = group_problem(group)
    if problem is None and group in _RESERVED_GROUPS:
        problem = f"the group {group} is a reserved name; choose your own"
    if problem is not None:
        raise ConfigError(problem)


def select_by_hash(queues: Sequence[MessageQueue], sharding_key: str) -> MessageQueue:
    """Return the queue of a sharding key, the same one that a Java producer takes."""
    return queues[abs(string_hash(sharding_key)) % len(queues)]


class Producer(Lifecycle):
    """Sends messages. Belongs to the event loop; tasks of that loop may share it.

    ::

        async with Producer("orders", name_servers="127.0.0.1:9876") as producer:
            await producer.send(Message("Orders", b"..."))

    Args:
        group: The producer group.
        name_servers: ``host:port;host:port``; wins over the one in ``config``.
        config: Everything else.

    Raises:
        ConfigError: The group's name is illegal.
    """

    def __init__(
        self,
        group: str,
        *,
        name_servers: str | None = None,
        config: ProducerConfig | None = None,
    ) -> None:
        check_group(group)
        config = config or ProducerConfig()
        if name_servers is not None:
            config = dataclasses.replace(config, name_servers=name_servers)
        self.group = group
        self.config = config
        self._session: Session | None = None
        self._sender: Sender | None = None
        self._requests: Requests | None = None
        self._tracer: Tracer | None = None

    @property
    def client_id(self) -> str:
        """The id by which brokers know this client; it has one once started."""
        return self._running()[0].client_id

    async def start(self) -> None:
        """Find the name servers. Brokers are connected to when they are needed.

        Raises:
            NoNameServer: No address of a name server is known.
        """
        if self._session is not None:
            raise ClientError("the producer is running already")
        session = Session(self.config, auto_create_queues=self.config.auto_create_queues)
        session.add_producer(self.group)
        self._requests = Requests(session)
        await session.start()
        self._session, self._sender = session, Sender(session, self.config)
        self._tracer = None
        if self.config.enable_trace:
            self._tracer = Tracer(session, group=self.group, topic=self.config.trace_topic)
            self._tracer.start()

    async def stop(self) -> None:
        """Wait for what is under way, take leave of the brokers, close the connections."""
        if self._session is None or self._sender is None:
            return
        session, sender = self._session, self._sender
        self._session = self._sender = None
        try:
            await sender.in_flight.wait_idle()  # every send ends within its time-out
        finally:
            sender.close()
            if self._requests is not None:
                self._requests.close()
            if self._tracer is not None:
                await self._tracer.close()
            await session.stop()

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Send a message and return where it went.

        Without ``queue``, ``selector`` and sharding key the topic's queues are taken in turn, and
        a failed attempt is repeated with another broker. With one of them there is one attempt.

        Args:
            message: What to send.
            queue: Where to send it.
            selector: Chooses among the topic's queues.
            timeout: Seconds for all attempts together; the configured ones if None.

        Raises:
            MessageRefused: The message breaks a rule; nothing was sent.
            RouteNotFound: No broker takes messages of this topic.
            NoNameServer: No name server answers.
            RequestTimeout: No answer in time; the message may be stored or not.
            ConnectionLost: No broker could be reached; the message may be stored or not.
            Fault: A broker refused the message.
        """
        future = await self.send_soon(message, queue=queue, selector=selector, timeout=timeout)
        return await future

    async def send_soon(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        timeout: float | None = None,
    ) -> asyncio.Future[SendResult]:
        """Start a send and return its result to be, so that many can be under way.

        Waits while ``in_flight_max`` messages or ``in_flight_bytes_max`` bytes are under way:
        that is the back-pressure. Messages to one queue leave in the order of the calls.

        Raises:
            MessageRefused: The message breaks a rule; nothing was sent.
            RouteNotFound: No broker takes messages of this topic.
            NoNameServer: No name server answers.
        """
        session, sender = self._running()
        _check_queue(message, queue)
        out = self._outgoing(message)
        route = session.routes.peek_publish(message.topic)
        if route is None:
            route = await session.routes.publish(message.topic)
        target = _target(message, route, sender, queue, selector)
        return await self._send([message], out, target, timeout)

    async def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
    ) -> None:
        """Send a message without learning whether it arrived.

        Raises:
            MessageRefused: The message breaks a rule; nothing was sent.
            RouteNotFound: No broker takes messages of this topic.
            ConnectionLost: The broker cannot be reached.
        """
        session, sender = self._running()
        _check_queue(message, queue)
        out = self._outgoing(message)
        route = await session.routes.publish(message.topic)
        target, _ = _target(message, route, sender, queue, selector)
        await sender.send_oneway(out, target)

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        timeout: float | None = None,
    ) -> list[SendResult]:
        """Send messages of one topic together; more than fit one request become several.

        Messages of one request are stored together, one after the other, or not at all.

        Raises:
            MessageRefused: A message breaks a rule, or they cannot go together; nothing was sent.
            RouteNotFound: No broker takes messages of this topic.
            NoNameServer: No name server answers.
            RequestTimeout: No answer in time; a note tells how many are surely stored.
            ConnectionLost: No broker could be reached; the same note.
            Fault: A broker refused them; the same note.
        """
        session, sender = self._running()
        if not messages:
            return []
        check_batch(messages)
        config, first = self.config, messages[0]
        packs = pack(messages, bytes_max=config.message_bytes_max, count_max=config.batch_count_max)
        _check_queue(first, queue)
        route = await session.routes.publish(first.topic)
        futures = [
            await self._send(
                packed.messages, self._batch(packed), _target(first, route, sender, queue), timeout
            )
            for packed in packs
        ]
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        results: list[SendResult] = []
        failures: list[BaseException] = []
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                failures.append(outcome)
            else:
                results += split_result(outcome)
        if failures:
            failures[0].add_note(f"{len(results)} of {len(messages)} messages are stored")
            raise failures[0]
        return results

    async def request(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        timeout: float | None = None,
    ) -> ReceivedMessage:
        """Send a message, wait until a consumer replies to it, and return the reply.

        Args:
            message: What to ask.
            queue: Where to send it.
            selector: Chooses among the topic's queues.
            timeout: Seconds for the send and the reply together; ``send_timeout`` if None.

        Raises:
            NoReply: The message is stored, but nobody replied in time.
            MessageRefused: The message breaks a rule; nothing was sent.
            ClientError: As of :meth:`send`.
            Fault: A broker refused the message.
        """
        session, sender = self._running()
        assert self._requests is not None
        requests = self._requests
        _check_queue(message, queue)
        seconds = timeout or self.config.send_timeout
        deadline = asyncio.get_running_loop().time() + seconds
        correlation_id, reply = requests.open()
        try:
            extra = request_properties(correlation_id, session.client_id, seconds)
            out = self._outgoing(message, extra)
            route = await session.routes.publish(message.topic)
            await requests.introduce(route)
            target = _target(message, route, sender, queue, selector)
            sent = await self._send([message], out, target, seconds)
            sent.add_done_callback(_seen)
            first: set[asyncio.Future[Any]] = {sent, reply}
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if not reply.done():
                await sent
            async with asyncio.timeout_at(deadline):
                return await reply
        except TimeoutError:
            raise NoReply(
                f"nobody replied to the message {out.message_id} in {seconds:g} s; it is stored"
            ) from None
        finally:
            requests.forget(correlation_id)

    async def reply_to(
        self,
        request: ReceivedMessage,
        body: bytes,
        *,
        tags: str | None = None,
        properties: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Reply to a message whose sender waits for that, see :attr:`ReceivedMessage.wants_reply`.

        Returns once the requester has the reply; whether it came in time only he knows.

        Raises:
            MessageRefused: It is no request, or the reply breaks a rule; nothing was sent.
            Fault: The requester could not be reached by any broker that was tried.
            ClientError: As of :meth:`send`.
        """
        session, sender = self._running()
        message = Message(topic_for_reply(request), body, tags=tags, properties=properties)
        out = self._outgoing(message, reply_properties(request))
        out.code = RequestCode.SEND_REPLY_MESSAGE_V2
        route = await session.routes.publish(message.topic)
        queue = queue_for_reply(request, route) or sender.choose(route)
        seconds = timeout or self.config.send_timeout
        return await (await sender.send(out, queue, fixed=False, timeout=seconds))

    async def flush(self) -> None:
        """Return once nothing is under way any more; results tell how it went."""
        await self._running()[1].in_flight.wait_idle()

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of ``topic`` that can be written to.

        Raises:
            RouteNotFound: No broker takes messages of this topic.
            NoNameServer: No name server answers.
        """
        return list((await self._running()[0].routes.publish(topic)).queues)

    # Inside.

    def _running(self) -> tuple[Session, Sender]:
        if self._session is None or self._sender is None:
            raise ClientError("the producer is not running; use `async with` or call start()")
        return self._session, self._sender

    def _outgoing(self, message: Message, more_properties: str = "") -> Outgoing:
        config = self.config
        check_message(message, body_bytes_max=config.message_bytes_max)
        message_id = unique_id()
        body, sys_flag = message.body, 0
        if len(body) >= config.compress_bytes_min > 0:
            small, bits = compress(bytes(body), config.compression, config.compression_level)
            if len(small) < len(body):
                body, sys_flag = small, bits
        fields = self._fields(message.topic, message.property_text(message_id) + more_properties)
        fields["f"] = str(sys_flag)
        fields["h"] = str(message.flag)
        return Outgoing(RequestCode.SEND_MESSAGE_V2, message.topic, message_id, fields, body)

    def _fields(self, topic: str, properties: str) -> dict[str, str]:
        config = self.config
        return {
            "a": self.group,
            "b": topic,
            "c": config.auto_create_topic,
            "d": str(config.auto_create_queues),
            "f": "0",
            "g": str(time.time_ns() // 1_000_000),
            "h": "0",
            "i": properties,
            "j": "0",
            "k": "false",
            "m": "false",
        }

    def _batch(self, packed: Packed) -> Outgoing:
        first = packed.messages[0]
        wait = "true" if first.wait_store else "false"
        # Apache's broker appends these to the properties of each entry, where the last one of a
        # name counts: a unique key here would become the id of every message.
        fields = self._fields(first.topic, f"WAIT\x01{wait}\x02")
        fields["m"] = "true"
        code, body = RequestCode.SEND_BATCH_MESSAGE, encode_batch(packed.items)
        return Outgoing(code, first.topic, ",".join(packed.ids), fields, body, len(packed.items))

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
        _check_queue(message, queue)
        out = self._outgoing(message, extra)
        route = await session.routes.publish(message.topic)
        target = _target(message, route, sender, queue, selector)
        return await (await self._send([message], out, target, timeout))

    async def _send(
        self, messages: Sequence[Message], out: Outgoing, target: _Target, timeout: float | None
    ) -> asyncio.Future[SendResult]:
        """Start a send; what it comes to is traced if traces are wanted."""
        assert self._sender is not None
        queue, fixed = target
        traced = None
        if self._tracer is not None:
            traced = self._tracer.watch(messages, out.message_id.split(","), queue)
        future = await self._sender.send(
            out, queue, fixed=fixed, timeout=timeout or self.config.send_timeout
        )
        if traced is not None:
            future.add_done_callback(traced)
        return future


def _target(
    message: Message,
    route: PublishRoute,
    sender: Sender,
    queue: MessageQueue | None = None,
    selector: QueueSelector | None = None,
) -> _Target:
    """Return the queue of a message, and whether it must be that one."""
    chosen = _chosen_queue(message, route, queue, selector)
    return (chosen, True) if chosen is not None else (sender.choose(route), False)


def _chosen_queue(
    message: Message,
    route: PublishRoute,
    queue: MessageQueue | None,
    selector: QueueSelector | None,
) -> MessageQueue | None:
    if queue is not None:
        return queue
    if selector is not None:
        return selector(route.queues, message)
    if message.sharding_key:
        return select_by_hash(route.queues, message.sharding_key)
    return None


def _seen(future: asyncio.Future[SendResult]) -> None:
    """Look at a result that may come when nobody waits for it any more."""
    if not future.cancelled():
        future.exception()


def _check_queue(message: Message, queue: MessageQueue | None) -> None:
    if queue is not None and queue.topic != message.topic:
        raise MessageRefused(
            f"the queue is one of {queue.topic}, the message is for {message.topic}"
        )
