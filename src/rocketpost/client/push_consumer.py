"""The push consumer: handlers are called with the messages of the queues that are ours."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from types import TracebackType
from typing import Self

from rocketpost.client.allocation import AllocationStrategy, Average
from rocketpost.client.config import ProducerConfig, PushConsumerConfig
from rocketpost.client.consuming import BatchHandler, Consuming, Handler, Listener, listener_for
from rocketpost.client.feeding import Feeding
from rocketpost.client.inspection import Inspection
from rocketpost.client.producer import check_group
from rocketpost.client.rebalance import Rebalancer
from rocketpost.client.retry import SendBack
from rocketpost.client.sender import Sender
from rocketpost.client.session import Answer, Session
from rocketpost.client.tasks import Tasks, repeat
from rocketpost.codec.bodies.client import ClientConfigCheck, ConsumerData
from rocketpost.codec.bodies.offset import decode_queue_offsets
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.command import Command
from rocketpost.codec.headers.client import ConsumerGroupRequest
from rocketpost.codec.headers.offset import ResetOffset
from rocketpost.codec.lenient_json import encode
from rocketpost.errors import ClientError, ConfigError, Fault, RouteNotFound
from rocketpost.model.group import SQL92, SUBSCRIBE_ALL, Subscription, parse_tags
from rocketpost.model.names import retry_topic, topic_problem
from rocketpost.model.route import MessageQueue
from rocketpost.transport.connection import Connection

logger = logging.getLogger(__name__)

_EXPIRE_SECONDS = 60.0


class PushConsumer:
    """Has handlers called with messages. Belongs to the event loop.

    ::

        consumer = PushConsumer("billing", name_servers="127.0.0.1:9876")
        consumer.subscribe("Orders", handle_order, tags="paid || refunded")
        async with consumer:
            await consumer.run_forever()

    A handler that returns has done with its message; one that raises gets it again later, see
    :class:`Retry`. Async handlers run on the loop, plain functions in threads, ``concurrency`` of
    each kind at most. Messages may come more than once and in any order.

    Args:
        group: The consumer group; its members share the queues and must subscribe alike.
        name_servers: ``host:port;host:port``; wins over the one in ``config``.
        config: Everything else.
        strategy: How the members share the queues; all must use the same.

    Raises:
        ConfigError: The group's name is illegal.
    """

    def __init__(
        self,
        group: str,
        *,
        name_servers: str | None = None,
        config: PushConsumerConfig | None = None,
        strategy: AllocationStrategy | None = None,
    ) -> None:
        check_group(group)
        config = config or PushConsumerConfig()
        if name_servers is not None:
            config = dataclasses.replace(config, name_servers=name_servers)
        self.group = group
        self.config = config
        self._strategy = strategy or Average()
        self._subscriptions: dict[str, Subscription] = {}
        self._listeners: dict[str, Listener] = {}
        self._session: Session | None = None
        self._background = Tasks()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    @property
    def client_id(self) -> str:
        """The id by which brokers know this client; it has one once started."""
        return self._running().client_id

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that are ours now."""
        self._running()
        return [owned.queue for owned in self._feeding.owned]

    def subscribe(
        self, topic: str, handler: Handler, *, tags: str = SUBSCRIBE_ALL, sql: str | None = None
    ) -> None:
        """Have ``handler`` called with each message of ``topic``.

        Args:
            topic: Which topic.
            handler: An async or a plain function of one message.
            tags: Which tags, such as ``A || B``; all if ``*``.
            sql: A SQL92 filter instead of tags; brokers must have it enabled.

        Raises:
            ConfigError: The topic's name is illegal.
        """
        self._subscribe(topic, listener_for(handler, batches=False), tags, sql)

    def subscribe_batches(
        self,
        topic: str,
        handler: BatchHandler,
        *,
        tags: str = SUBSCRIBE_ALL,
        sql: str | None = None,
    ) -> None:
        """Have ``handler`` called with up to ``batch_max`` messages of ``topic`` at a time.

        If it raises, all of them come again later.

        Raises:
            ConfigError: The topic's name is illegal.
        """
        self._subscribe(topic, listener_for(handler, batches=True), tags, sql)

    def unsubscribe(self, topic: str) -> None:
        """Have no more messages of ``topic``."""
        self._subscriptions.pop(topic, None)
        self._listeners.pop(topic, None)
        if self._session is not None:
            self._changed()

    async def start(self) -> None:
        """Connect, tell the brokers, and begin to consume.

        Raises:
            ConfigError: Nothing is subscribed to.
            NoNameServer: No name server is known, or none answers.
            Fault: A broker refuses a SQL filter.
        """
        if self._session is not None:
            raise ClientError("the consumer is running already")
        if not self._subscriptions:
            raise ConfigError("subscribe to a topic before starting the consumer")
        session = Session(self.config)
        session.add_consumer(self._describe)
        session.on(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, self._members_changed)
        session.on(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, self._reset_offsets)
        await session.start()
        self._assemble(session)
        try:
            await self._first_contact(session)
        except BaseException:
            await self.stop()
            raise
        self._background.start(self._rebalancer.run(), name="rebalance")
        every = self.config.persist_seconds
        persist = repeat(self._feeding.persist, every=every, first=every, what="offsets")
        self._background.start(persist, name="persist offsets")
        every = min(_EXPIRE_SECONDS, self.config.consume_timeout)
        expire = repeat(self._expire, every=every, first=every, what="slow handlers")
        self._background.start(expire, name="expire slow handlers")

    async def stop(self) -> None:
        """Stop fetching, let handlers at work finish, store the offsets, take leave.

        Handlers get ``stop_seconds``; messages that are fetched and not yet begun, or that do not
        finish in time, are delivered again to whoever owns their queue next.
        """
        session = self._session
        if session is None:
            return
        self._session = None
        await self._background.stop()
        await self._feeding.stop_fetching()
        await self._consuming.stop(self.config.stop_seconds)
        await self._sender.in_flight.wait_idle()
        await self._feeding.close()
        self._sender.close()
        await session.stop()

    async def run_forever(self) -> None:
        """Consume until cancelled."""
        self._running()
        await asyncio.Event().wait()

    # Inside.

    async def _expire(self) -> None:
        await self._consuming.expire(self._feeding.owned)

    def _running(self) -> Session:
        if self._session is None:
            raise ClientError("the consumer is not running; use `async with` or call start()")
        return self._session

    def _assemble(self, session: Session) -> None:
        config = self.config
        self._session = session
        self._sender = Sender(session, ProducerConfig())
        self._consuming = Consuming(
            listeners=self._listeners,
            send_back=SendBack(session, self._sender, self.group, retry_max=config.retry_max),
            config=config,
        )
        self._feeding = Feeding(
            session,
            self.group,
            config=config,
            subscription=self._subscription,
            submit=self._consuming.submit,
        )
        self._rebalancer = Rebalancer(
            session,
            self.group,
            strategy=self._strategy,
            topics=self._topics,
            apply=self._feeding.apply,
            every=config.rebalance_seconds,
        )
        Inspection(
            session,
            self.group,
            describe=self._describe,
            consuming=self._consuming,
            feeding=self._feeding,
        )
        session.on_reconnect(self._rebalancer.wake)

    async def _first_contact(self, session: Session) -> None:
        for topic in self._topics():
            try:
                await session.routes.fetch(topic)
            except (RouteNotFound, Fault) as error:
                logger.info("no route yet: topic=%s reason=%s", topic, error)
        for subscription in self._subscriptions.values():
            if not subscription.is_tag:
                await self._check_expression(session, subscription)
        await session.heartbeat_all()

    async def _check_expression(self, session: Session, subscription: Subscription) -> None:
        address = session.routes.some_broker(subscription.topic)
        if address is not None:
            check = ClientConfigCheck(
                client_id=session.client_id, group=self.group, subscription_data=subscription
            )
            await session.call(address, RequestCode.CHECK_CLIENT_CONFIG, body=encode(check))

    def _subscribe(self, topic: str, listener: Listener, tags: str, sql: str | None) -> None:
        problem = topic_problem(topic)
        if problem is not None:
            raise ConfigError(problem)
        version = time.time_ns() // 1_000_000
        if sql is None:
            subscription = parse_tags(topic, tags, version=version)
        else:
            subscription = Subscription(
                topic=topic, sub_string=sql, expression_type=SQL92, sub_version=version
            )
        self._subscriptions[topic] = subscription
        self._listeners[topic] = listener
        if self._session is not None:
            self._changed()

    def _changed(self) -> None:
        session = self._running()
        session.tasks.start(self._announce(), name="announce subscriptions")

    async def _announce(self) -> None:
        session = self._running()
        for topic in self._topics():
            await session.routes.refresh(topic)
        await session.heartbeat_all()
        await self._feeding.drop_other_topics(self._topics())
        self._rebalancer.wake()

    def _topics(self) -> list[str]:
        return [*self._subscriptions, retry_topic(self.group)]

    def _subscription(self, topic: str) -> Subscription | None:
        if topic == retry_topic(self.group):
            return self._retry_subscription()
        return self._subscriptions.get(topic)

    def _retry_subscription(self) -> Subscription:
        return Subscription(topic=retry_topic(self.group), sub_string=SUBSCRIBE_ALL)

    def _describe(self) -> ConsumerData:
        return ConsumerData(
            group_name=self.group,
            consume_from_where=self.config.start_from.value,
            subscription_data_set=[*self._subscriptions.values(), self._retry_subscription()],
        )

    # Requests of brokers.

    def _members_changed(self, connection: Connection, command: Command) -> Answer | None:
        if command.read(ConsumerGroupRequest).consumer_group == self.group:
            self._rebalancer.wake()
        return None

    def _reset_offsets(self, connection: Connection, command: Command) -> Answer | None:
        if command.read(ResetOffset).group == self.group:
            work = self._reset_all(decode_queue_offsets(command.body))
            self._running().tasks.start(work, name="reset offsets")
        return None

    async def _reset_all(self, offsets: dict[MessageQueue, int]) -> None:
        for queue, offset in offsets.items():
            await self._feeding.reset(queue, offset)
