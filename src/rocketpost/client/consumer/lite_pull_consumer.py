"""The lite pull consumer: the application polls, and fetching happens in the background."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Mapping

from rocketpost.client.checks import (
    check_function,
    check_message_queue,
    check_number,
    check_queues,
    check_seconds,
)
from rocketpost.client.config import (
    LitePullConsumerConfig,
    MessageModel,
    check_group,
    with_name_servers,
    with_stable_name,
)
from rocketpost.client.consumer.allocation import AllocationStrategy, Average, check_strategy
from rocketpost.client.consumer.assigned_queues import AssignedQueues
from rocketpost.client.consumer.broker_requests import BrokerRequests
from rocketpost.client.consumer.inspection import Inspection
from rocketpost.client.consumer.local_offsets import LocalOffsets
from rocketpost.client.consumer.offset_calls import Boundary, OffsetCalls
from rocketpost.client.consumer.polling import PolledMessages
from rocketpost.client.consumer.progress import BrokerProgress, OffsetStore, check_store
from rocketpost.client.consumer.rebalance import QueueListener, Rebalancer
from rocketpost.client.consumer.subscriptions import subscription_of
from rocketpost.client.heartbeat_watchdog import HeartbeatWatchdog
from rocketpost.client.lifecycle import Lifecycle
from rocketpost.client.message import ReceivedMessage
from rocketpost.client.session import Session
from rocketpost.client.tasks import BackgroundTasks
from rocketpost.codec.bodies.client import CONSUME_TYPES, ConsumerData
from rocketpost.errors import ClientError, ConfigError
from rocketpost.model.group import SUBSCRIBE_ALL, Subscription
from rocketpost.model.route import MessageQueue


class LitePullConsumer(Lifecycle):
    """Fetches ahead and returns messages to polls. Belongs to the event loop.

    ::

        consumer = LitePullConsumer("billing", name_servers="127.0.0.1:9876")
        consumer.subscribe("Orders")
        async with consumer:
            while True:
                for message in await consumer.poll():
                    ...

    With :meth:`subscribe` the members of the group share the queues; with :meth:`assign` this
    consumer reads the given queues, even if others read them too. A commit covers everything
    polled, so finish with messages before it; an automatic commit happens at the start of a poll.
    Commits go backwards only after a :meth:`seek`: a member that was frozen or cut off does not
    undo the progress of others but continues from it; with assigned queues it commits again once it
    is past them. A broadcasting member (``config.model``) gets every queue and commits to its own
    file.

    Args:
        group: The consumer group.
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
        config: LitePullConsumerConfig | None = None,
        strategy: AllocationStrategy | None = None,
        queue_listener: QueueListener | None = None,
        offset_store: OffsetStore | None = None,
    ) -> None:
        check_group(group)
        config = with_name_servers(
            config or LitePullConsumerConfig(), name_servers, LitePullConsumerConfig
        )
        config = with_stable_name(config)
        self.group = group
        self.config = config
        self._strategy = check_strategy(strategy or Average())
        if queue_listener is not None:
            check_function("queue_listener", queue_listener, arguments=3, may_be_async=False)
        self._queue_listener = queue_listener
        self._offset_store = check_store(offset_store)
        self._subscriptions: dict[str, Subscription] = {}
        self._assigned: dict[str, Subscription] = {}
        self._session: Session | None = None
        self._background = BackgroundTasks()
        self._commits = BackgroundTasks()
        self._commit_due = 0.0

    # Queues.

    def subscribe(self, topic: str, *, tags: str = SUBSCRIBE_ALL, sql: str | None = None) -> None:
        """Share the queues of ``topic`` with the other members.

        Raises:
            ConfigError: The topic's name is illegal.
            ClientError: Queues are assigned already.
        """
        if self._assigned:
            raise ClientError("queues are assigned; subscribe and assign exclude each other")
        self._subscriptions[topic] = subscription_of(topic, tags, sql)
        self._apply_changes()

    def unsubscribe(self, topic: str) -> None:
        """Stop reading ``topic``."""
        self._subscriptions.pop(topic, None)
        self._apply_changes()

    async def assign(
        self,
        queues: Collection[MessageQueue],
        *,
        tags: str = SUBSCRIBE_ALL,
        sql: str | None = None,
    ) -> None:
        """Read these queues instead of those assigned before.

        Raises:
            ConfigError: There are no queues.
            ClientError: A topic is subscribed to, or the consumer is not running.
        """
        self._running()
        check_queues(queues)
        if self._subscriptions:
            raise ClientError("a topic is subscribed to; subscribe and assign exclude each other")
        if not queues:
            raise ConfigError("at least one queue must be assigned")
        topics: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            topics.setdefault(queue.topic, []).append(queue)
        self._assigned = {topic: subscription_of(topic, tags, sql) for topic in topics}
        await self._assigned_queues.drop_other_topics(list(topics))
        for topic, share in topics.items():
            await self._assigned_queues.apply(topic, share, True)

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that are being read, sorted."""
        self._running()
        owned = [owned.queue for owned in self._assigned_queues.owned]
        return sorted(owned, key=lambda queue: queue.sort_key)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the readable queues of ``topic``, sorted.

        Raises:
            RouteNotFound: The topic is unknown.
        """
        return await self._running().routes.subscribe(topic)

    # Reading.

    async def poll(self, timeout: float = 5.0) -> list[ReceivedMessage]:
        """Return messages of one queue; none if none arrive within ``timeout`` seconds.

        Raises:
            ConfigError: The timeout is negative.
        """
        self._running()
        check_seconds("timeout", timeout, zero=True)
        now = asyncio.get_running_loop().time()
        if self.config.auto_commit and now >= self._commit_due:
            self._commit_due = now + self.config.commit_seconds
            await self.commit()
        return await self._polling.take(timeout)

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit everything polled, or ``offsets`` as the next ones.

        Failures are logged; the next commit tries again.
        """
        self._running()
        if offsets is None:
            await self._assigned_queues.persist()
        else:
            for queue, offset in offsets.items():
                check_message_queue("each key of offsets", queue)
                check_number("each of offsets", offset)
            await self._progress.store(offsets)

    def commit_soon(self) -> None:
        """Commit everything polled until now, without waiting."""
        self._running()
        snapshot = self._assigned_queues.snapshot()
        self._commits.start(self._assigned_queues.persist(snapshot), name="commit")

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's stored offset; None if there is none."""
        return await self._running().patiently(queue.topic, lambda: self._progress.load(queue))

    # Seeking.

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue from ``offset``; messages fetched and not polled are dropped.

        Raises:
            ConfigError: The offset is outside the queue.
            ClientError: The queue is not ours.
        """
        check_message_queue("queue", queue)
        check_number("offset", offset)
        first, end = await asyncio.gather(self._min_offset(queue), self._max_offset(queue))
        if not first <= offset <= end:
            raise ConfigError(f"offset {offset} is outside {first} to {end}")
        if not self._assigned_queues.seek(queue, offset):
            raise ClientError(f"the queue {queue} is not assigned to this consumer")

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Continue from the oldest message."""
        await self.seek(queue, await self._min_offset(queue))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Continue after the newest message."""
        await self.seek(queue, await self._max_offset(queue))

    async def seek_to_time(self, queue: MessageQueue, timestamp_ms: int) -> None:
        """Continue from the first message stored at that time or later."""
        await self.seek(queue, await self.search_offset(queue, timestamp_ms))

    async def search_offset(
        self, queue: MessageQueue, timestamp_ms: int, *, boundary: Boundary = Boundary.LOWER
    ) -> int:
        """Return the offset of the message stored around ``timestamp_ms``."""
        return await self._running().patiently(
            queue.topic, lambda: self._offsets.search_offset(queue, timestamp_ms, boundary)
        )

    def pause(self, queues: Collection[MessageQueue] | None = None) -> None:
        """Stop fetching, from all queues or from ``queues``."""
        self._running()
        check_queues(queues)
        self._assigned_queues.pause(queues)

    def resume(self, queues: Collection[MessageQueue] | None = None) -> None:
        """Fetch again from ``queues``, or from all paused ones."""
        self._running()
        check_queues(queues)
        self._assigned_queues.resume(queues)

    # Start and stop.

    async def start(self) -> None:
        """Connect and start fetching the subscribed topics.

        Raises:
            NoNameServer: No name server is known, or none answers.
            ClientError: It is already running, or another consumer uses its file of offsets.
        """
        if self._session is not None:
            raise ClientError("the consumer is running already")
        session = Session(self.config)
        await session.start()
        try:
            await self._assemble(session)
        except BaseException:
            await session.stop()
            raise
        try:
            await self._announce(session)
        except BaseException:
            await self.stop()
            raise
        session.tasks.start(self._watchdog.keep_moving(), name="show that the loop moves")
        self._background.start(self._rebalancer.run(), name="rebalance")

    async def stop(self) -> None:
        """Commit if that is automatic, stop fetching and unregister."""
        session = self._session
        if session is None:
            return
        async with contextlib.AsyncExitStack() as closing:
            # All of this in any case, the last one first, whichever of them is interrupted: while
            # we send heartbeats, our queues are not given to others.
            closing.push_async_callback(session.stop)
            closing.push_async_callback(self._watchdog.stop)
            if self._local is not None:
                closing.push_async_callback(self._local.close)
            closing.push_async_callback(self._polling.close)
            closing.push_async_callback(self._assigned_queues.close)
            closing.push_async_callback(self._commits.stop)
            try:
                await self._background.stop()
                if self.config.auto_commit:
                    await self.commit()
                await self._commits.wait(self.config.call_timeout)
            finally:
                self._session = None

    async def _assemble(self, session: Session) -> None:
        broadcasting = self.config.model is MessageModel.BROADCASTING
        self._local: LocalOffsets | None = None
        if broadcasting and self._offset_store is None:
            directory = self.config.offset_directory
            self._local = LocalOffsets(directory, session.client_id, self.group)
            await self._local.open()
        self._session = session
        self._announced = False
        self._polling = PolledMessages()
        self._offsets = OffsetCalls(session)
        self._progress: OffsetStore = (
            self._offset_store or self._local or BrokerProgress(self._offsets, self.group)
        )
        self._commit_due = asyncio.get_running_loop().time() + self.config.commit_seconds
        self._assigned_queues = AssignedQueues(
            session,
            self.group,
            config=self.config.fetching(),
            subscription=lambda topic: (self._subscriptions | self._assigned).get(topic),
            consumption=self._polling,
            progress=self._progress,
            manual=True,
            sharing=lambda: not self._assigned,
        )
        self._rebalancer = Rebalancer(
            session,
            self.group,
            strategy=self._strategy,
            topics=lambda: list(self._subscriptions),
            apply=self._assigned_queues.apply,
            every=self.config.rebalance_seconds,
            broadcasting=broadcasting,
            listener=self._queue_listener,
        )
        BrokerRequests(
            session, self.group, rebalancer=self._rebalancer, assigned_queues=self._assigned_queues
        )
        Inspection(
            session, self.group, describe=self._describe, assigned_queues=self._assigned_queues
        )
        session.on_reconnect(self._rebalancer.wake)
        self._watchdog = HeartbeatWatchdog(session)

    def _apply_changes(self) -> None:
        if self._session is not None:
            self._session.tasks.start(self._announce(self._session), name="announce subscriptions")

    async def _announce(self, session: Session) -> None:
        if self._subscriptions and not self._announced:
            # A member that assigns its queues itself must not be counted by those that share.
            self._announced = True
            session.add_consumer(self._describe)
        for topic in self._subscriptions:
            await session.routes.refresh(topic)
        await session.heartbeat_all()
        await self._assigned_queues.drop_other_topics([*self._subscriptions, *self._assigned])
        self._rebalancer.wake()

    async def _min_offset(self, queue: MessageQueue) -> int:
        session = self._running()
        return await session.patiently(queue.topic, lambda: self._offsets.min_offset(queue))

    async def _max_offset(self, queue: MessageQueue) -> int:
        session = self._running()
        return await session.patiently(queue.topic, lambda: self._offsets.max_offset(queue))

    def _describe(self) -> ConsumerData:
        return ConsumerData(
            group_name=self.group,
            consume_from_where=self.config.start_from.value,
            consume_type=CONSUME_TYPES[0],
            message_model=self.config.model.value,
            subscription_data_set=list(self._subscriptions.values()),
        )

    def _running(self) -> Session:
        if self._session is None:
            raise ClientError("the consumer is not running; use `async with` or call start()")
        return self._session
