"""The producer: sends messages to the brokers of their topics."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from rocketpost.client.checks import check_timeout
from rocketpost.client.config import ProducerConfig, check_group, with_name_servers
from rocketpost.client.message import Message, ReceivedMessage, SendResult, check_message
from rocketpost.client.patience import TimeLimit
from rocketpost.client.producer.base import ProducerBase
from rocketpost.client.producer.batching import check_batch, join_results, pack
from rocketpost.client.producer.gathering import auto_batcher_for
from rocketpost.client.producer.idempotence import IdempotentSends
from rocketpost.client.producer.numbering import NO_SEQUENCE, OWN_IDS, Numbering, check_numbers
from rocketpost.client.producer.queue_choice import (
    QueueSelector,
    check_send,
    target_queue,
)
from rocketpost.client.producer.recall import recall_message
from rocketpost.client.producer.requesting import (
    Requests,
    queue_for_reply,
    reply_properties,
    request_properties,
    topic_for_reply,
)
from rocketpost.client.producer.sender import Sender
from rocketpost.client.send_turns import SendTurns
from rocketpost.client.session import Session
from rocketpost.client.tasks import look_at
from rocketpost.client.tracing import Tracer
from rocketpost.codec.codes import RequestCode
from rocketpost.errors import ClientError, ConfigError, MessageRefused, NoReply
from rocketpost.model.route import MessageQueue


class Producer(ProducerBase):
    """Sends messages. Belongs to the event loop; tasks of that loop may share it.

    ::

        async with Producer("orders", name_servers="127.0.0.1:9876") as producer:
            await producer.send(Message("Orders", b"..."))

    Args:
        group: The producer group.
        name_servers: ``host:port;host:port``; overrides that of ``config``.
        config: The other settings.
        idempotent: Whether a send is stored once, however often it is tried. Then sends with a
            queue or a sharding key are also retried, in order, and every send is retried until its
            timeout at the broker that may have stored it.
        producer_id: A name that outlives this process. Then every send takes a ``sequence``, and a
            later run that sends the same sequences again stores nothing twice.
        epoch: With ``producer_id``: the number of this run. A broker that has seen a higher epoch
            refuses this one, and sequences of different epochs are different messages.

    Raises:
        ConfigError: The group's name or the producer's id is illegal.
    """

    def __init__(
        self,
        group: str,
        *,
        name_servers: str | None = None,
        config: ProducerConfig | None = None,
        idempotent: bool = False,
        producer_id: str | None = None,
        epoch: int = 0,
    ) -> None:
        check_group(group)
        if not idempotent and (producer_id is not None or epoch):
            raise ConfigError("producer_id and epoch need idempotent=True")
        if producer_id is None and epoch:
            raise ConfigError("an epoch needs a producer_id")
        config = with_name_servers(config or ProducerConfig(), name_servers, ProducerConfig)
        if idempotent and config.auto_batch:
            raise ConfigError("auto_batch and idempotent exclude each other")
        super().__init__(group, config, Numbering(producer_id, epoch) if idempotent else None)

    @property
    def producer_id(self) -> str | None:
        """The id by which brokers recognize its messages, if it is idempotent."""
        return self._numbers.producer_id if self._numbers is not None else None

    @property
    def client_id(self) -> str:
        """The client id; available once started."""
        return self._running()[0].client_id

    async def start(self) -> None:
        """Find the name servers. Connections to brokers are opened on demand.

        Raises:
            NoNameServer: No address of a name server is known.
        """
        if self._session is not None:
            raise ClientError("the producer is running already")
        session = Session(
            self.config,
            auto_create_queues=self.config.auto_create_queues,
            auto_create_topic=self.config.auto_create_topic,
        )
        session.add_producer(self.group)
        self._requests = Requests(session)
        await session.start()
        self._session, self._sender = session, Sender(session, self.config)
        routes = session.routes
        self._turns = SendTurns(
            peek=routes.peek_publish,
            find=lambda topic, seconds: routes.publish(topic, seconds=seconds),
        )
        if self._numbers is not None:
            sends = IdempotentSends(session, self._sender, self._numbers)
            self._idempotent, self._turns = sends, SendTurns(peek=sends.peek, find=sends.prepare)
        self._tracer = None
        if self.config.enable_trace:
            self._tracer = Tracer(session, group=self.group, topic=self.config.trace_topic)
            self._tracer.start()
        self._batcher = auto_batcher_for(self._send_together, self.config)
        others = (self._numbers, self._tracer, self._spans, self._batcher)
        self._plain = self._sender if all(each is None for each in others) else None

    async def stop(self) -> None:
        """Wait for sends in flight, unregister from the brokers and close the connections."""
        if self._session is None or self._sender is None:
            return
        if self._batcher is not None:
            await self._batcher.flush()
        session, sender = self._session, self._sender
        self._session = self._sender = self._plain = None
        try:
            await sender.in_flight.wait_idle()  # every send ends within its timeout
        finally:
            sender.close()
            if self._requests is not None:
                self._requests.close()
            try:
                if self._tracer is not None:
                    await self._tracer.close()
            finally:
                await session.stop()

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        timeout: float | None = None,
        sequence: int | None = None,
    ) -> SendResult:
        """Send a message and return its queue and offset.

        Without ``queue``, ``selector`` and sharding key the topic's queues are used in turn, and a
        failed attempt is repeated with another broker. With one of them there is one attempt. An
        idempotent producer repeats all of them, at the same broker.

        Args:
            message: The message.
            queue: The queue.
            selector: Chooses one of the topic's queues.
            timeout: Seconds for all attempts together; the configured time if None.
            sequence: The number of this message, for a producer with a ``producer_id``.

        Raises:
            MessageRefused: The message breaks a rule; nothing was sent.
            RouteNotFound: No broker accepts messages of this topic, or none had a master in time.
            NoNameServer: No name server answers.
            RequestTimeout: No answer in time; the message may be stored or not.
            ConnectionLost: No broker could be reached; the message may be stored or not.
            Fault: A broker refused the message.
        """
        if selector is None and sequence is None:
            started = self._start_plain(message, queue, timeout)
            if started is not None:
                future = started if isinstance(started, asyncio.Future) else await started
                return await future
        return await (await self._start_slow(message, queue, selector, timeout, sequence, None))

    async def send_soon(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        timeout: float | None = None,
        sequence: int | None = None,
        message_id: str | None = None,
    ) -> asyncio.Future[SendResult]:
        """Start a send and return the future of its result, so that many can be in flight.

        Waits while ``in_flight_max`` messages or ``in_flight_bytes_max`` bytes are in flight: that
        is the back-pressure. Messages to one queue are sent in the order of the calls, also of
        calls by different tasks. A caller that has to find the message later may give it a
        ``message_id``, its unique id.

        Raises:
            MessageRefused: The message breaks a rule; nothing was sent.
            RouteNotFound: No broker accepts messages of this topic.
            NoNameServer: No name server answers.
        """
        started = self.start_send(
            message,
            queue=queue,
            selector=selector,
            timeout=timeout,
            sequence=sequence,
            message_id=message_id,
        )
        return started if isinstance(started, asyncio.Future) else await started

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
            RouteNotFound: No broker accepts messages of this topic.
            ConnectionLost: The broker cannot be reached.
        """
        session, sender = self._running()
        check_send(message, queue, selector)
        if self._idempotent is not None:
            raise MessageRefused(
                "an idempotent producer cannot send oneway: without an answer it is unknown "
                "whether to send again; use send or send_soon"
            )
        with self._begin_span(message) as span:
            out = self._envelopes.one(span.carry(message))
            seconds = self.config.send_timeout
            route = await session.routes.publish(message.topic, seconds=seconds)
            target, _ = target_queue(message, route, sender, queue, selector)
            await sender.send_oneway(out, target)

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        timeout: float | None = None,
        first_sequence: int | None = None,
        message_ids: Sequence[str] | None = None,
    ) -> list[SendResult]:
        """Send messages of one topic together, in as many requests as needed.

        Messages of one request are stored together, one after the other, or not at all. A producer
        with a ``producer_id`` numbers them from ``first_sequence`` on. Their unique ids are new
        unless ``message_ids`` has one for each.

        Raises:
            MessageRefused: A message breaks a rule, or they cannot be sent together; nothing was
                sent.
            RouteNotFound: No broker accepts messages of this topic.
            NoNameServer: No name server answers.
            RequestTimeout: No answer in time; a note has the number of messages certainly stored.
            ConnectionLost: No broker could be reached; the same note.
            Fault: A broker refused them; the same note.
        """
        self._running()
        if isinstance(messages, Message):
            raise MessageRefused("send_batch takes a list of messages; use send for one")
        if not messages:
            return []
        check_batch(messages, is_aimed=queue is not None)
        check_send(messages[0], queue, timeout=timeout)
        if self._idempotent is not None and message_ids is not None:
            raise MessageRefused(OWN_IDS)
        if self._idempotent is None and first_sequence is not None:
            raise MessageRefused(NO_SEQUENCE)
        if self._spans is None:
            return await self._send_batch(messages, queue, timeout, first_sequence, message_ids)
        span, carrying = self._spans.begin_batch(messages)
        with span:
            return await self._send_batch(carrying, queue, timeout, first_sequence, message_ids)

    async def _send_batch(
        self,
        messages: Sequence[Message],
        queue: MessageQueue | None,
        timeout: float | None,
        first_sequence: int | None,
        message_ids: Sequence[str] | None,
    ) -> list[SendResult]:
        session, sender = self._running()
        if self._idempotent is not None:
            return await self._send_batch_once(
                self._idempotent, messages, queue, timeout, first_sequence
            )
        config, first = self.config, messages[0]
        bytes_max, count_max = config.message_bytes_max, config.batch_count_max
        packs = pack(messages, bytes_max=bytes_max, count_max=count_max, ids=message_ids)
        limit = TimeLimit(self._seconds(timeout))
        route = await session.routes.publish(first.topic, seconds=limit.seconds)
        requests = [self._envelopes.batch(packed) for packed in packs]
        futures = [
            await self._send(
                packed.messages, out, target_queue(first, route, sender, queue), limit.left
            )
            for packed, out in zip(packs, requests, strict=True)
        ]
        return await join_results(requests, futures)

    async def request(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        timeout: float | None = None,
    ) -> ReceivedMessage:
        """Send a message, wait for a consumer's reply, and return it.

        Args:
            message: The request.
            queue: The queue.
            selector: Chooses one of the topic's queues.
            timeout: Seconds for the send and the reply together; ``send_timeout`` if None.

        Raises:
            NoReply: The message is stored, but nobody replied in time.
            MessageRefused: The message breaks a rule; nothing was sent.
            ClientError: See :meth:`send`.
            Fault: A broker refused the message.
        """
        session, sender = self._running()
        assert self._requests is not None
        requests = self._requests
        check_send(message, queue, selector, timeout)
        limit = TimeLimit(self._seconds(timeout))
        correlation_id, reply = requests.open()
        try:
            with self._begin_span(message) as span:
                message = span.carry(message)
                extra = request_properties(correlation_id, session.client_id, limit.seconds)
                out = self._envelopes.one(message, extra)
                route = await session.routes.publish(message.topic, seconds=limit.seconds)
                await requests.introduce(route)
                target = target_queue(message, route, sender, queue, selector)
                sent = await self._send([message], out, target, limit.left)
                sent.add_done_callback(look_at)
                first: set[asyncio.Future[Any]] = {sent, reply}
                await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
                if not reply.done():
                    span.note(await sent)
            async with asyncio.timeout(limit.left):
                return await reply
        except TimeoutError:
            raise NoReply(
                f"nobody replied to the message {out.message_id} in {limit.seconds:g} s;"
                " it is stored"
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
        """Reply to a message whose sender waits for it; see :attr:`ReceivedMessage.wants_reply`.

        Returns once the requester has the reply; only the requester knows whether it was in time.

        Raises:
            MessageRefused: ``request`` is not a request, or the reply breaks a rule; nothing was
                sent.
            Fault: No broker that was tried could reach the requester.
            ClientError: See :meth:`send`.
        """
        session, sender = self._running()
        check_timeout(timeout)
        message = Message(topic_for_reply(request), body, tags=tags, properties=properties)
        code = RequestCode.SEND_REPLY_MESSAGE_V2
        with self._begin_span(message) as span:
            out = self._envelopes.one(span.carry(message), reply_properties(request), code=code)
            seconds = self._seconds(timeout)
            route = await session.routes.publish(message.topic, seconds=seconds)
            queue = queue_for_reply(request, route) or sender.choose(route)
            result = await (await sender.send(out, queue, fixed=False, timeout=seconds))
            span.note(result)
        return result

    async def recall(self, topic: str, handle: str, *, timeout: float | None = None) -> str:
        """Recall a timed message that is not due yet; return its id.

        Once this has returned, the message will not be delivered.

        Args:
            topic: The topic of the message.
            handle: The ``recall_handle`` of its :class:`SendResult`.
            timeout: Seconds to wait; the configured time if None.

        Raises:
            MessageRefused: The handle is malformed; nothing was sent.
            IllegalOperation: It is too late, or no such message waits.
            NoPermission: The broker does not allow recalls (``recallMessageEnable``).
            RouteNotFound: The broker is unknown.
            RequestTimeout: No answer in time; the message may be recalled or not.
            ConnectionLost: The broker cannot be reached; the same.
            Fault: The broker refused for another reason.
        """
        session, _ = self._running()
        check_timeout(timeout)
        recall = recall_message(session, self.group, topic, handle, timeout)
        if self._tracer is None:
            return await recall
        return await self._tracer.follow_recall(topic, handle, recall)

    async def flush(self) -> None:
        """Wait until nothing is in flight."""
        sender = self._running()[1]
        if self._batcher is not None:
            await self._batcher.flush()
        await sender.in_flight.wait_idle()

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the writable queues of ``topic``.

        Raises:
            RouteNotFound: No broker accepts messages of this topic.
            NoNameServer: No name server answers.
        """
        return list((await self._running()[0].routes.publish(topic)).queues)

    async def last_sequence(self, topic: str) -> int | None:
        """Return the highest sequence of this id and epoch that a broker of ``topic`` has stored.

        None if there is none. Lower ones may be missing if their sends failed.

        Raises:
            ClientError: The producer is not idempotent, or a broker does not answer.
            Fault: A broker refuses.
        """
        return await self._require_idempotent().last_sequence(topic)

    async def were_stored(self, topic: str, sequences: Sequence[int]) -> list[bool | None]:
        """Tell for each sequence whether an earlier run of this id and epoch has stored it.

        Brokers are asked once, so sends since then are not included. None means that the sequence
        is so far back among so many gaps that the broker can no longer tell.

        Raises:
            ClientError: The producer is not idempotent, or a broker does not answer.
            Fault: A broker refuses.
        """
        return await self._require_idempotent().were_stored(topic, sequences, self._seconds(None))

    async def asked_brokers(self, topic: str) -> frozenset[str]:
        """Return the brokers of ``topic`` that were asked what an earlier run has stored.

        A broker that cannot be reached is not among them, and what it has stored is unknown.

        Raises:
            ClientError: The producer is not idempotent, or a broker does not answer.
            Fault: A broker refuses.
        """
        return await self._require_idempotent().asked_brokers(topic, self._seconds(None))

    def check(
        self,
        message: Message,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        timeout: float | None = None,
        sequence: int | None = None,
        message_id: str | None = None,
    ) -> None:
        """Refuse what :meth:`send_soon` would refuse without any request. Thread-safe.

        Raises:
            MessageRefused: The message breaks a rule.
            ConfigError: Another argument is invalid.
        """
        check_send(message, queue, selector, timeout)
        check_numbers(sequence, message_id, is_idempotent=self._numbers is not None)
        check_message(message, body_bytes_max=self.config.message_bytes_max)
