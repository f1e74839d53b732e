"""The simple consumer: receives messages and acknowledges each, without owning queues.

Any number of consumers of a group share all queues. A message that is received and not acknowledged
in time is delivered again, to the next consumer that asks; brokers count the deliveries.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
import uuid
from typing import Final

from rocketpost.client.checks import check_number, check_seconds, check_text
from rocketpost.client.config import ClientConfig, StartFrom, check_group, with_name_servers
from rocketpost.client.consumer.pop_calls import (
    COUNT_MAX,
    PopCalls,
    PoppedMessage,
    PopQuery,
    PopResult,
)
from rocketpost.client.consumer.subscriptions import make_subscription
from rocketpost.client.lifecycle import Lifecycle
from rocketpost.client.message import check_topic
from rocketpost.client.patience import pause_seconds
from rocketpost.client.session import Session
from rocketpost.client.spans import ClientSpans
from rocketpost.errors import (
    ClientError,
    ConfigError,
    ConnectionLost,
    Fault,
    NotConnected,
    RemoteProtocolError,
)
from rocketpost.model.group import SUBSCRIBE_ALL, Subscription

logger = logging.getLogger(__name__)

INVISIBLE_SECONDS_MAX: Final = 3 * 24 * 3600.0
_ANSWER_SECONDS: Final = 5.0
_LOOK_AGAIN_SECONDS: Final = 0.5


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
        name_servers: ``host:port;host:port``; overrides that of ``config``.
        start_from: Start of a group that a broker has never seen: FIRST or LAST.
        orderly: Whether messages of a queue are delivered in order: no more of a queue until the
            received ones are acknowledged or their time is over. All members must use the same.
        enable_spans: Whether to record spans of OpenTelemetry; needs ``rocketpost[spans]``.
        config: The other settings.

    Raises:
        ConfigError: The group's name is illegal, or the start is a time.
    """

    def __init__(
        self,
        group: str,
        *,
        name_servers: str | None = None,
        start_from: StartFrom = StartFrom.LAST,
        orderly: bool = False,
        enable_spans: bool = False,
        config: ClientConfig | None = None,
    ) -> None:
        check_group(group)
        if start_from not in (StartFrom.FIRST, StartFrom.LAST):
            raise ConfigError("a simple consumer starts from the first or the last offset")
        config = with_name_servers(config or ClientConfig(), name_servers, ClientConfig)
        self.group = group
        self.config = config
        self._start_from = start_from
        self._orderly = orderly
        self._spans = ClientSpans(group) if enable_spans else None
        self._lost_attempts: dict[tuple[str, str], str] = {}
        """Ids of orderly pops whose answers were lost, by topic and broker."""
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
        self._calls = PopCalls(session, self.group)

    async def stop(self) -> None:
        """Close the connections; unacknowledged messages are delivered again after their time."""
        session, self._session = self._session, None
        if session is not None:
            await session.stop()

    async def subscribe(
        self, topic: str, tags: str = SUBSCRIBE_ALL, *, sql: str | None = None
    ) -> None:
        """Receive messages of ``topic`` from now on; replaces an earlier filter.

        Args:
            topic: The topic.
            tags: A tag expression, such as ``A || B``.
            sql: A SQL92 filter instead of tags, such as ``price > 5 AND region = 'eu'``.

        Raises:
            FilterError: The SQL filter is wrong; the text says where and why.
            MessageRefused: The topic's name is illegal.
            RouteNotFound: The topic is unknown.
            NoNameServer: No name server answers.
        """
        check_text("topic", topic)
        check_topic(topic)
        subscription = make_subscription(topic, tags, sql, version=0)
        await self._running().routes.route(topic)
        self._subscriptions[topic] = subscription

    async def unsubscribe(self, topic: str) -> None:
        """Stop receiving messages of ``topic``."""
        self._subscriptions.pop(topic, None)

    async def receive(
        self,
        count_max: int = COUNT_MAX,
        *,
        invisible_seconds: float = 60.0,
        await_seconds: float = 15.0,
    ) -> list[PoppedMessage]:
        """Return messages; none if none arrive in time.

        They come from one broker at a time, so a short list does not mean that there are no more.

        Args:
            count_max: Maximum of messages; up to 32.
            invisible_seconds: Time after which they are delivered again, unless acknowledged.
            await_seconds: Maximum wait for the first message.

        Raises:
            ConfigError: An argument is invalid, or there is no subscription.
            Fault: Every broker refuses; this is the last one's refusal.
            ClientError: No broker could be reached within ``await_seconds``.
        """
        self._running()
        check_number("count_max", count_max, least=1)
        check_seconds("invisible_seconds", invisible_seconds, zero=True)
        check_seconds("await_seconds", await_seconds, zero=True)
        if count_max > COUNT_MAX:
            raise ConfigError(f"count_max {count_max} must be between 1 and {COUNT_MAX}")
        if invisible_seconds > INVISIBLE_SECONDS_MAX:
            raise ConfigError(f"invisible_seconds must be between 0 and {INVISIBLE_SECONDS_MAX}")
        if not self._subscriptions:
            raise ConfigError("nothing is subscribed; call subscribe() first")
        received = self._receive(count_max, invisible_seconds, await_seconds)
        return await (received if self._spans is None else self._spans.receive(received))

    async def _receive(
        self, count_max: int, invisible_seconds: float, await_seconds: float
    ) -> list[PoppedMessage]:
        deadline, pauses = time.monotonic() + max(await_seconds, 0.0), 0
        while True:
            wishes = await self._queries(count_max, invisible_seconds)
            wait = deadline - time.monotonic()
            hold = wait if len(wishes) == 1 else 0.0
            try:
                messages = await self._sweep([each._replace(hold_seconds=hold) for each in wishes])
            except ConnectionLost:  # from every broker; messages popped in vain are delivered again
                pause = pause_seconds(pauses)
                if time.monotonic() + pause >= deadline:
                    raise
                await asyncio.sleep(pause)
                pauses += 1
                await self._refresh_routes()
                continue
            wait = deadline - time.monotonic()
            if messages or wait <= 0:
                return messages
            if len(wishes) > 1:
                await self._wait_for_any([each._replace(hold_seconds=wait) for each in wishes])

    async def ack(self, message: PoppedMessage) -> None:
        """Acknowledge a message; returns when the broker has stored the acknowledgement.

        Raises:
            Fault: The broker refuses.
            ClientError: The broker does not answer; acknowledging again is harmless.
        """
        session = self._running()
        check_popped(message)
        done = session.patiently(message.queue.topic, lambda: self._calls.ack(message))
        await (done if self._spans is None else self._spans.acknowledge(message, done))

    async def change_invisible_duration(self, message: PoppedMessage, seconds: float) -> None:
        """Make a message visible again after ``seconds``; 0 for at once.

        This changes the receipt of the message.

        Raises:
            ConfigError: The time is invalid.
            NoMessage: It was acknowledged, or its time is over and another consumer has it.
            Fault: The broker refuses.
            ClientError: The broker does not answer.
        """
        check_popped(message)
        check_seconds("seconds", seconds, zero=True)
        if seconds > INVISIBLE_SECONDS_MAX:
            raise ConfigError(f"seconds must be between 0 and {INVISIBLE_SECONDS_MAX}")
        await self._running().patiently(
            message.queue.topic,
            lambda: self._calls.change(message, seconds),
            after=NotConnected,  # an unanswered change may have changed the receipt
        )

    # Brokers, in turn.

    async def _queries(self, count_max: int, invisible_seconds: float) -> list[PopQuery]:
        """Return the pops for every broker of every topic, starting with another one each time."""
        routes = self._running().routes
        found: dict[tuple[str, str], PopQuery] = {}
        for subscription in list(self._subscriptions.values()):
            for queue in await routes.subscribe(subscription.topic):
                found[subscription.topic, queue.broker_name] = PopQuery(
                    subscription,
                    queue.broker_name,
                    count_max=count_max,
                    invisible_seconds=invisible_seconds,
                    start_from=self._start_from,
                    in_order=self._orderly,
                )
        if not found:
            raise ClientError("no broker has a queue of these topics that can be read")
        wishes = list(found.values())
        begin = next(self._turns) % len(wishes)
        return wishes[begin:] + wishes[:begin]

    async def _refresh_routes(self) -> None:
        routes = self._running().routes
        for topic in list(self._subscriptions):
            await routes.refresh(topic)

    async def _pop(self, wish: PopQuery) -> PopResult:
        """Pop; an orderly pop whose answer was lost is repeated with the same id."""
        if not self._orderly:
            return await self._calls.pop(wish)
        place = wish.subscription.topic, wish.broker_name
        attempt = self._lost_attempts.pop(place, None) or uuid.uuid4().hex
        try:
            return await self._calls.pop(wish._replace(attempt_id=attempt))
        except BaseException:  # also if the caller gives up
            self._lost_attempts[place] = attempt
            raise

    async def _sweep(self, wishes: list[PopQuery]) -> list[PoppedMessage]:
        failures: list[Exception] = []
        for wish in wishes:
            try:
                messages, was_full = await self._pop(wish)
            except (ClientError, Fault, RemoteProtocolError) as error:
                logger.info("nothing received: broker=%s reason=%s", wish.broker_name, error)
                failures.append(error)
                continue
            if messages:
                return messages
            if was_full:
                await asyncio.sleep(min(max(wish.hold_seconds, 0.0), _LOOK_AGAIN_SECONDS))
        if len(failures) == len(wishes):
            raise failures[-1]
        return []

    async def _wait_for_any(self, wishes: list[PopQuery]) -> None:
        """Wait until a broker reports messages, or the time is over."""
        wait = wishes[0].hold_seconds
        asking = [asyncio.ensure_future(self._wait_notified(wish)) for wish in wishes]
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

    async def _wait_notified(self, wish: PopQuery) -> bool:
        lost = self._lost_attempts.get((wish.subscription.topic, wish.broker_name))
        try:
            return await self._calls.wait_notified(wish._replace(attempt_id=lost))
        except (ClientError, Fault) as error:
            logger.info("no notification: broker=%s reason=%s", wish.broker_name, error)
            return False

    def _running(self) -> Session:
        if self._session is None:
            raise ClientError("the consumer is not running; use `async with` or call start()")
        return self._session


def check_popped(message: PoppedMessage) -> None:
    """Raise unless ``message`` was received by a simple consumer.

    Raises:
        ConfigError: It was received in another way, or is no message.
    """
    if not isinstance(message, PoppedMessage):
        raise ConfigError(f"message must be one that was received, not {message!r}")
