"""The push consumer: calls handlers with the messages of its queues."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Collection
from typing import Final

from rocketpost.client.checks import check_function, check_queues
from rocketpost.client.config import (
    MessageModel,
    ProducerConfig,
    PushConsumerConfig,
    check_group,
    with_name_servers,
    with_stable_name,
)
from rocketpost.client.consumer.allocation import AllocationStrategy, Average, check_strategy
from rocketpost.client.consumer.assigned_queues import AssignedQueues
from rocketpost.client.consumer.assigning import BrokerAssignment
from rocketpost.client.consumer.broker_requests import BrokerRequests
from rocketpost.client.consumer.inspection import Inspection
from rocketpost.client.consumer.local_offsets import LocalOffsets
from rocketpost.client.consumer.offset_calls import OffsetCalls
from rocketpost.client.consumer.progress import BrokerProgress, OffsetStore, check_store
from rocketpost.client.consumer.push.concurrent import ConcurrentConsumption
from rocketpost.client.consumer.push.handlers import (
    BatchHandler,
    Consumption,
    Handler,
    Handlers,
    HandlerSpec,
    listener_for,
)
from rocketpost.client.consumer.push.orderly import OrderlyConsumption
from rocketpost.client.consumer.push.popping import PopConsumption
from rocketpost.client.consumer.push.retry import SendBack
from rocketpost.client.consumer.rebalance import QueueListener, Rebalancer
from rocketpost.client.consumer.subscription_check import SubscriptionCheck
from rocketpost.client.consumer.subscriptions import (
    SubscriptionChange,
    Subscriptions,
    subscription_of,
)
from rocketpost.client.heartbeat_watchdog import HeartbeatWatchdog
from rocketpost.client.lifecycle import Lifecycle
from rocketpost.client.producer.sender import Sender
from rocketpost.client.session import Session
from rocketpost.client.signals import watch_signals_on_loop
from rocketpost.client.spans import ClientSpans
from rocketpost.client.tasks import BackgroundTasks, repeat
from rocketpost.client.tracing import Tracer
from rocketpost.codec.bodies.client import ClientConfigCheck
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.lenient_json import encode
from rocketpost.errors import ClientError, ConfigError, Fault, RouteNotFound
from rocketpost.model.group import SUBSCRIBE_ALL, Subscription
from rocketpost.model.route import MessageQueue

logger = logging.getLogger(__name__)

_BEGIN_SECONDS: Final = 3.0
_EXPIRE_SECONDS: Final = 60.0


class PushConsumer(Lifecycle):
    """Calls handlers with messages. Belongs to the event loop.

    ::

        consumer = PushConsumer("billing", name_servers="127.0.0.1:9876")
        consumer.subscribe("Orders", handle_order, tags="paid || refunded")
        async with consumer:
            await consumer.run_forever()

    A message whose handler returns is finished; if it raises, the message is delivered again later,
    see :class:`Retry`. Async handlers run on the loop, plain functions in threads, at most
    ``concurrency`` of each kind. Messages may be delivered more than once and, unless handlers are
    orderly, in any order.

    Args:
        group: The consumer group; its members share the queues and must have equal subscriptions.
        name_servers: ``host:port;host:port``; overrides that of ``config``.
        config: The other settings.
        strategy: The strategy by which members share queues; all must use the same.
        queue_listener: A plain function that is called with a topic, its queues and our share,
            each time they change. It runs on the loop, so it must be quick.
        offset_store: Keeps the offsets instead of brokers and files.

    Raises:
        ConfigError: The group's name is illegal, or an argument is invalid.
    """

    def __init__(
        self,
        group: str,
        *,
        name_servers: str | None = None,
        config: PushConsumerConfig | None = None,
        strategy: AllocationStrategy | None = None,
        queue_listener: QueueListener | None = None,
        offset_store: OffsetStore | None = None,
    ) -> None:
        check_group(group)
        config = with_name_servers(config or PushConsumerConfig(), name_servers, PushConsumerConfig)
        config = with_stable_name(config)
        self.group = group
        self.config = config
        self._strategy = check_strategy(strategy or Average())
        if queue_listener is not None:
            check_function("queue_listener", queue_listener, arguments=3, may_be_async=False)
            if not config.client_rebalance:
                raise ConfigError("a queue_listener needs client_rebalance=True")
        self._queue_listener = queue_listener
        self._offset_store = check_store(offset_store)
        self._spans = ClientSpans(group) if config.enable_spans else None
        self._subscriptions = Subscriptions(group, config)
        self._session: Session | None = None
        self._background = BackgroundTasks()
        self._runners: set[asyncio.Event] = set()

    @property
    def client_id(self) -> str:
        """The client id; available once started."""
        return self._running().client_id

    @property
    def queues(self) -> list[MessageQueue]:
        """The assigned queues; -1 stands for all queues of a broker, which members share."""
        self._running()
        return [owned.queue for owned in self._assigned_queues.owned] + self._popping.queues

    def subscribe(
        self,
        topic: str,
        handler: Handler,
        *,
        tags: str = SUBSCRIBE_ALL,
        sql: str | None = None,
        orderly: bool = False,
        auto_commit: bool = True,
    ) -> SubscriptionChange:
        """Call ``handler`` with each message of ``topic``.

        On a running consumer the change is sent to the brokers in the background; awaiting the
        result waits for that, and raises their refusal of a SQL filter.

        Args:
            topic: The topic.
            handler: An async or a plain function of one message.
            tags: A tag expression, such as ``A || B``; ``*`` for all.
            sql: A SQL92 filter instead of tags, such as ``price > 5 AND region = 'eu'``.
            orderly: Whether the messages of a queue are handled one after the other. Then all
                handlers of all members of the group must be orderly.
            auto_commit: False for an orderly handler that commits itself: returning
                :attr:`Consumed.COMMIT` commits this message and all before; raising
                :class:`Rollback` repeats all messages since the last commit. Uncommitted messages
                stay in hand and count against ``cached_count_max``.

        Raises:
            ConfigError: The topic's name is illegal, orderly and other handlers are mixed, or
                ``auto_commit`` is False for a handler that is not orderly.
        """
        listener = listener_for(handler, batches=False, orderly=orderly, auto_commit=auto_commit)
        return self._subscribe(subscription_of(topic, tags, sql), listener)

    def subscribe_batches(
        self,
        topic: str,
        handler: BatchHandler,
        *,
        tags: str = SUBSCRIBE_ALL,
        sql: str | None = None,
        orderly: bool = False,
        auto_commit: bool = True,
    ) -> SubscriptionChange:
        """Call ``handler`` with up to ``batch_max`` messages of ``topic`` at a time.

        If it raises, all of them are delivered again later.

        Raises:
            ConfigError: The topic's name is illegal, or orderly and other handlers are mixed.
        """
        listener = listener_for(handler, batches=True, orderly=orderly, auto_commit=auto_commit)
        return self._subscribe(subscription_of(topic, tags, sql), listener)

    def unsubscribe(self, topic: str) -> SubscriptionChange:
        """End the subscription to ``topic``."""
        self._subscriptions.remove(topic)
        session = self._session
        if session is None:
            return SubscriptionChange(None)
        work = self._announce(session)
        return SubscriptionChange(session.tasks.start(work, name=f"unsubscribe {topic}"))

    async def start(self) -> None:
        """Connect, announce the subscriptions to the brokers, and start consuming.

        Raises:
            ConfigError: There is no subscription.
            NoNameServer: No name server is known, or none answers.
            Fault: A broker refuses a SQL filter.
            ClientError: It is already running, or another consumer uses its file of offsets.
        """
        if self._session is not None:
            raise ClientError("the consumer is running already")
        if not len(self._subscriptions):
            raise ConfigError("subscribe to a topic before starting the consumer")
        session = Session(self.config)
        session.add_consumer(self._subscriptions.describe)
        await session.start()
        try:
            await self._assemble(session)
        except BaseException:
            await session.stop()
            raise
        try:
            await self._first_contact(session)
        except BaseException:
            await self.stop()
            raise
        self._start_background()

    async def stop(self) -> None:
        """Stop fetching, let running handlers finish, store the offsets and unregister.

        Handlers get ``stop_seconds``; messages that are fetched but not begun, or do not finish in
        time, are delivered again to the next owner of their queue.
        """
        session = self._session
        if session is None:
            return
        self._session = None
        try:
            await self._stop(session)
        finally:
            for ended in self._runners:
                ended.set()

    async def _stop(self, session: Session) -> None:
        async with contextlib.AsyncExitStack() as closing:
            # All of this in any case, the last one first, whichever of them is interrupted: while
            # we send heartbeats, our queues are not given to others.
            closing.push_async_callback(session.stop)
            closing.push_async_callback(self._watchdog.stop)
            if self._tracer is not None:
                closing.push_async_callback(self._tracer.close)
            closing.callback(self._sender.close)
            if self._local is not None:
                closing.push_async_callback(self._local.close)
            closing.push_async_callback(self._consumption.close)
            closing.push_async_callback(self._assigned_queues.close)
            try:
                await self._background.stop()
                await self._assigned_queues.stop_fetching()
                self._popping.stop_fetching()
                await self._consumption.stop(self.config.stop_seconds)
                await self._popping.close(self.config.stop_seconds)
                await self._sender.in_flight.wait_idle()
            except BaseException:  # interrupted: handlers get no more time
                await self._consumption.stop(0.0)
                await self._popping.close(0.0)
                raise

    async def run_forever(self) -> None:
        """Consume until a signal, another task or a cancellation ends it.

        SIGTERM and Ctrl-C stop the consumer gracefully, and this returns; a second signal ends the
        process. A program's own handlers for these signals stay in force. Also returns when another
        task has stopped the consumer.
        """
        session = self._running()
        ended = asyncio.Event()

        def stop(number: signal.Signals) -> None:
            logger.info("consumer stops: group=%s signal=%s", self.group, number.name)
            ended.set()

        self._runners.add(ended)
        try:
            with watch_signals_on_loop(stop):
                await ended.wait()
        finally:
            self._runners.discard(ended)
        if self._session is session:
            await self.stop()

    def pause(self, queues: Collection[MessageQueue] | None = None) -> None:
        """Stop fetching, from all queues or from ``queues``.

        Fetched messages are still handled. The queues stay assigned, and rebalances still apply; a
        queue that is lost while paused is still paused when it comes back.
        """
        self._running()
        check_queues(queues)
        self._assigned_queues.pause(queues)

    def resume(self, queues: Collection[MessageQueue] | None = None) -> None:
        """Fetch again from ``queues``, or from all paused ones."""
        self._running()
        check_queues(queues)
        self._assigned_queues.resume(queues)

    # Inside.

    async def _expire(self) -> None:
        await self._consumption.expire(self._assigned_queues.owned)

    def _running(self) -> Session:
        if self._session is None:
            raise ClientError("the consumer is not running; use `async with` or call start()")
        return self._session

    async def _assemble(self, session: Session) -> None:
        config, orderly = self.config, bool(self._subscriptions.orderly)
        broadcasting = config.model is MessageModel.BROADCASTING
        self._local: LocalOffsets | None = None
        if broadcasting and self._offset_store is None:
            self._local = LocalOffsets(config.offset_directory, session.client_id, self.group)
            await self._local.open()
        self._sender = Sender(session, ProducerConfig())
        send_back = SendBack(
            session,
            self._sender,
            self.group,
            retry_max=config.retry_max,
            records_failures=config.record_failures,
        )
        self._handlers = Handlers(
            self._subscriptions.listeners,
            concurrency=config.concurrency,
            batch_max=config.batch_max,
            by_priority=config.by_priority,
        )
        self._tracer: Tracer | None = None
        if config.enable_trace:
            self._tracer = Tracer(session, group=self.group, topic=config.trace_topic)
            self._tracer.start()
            self._handlers.tracer = self._tracer
        kind = OrderlyConsumption if orderly else ConcurrentConsumption
        self._consumption: Consumption = kind(
            handlers=self._handlers, send_back=None if broadcasting else send_back, config=config
        )
        self._assigned_queues = AssignedQueues(
            session,
            self.group,
            config=config,
            subscription=self._subscriptions.find,
            consumption=self._consumption,
            progress=self._offset_store
            or self._local
            or BrokerProgress(OffsetCalls(session), self.group),
            orderly=orderly,
        )
        self._popping = PopConsumption(
            session,
            self.group,
            config=config,
            subscription=self._subscriptions.find,
            handlers=self._handlers,
            send_back=send_back,
            wait_until_wanted=self._assigned_queues.wait_until_wanted,
        )
        assigning = BrokerAssignment(
            session,
            self.group,
            strategy=self._strategy.name,
            pull=self._assigned_queues.apply,
            pop=self._popping.apply,
            pull_retries=self._subscriptions.pull_retries,
        )
        asks_brokers = not (config.client_rebalance or orderly or broadcasting)
        self._rebalancer = Rebalancer(
            session,
            self.group,
            strategy=self._strategy,
            topics=lambda: self._subscriptions.topics,
            apply=self._assigned_queues.apply,
            every=config.rebalance_seconds,
            broadcasting=broadcasting,
            after=SubscriptionCheck(
                session, self.group, describe=self._subscriptions.describe
            ).check,
            assigning=assigning if asks_brokers else None,
            listener=self._queue_listener,
        )
        BrokerRequests(
            session, self.group, rebalancer=self._rebalancer, assigned_queues=self._assigned_queues
        )
        Inspection(
            session,
            self.group,
            describe=self._subscriptions.describe,
            handlers=self._handlers,
            assigned_queues=self._assigned_queues,
            orderly=orderly,
        )
        session.on_reconnect(self._rebalancer.wake)
        self._watchdog = HeartbeatWatchdog(session)
        self._session = session

    def _start_background(self) -> None:
        start, config = self._background.start, self.config
        # Not among the background tasks: this runs until the last handler is done.
        lasting = self._running().tasks.start
        lasting(self._watchdog.keep_moving(), name="show that the loop moves")
        if self._subscriptions.orderly:
            lasting(self._assigned_queues.locks.run(), name="renew locks")
        start(self._rebalancer.run(), name="rebalance")
        every = config.persist_seconds
        persist = repeat(self._assigned_queues.persist, every=every, first=every, what="offsets")
        start(persist, name="persist offsets")
        every = min(_EXPIRE_SECONDS, config.consume_timeout)
        expire = repeat(self._expire, every=every, first=every, what="slow handlers")
        start(expire, name="expire slow handlers")

    async def _first_contact(self, session: Session) -> None:
        for topic in self._subscriptions.topics:
            try:
                await session.routes.fetch(topic)
            except (RouteNotFound, Fault) as error:
                logger.info("no route yet: topic=%s reason=%s", topic, error)
        for subscription in self._subscriptions.given:
            await self._check_expression(session, subscription)
        await session.heartbeat_all()
        if self._local is not None:
            # No broker keeps our start offset, so the end counts from when we ask for it. Messages
            # sent after our start must be received.
            await self._rebalancer.round()
            await self._assigned_queues.wait_until_begun(_BEGIN_SECONDS)

    async def _check_expression(self, session: Session, subscription: Subscription) -> None:
        if subscription.is_tag:
            return
        address = session.routes.some_broker(subscription.topic)
        if address is not None:
            check = ClientConfigCheck(
                client_id=session.client_id, group=self.group, subscription_data=subscription
            )
            await session.patiently(
                subscription.topic,
                lambda: session.call(address, RequestCode.CHECK_CLIENT_CONFIG, body=encode(check)),
            )

    def _subscribe(self, subscription: Subscription, listener: HandlerSpec) -> SubscriptionChange:
        self._subscriptions.check_kind(listener)
        if self._spans is not None:
            listener = self._spans.wrap(listener)
        if self._session is None:
            self._subscriptions.add(subscription, listener)
            return SubscriptionChange(None)
        work = self._add(self._session, subscription, listener)
        return SubscriptionChange(
            self._session.tasks.start(work, name=f"subscribe {subscription.topic}")
        )

    async def _add(
        self, session: Session, subscription: Subscription, listener: HandlerSpec
    ) -> None:
        await session.routes.refresh(subscription.topic)
        await self._check_expression(session, subscription)
        self._subscriptions.add(subscription, listener)
        await self._announce(session)

    async def _announce(self, session: Session) -> None:
        await session.heartbeat_all()
        await self._assigned_queues.drop_other_topics(self._subscriptions.topics)
        self._popping.drop_other_topics(self._subscriptions.topics)
        self._rebalancer.wake()
