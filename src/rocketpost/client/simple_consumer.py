"""The simple consumer: takes messages, acknowledges each, keeps no queue of its own.

Any number of consumers of a group share all queues. A message that was received and not
acknowledged in time comes again, to whoever asks next; brokers keep count of that.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import logging
import time
from typing import Final, NamedTuple

from rocketpost.client.config import ClientConfig, StartFrom
from rocketpost.client.fetch import unwrapped
from rocketpost.client.lifecycle import Lifecycle
from rocketpost.client.message import ReceivedMessage, check_topic
from rocketpost.client.producer import check_group
from rocketpost.client.session import Session
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.command import Command
from rocketpost.codec.headers.pop import (
    IN_RETRY_TOPIC,
    IN_RETRY_TOPIC_V2,
    IN_TOPIC,
    AckMessage,
    ChangedInvisibleTime,
    ChangeInvisibleTime,
    Notification,
    NotificationResponse,
    PopMessage,
    PopResponse,
    Receipt,
    parse_receipt,
    parse_start_offsets,
    real_topic,
)
from rocketpost.codec.record import Record, decode_records
from rocketpost.errors import ClientError, ConfigError, Fault, RemoteProtocolError
from rocketpost.model import properties as names
from rocketpost.model.group import SUBSCRIBE_ALL, Subscription, parse_tags
from rocketpost.model.names import RETRY_PREFIX
from rocketpost.model.route import MessageQueue

logger = logging.getLogger(__name__)

COUNT_MAX: Final = 32
"""Messages that one call may ask for."""
INVISIBLE_SECONDS_MAX: Final = 3 * 24 * 3600.0
_ALL_QUEUES: Final = -1
_FROM_FIRST: Final = 0
_FROM_LAST: Final = 1
_NOTHING: Final = frozenset({ResponseCode.POLLING_TIMEOUT, ResponseCode.POLLING_FULL})
_ANSWER_SECONDS: Final = 5.0
_LOOK_AGAIN_SECONDS: Final = 0.5


class PoppedMessage(ReceivedMessage):
    """A message that is this consumer's until its time is over.

    Attributes:
        receipt: Names this delivery; changes when the message is given more time.
    """

    __slots__ = ("receipt",)

    def __init__(self, record: Record, queue: MessageQueue, receipt: Receipt) -> None:
        super().__init__(record, queue)
        self.receipt = receipt

    @property
    def visible_at_ms(self) -> int:
        """When it comes again, by the broker's clock."""
        return self.receipt.pop_ms + self.receipt.invisible_ms


class _Target(NamedTuple):
    subscription: Subscription
    broker_name: str


class SimpleConsumer(Lifecycle):
    """Receives messages one by one and acknowledges them. Belongs to the event loop.

    ::

        async with SimpleConsumer("workers", name_servers="127.0.0.1:9876") as consumer:
            await consumer.subscribe("Orders")
            for message in await consumer.receive(invisible_seconds=30):
                work(message.body)
                await consumer.ack(message)

    Args:
        group: The consumer group.
        name_servers: ``host:port;host:port``; wins over the one in ``config``.
        start_from: Where a group begins that a broker has never seen: FIRST or LAST.
        config: Everything else.

    Raises:
        ConfigError: The group's name is illegal, or the start is a time.
    """

    def __init__(
        self,
        group: str,
        *,
        name_servers: str | None = None,
        start_from: StartFrom = StartFrom.LAST,
        config: ClientConfig | None = None,
    ) -> None:
        check_group(group)
        if start_from not in (StartFrom.FIRST, StartFrom.LAST):
            raise ConfigError("a simple consumer starts from the first or the last offset")
        config = config or ClientConfig()
        if name_servers is not None:
            config = dataclasses.replace(config, name_servers=name_servers)
        self.group = group
        self.config = config
        self._init_mode = _FROM_FIRST if start_from is StartFrom.FIRST else _FROM_LAST
        self._subscriptions: dict[str, Subscription] = {}
        self._turns = itertools.count()
        self._session: Session | None = None

    async def start(self) -> None:
        """Find the name servers.

        Raises:
            NoNameServer: No address of a name server is known.
        """
        if self._session is not None:
            raise ClientError("the consumer is running already")
        session = Session(self.config)
        await session.start()
        self._session = session

    async def stop(self) -> None:
        """Close the connections; what was not acknowledged comes again when its time is over."""
        session, self._session = self._session, None
        if session is not None:
            await session.stop()

    async def subscribe(self, topic: str, tags: str = SUBSCRIBE_ALL) -> None:
        """Receive messages of ``topic`` from now on, with other tags if it was before.

        Raises:
            MessageRefused: The topic's name is illegal.
            RouteNotFound: The topic is unknown.
            NoNameServer: No name server answers.
        """
        check_topic(topic)
        await self._running().routes.route(topic)
        self._subscriptions[topic] = parse_tags(topic, tags, version=0)

    async def unsubscribe(self, topic: str) -> None:
        """Receive no more messages of ``topic``."""
        self._subscriptions.pop(topic, None)

    async def receive(
        self,
        count_max: int = COUNT_MAX,
        *,
        invisible_seconds: float = 60.0,
        await_seconds: float = 15.0,
    ) -> list[PoppedMessage]:
        """Return messages, or none if there are none in time.

        They come from one broker at a time, so there may be more although few are returned.

        Args:
            count_max: How many at most; up to 32.
            invisible_seconds: They come again after so long, unless acknowledged.
            await_seconds: How long to wait for the first.

        Raises:
            ConfigError: An argument makes no sense, or nothing is subscribed.
            Fault: Every broker refuses; this is what the last one said.
            ClientError: No broker can be reached.
        """
        self._running()
        if not 1 <= count_max <= COUNT_MAX:
            raise ConfigError(f"count_max {count_max} must be between 1 and {COUNT_MAX}")
        if not 0 <= invisible_seconds <= INVISIBLE_SECONDS_MAX:
            raise ConfigError(f"invisible_seconds must be between 0 and {INVISIBLE_SECONDS_MAX}")
        if not self._subscriptions:
            raise ConfigError("nothing is subscribed; call subscribe() first")
        deadline = time.monotonic() + max(await_seconds, 0.0)
        while True:
            targets = await self._targets()
            wait = deadline - time.monotonic()
            hold = wait if len(targets) == 1 else 0.0
            messages = await self._sweep(targets, count_max, invisible_seconds, hold)
            wait = deadline - time.monotonic()
            if messages or wait <= 0:
                return messages
            if len(targets) > 1:
                await self._wait_for_any(targets, wait)

    async def ack(self, message: PoppedMessage) -> None:
        """Have a message never come again; returns when the broker has stored that.

        Raises:
            Fault: The broker refuses.
            ClientError: The broker does not answer; acknowledging again is harmless.
        """
        receipt = message.receipt
        header = AckMessage(
            consumer_group=self.group,
            topic=real_topic(receipt.retry, self.group, message.queue.topic),
            queue_id=receipt.queue_id,
            extra_info=str(receipt),
            offset=receipt.offset,
        )
        await self._call(message.queue, RequestCode.ACK_MESSAGE, header)

    async def change_invisible_duration(self, message: PoppedMessage, seconds: float) -> None:
        """Have a message come again so much from now; 0 gives it up at once.

        The message's receipt is another one afterwards.

        Raises:
            ConfigError: The time makes no sense.
            NoMessage: It was acknowledged, or its time is over and it is somebody else's.
            Fault: The broker refuses.
            ClientError: The broker does not answer.
        """
        if not 0 <= seconds <= INVISIBLE_SECONDS_MAX:
            raise ConfigError(f"seconds must be between 0 and {INVISIBLE_SECONDS_MAX}")
        receipt = message.receipt
        header = ChangeInvisibleTime(
            consumer_group=self.group,
            topic=real_topic(receipt.retry, self.group, message.queue.topic),
            queue_id=receipt.queue_id,
            extra_info=str(receipt),
            offset=receipt.offset,
            invisible_time=round(seconds * 1000),
        )
        answer = await self._call(message.queue, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)
        changed = answer.read(ChangedInvisibleTime)
        message.receipt = receipt._replace(
            start_offset=receipt.offset,
            pop_ms=changed.pop_time,
            invisible_ms=changed.invisible_time,
            revive_queue=changed.revive_qid,
        )

    # Brokers, in turn.

    async def _targets(self) -> list[_Target]:
        """Return every broker of every topic, beginning with another one each time."""
        routes = self._running().routes
        found: dict[_Target, None] = {}
        for subscription in list(self._subscriptions.values()):
            for queue in await routes.subscribe(subscription.topic):
                found[_Target(subscription, queue.broker_name)] = None
        if not found:
            raise ClientError("no broker has a queue of these topics that can be read")
        targets = list(found)
        begin = next(self._turns) % len(targets)
        return targets[begin:] + targets[:begin]

    async def _sweep(
        self, targets: list[_Target], count_max: int, invisible_seconds: float, hold: float
    ) -> list[PoppedMessage]:
        failures: list[Exception] = []
        for target in targets:
            header = PopMessage(
                consumer_group=self.group,
                topic=target.subscription.topic,
                queue_id=_ALL_QUEUES,
                max_msg_nums=count_max,
                invisible_time=round(invisible_seconds * 1000),
                poll_time=round(max(hold, 0.0) * 1000),
                born_time=time.time_ns() // 1_000_000,
                init_mode=self._init_mode,
                exp_type=target.subscription.expression_type,
                exp=target.subscription.sub_string,
            )
            try:
                if messages := await self._pop(target, header, hold):
                    return messages
            except (ClientError, Fault, RemoteProtocolError) as error:
                logger.info("nothing received: broker=%s reason=%s", target.broker_name, error)
                failures.append(error)
        if len(failures) == len(targets):
            raise failures[-1]
        return []

    async def _pop(self, target: _Target, header: PopMessage, hold: float) -> list[PoppedMessage]:
        session = self._running()
        answer = await session.call(
            session.routes.master(target.broker_name),
            RequestCode.POP_MESSAGE,
            header,
            timeout=max(hold, 0.0) + _ANSWER_SECONDS,
            accept=_NOTHING,
        )
        if answer.code != ResponseCode.SUCCESS:
            if answer.code == ResponseCode.POLLING_FULL:
                await asyncio.sleep(min(max(hold, 0.0), _LOOK_AGAIN_SECONDS))
            return []
        messages = self._messages(target, answer)
        wanted = target.subscription.tags_set
        if not wanted:
            return messages
        # Brokers compare hashes of tags; two tags may share one.
        others = [message for message in messages if message.tags not in wanted]
        for message in others:
            await self.ack(message)
        return [message for message in messages if message.tags in wanted]

    def _messages(self, target: _Target, answer: Command) -> list[PoppedMessage]:
        head = answer.read(PopResponse)
        starts = parse_start_offsets(head.start_offset_info or "")
        topic = target.subscription.topic
        messages = []
        for stored in decode_records(answer.body):
            for record in unwrapped(stored, first=0):
                receipt = self._receipt(head, starts, record, target)
                queue = MessageQueue(target.broker_name, record.queue_id, topic)
                messages.append(PoppedMessage(record, queue, receipt))
        return messages

    def _receipt(
        self,
        head: PopResponse,
        starts: dict[tuple[int, int], int],
        record: Record,
        target: _Target,
    ) -> Receipt:
        text = record.properties.get(names.POP_CK)
        if text is not None:
            return parse_receipt(text)
        retry = IN_TOPIC
        if record.topic.startswith(RETRY_PREFIX) and record.topic != target.subscription.topic:
            newer = real_topic(IN_RETRY_TOPIC_V2, self.group, target.subscription.topic)
            retry = IN_RETRY_TOPIC_V2 if record.topic == newer else IN_RETRY_TOPIC
        return Receipt(
            starts.get((retry, record.queue_id), record.queue_offset),
            head.pop_time,
            head.invisible_time,
            head.revive_qid,
            retry,
            target.broker_name,
            record.queue_id,
            record.queue_offset,
        )

    async def _wait_for_any(self, targets: list[_Target], wait: float) -> None:
        """Return when a broker says that there is something, or after ``wait`` seconds."""
        asking = [asyncio.ensure_future(self._notified(target, wait)) for target in targets]
        try:
            async with asyncio.timeout(wait + _ANSWER_SECONDS):
                while asking:
                    done, _ = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
                    if any(each.result() for each in done):
                        return
                    asking = [each for each in asking if not each.done()]
                await asyncio.sleep(min(wait, _LOOK_AGAIN_SECONDS))
        except TimeoutError:
            return
        finally:
            for each in asking:
                each.cancel()
            if asking:
                await asyncio.wait(asking)

    async def _notified(self, target: _Target, wait: float) -> bool:
        session = self._running()
        header = Notification(
            consumer_group=self.group,
            topic=target.subscription.topic,
            queue_id=_ALL_QUEUES,
            poll_time=round(wait * 1000),
            born_time=time.time_ns() // 1_000_000,
        )
        try:
            answer = await session.call(
                session.routes.master(target.broker_name),
                RequestCode.NOTIFICATION,
                header,
                timeout=wait + _ANSWER_SECONDS,
                accept=_NOTHING,
            )
        except (ClientError, Fault) as error:
            logger.info("no notification: broker=%s reason=%s", target.broker_name, error)
            return False
        return answer.read(NotificationResponse).has_msg

    async def _call(self, queue: MessageQueue, code: int, header: AckMessage) -> Command:
        session = self._running()
        return await session.call(session.routes.master(queue.broker_name), code, header)

    def _running(self) -> Session:
        if self._session is None:
            raise ClientError("the consumer is not running; use `async with` or call start()")
        return self._session
