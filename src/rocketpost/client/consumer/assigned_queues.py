"""The queues assigned to a consumer, each with a task that fetches its messages.

The life of a queue: assigned by the rebalance, locked if it is orderly, start offset found, fetched
until it is taken away, offset stored, unlocked, dropped.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable
from typing import Final

from rocketpost.client.config import MessageModel, PushConsumerConfig, StartFrom
from rocketpost.client.consumer.fetch import Fetcher, PullQuery, PullResult, PullStatus
from rocketpost.client.consumer.offset_calls import OffsetCalls
from rocketpost.client.consumer.owned_queue import CacheBounds, OwnedQueue, QueueLock
from rocketpost.client.consumer.progress import OffsetStore
from rocketpost.client.consumer.push.handlers import Consumption
from rocketpost.client.consumer.queue_locks import ConsumerLocks
from rocketpost.client.session import Session
from rocketpost.client.tally import Tally
from rocketpost.client.tasks import BackgroundTasks
from rocketpost.codec.faults import FlowControl, SubscriptionNotExist, SubscriptionNotLatest
from rocketpost.errors import RocketpostError
from rocketpost.model.group import Subscription
from rocketpost.model.names import RETRY_PREFIX
from rocketpost.model.route import MessageQueue

logger = logging.getLogger(__name__)

SETTLE_SECONDS: Final = 0.5
_FLOW_CONTROL_SECONDS: Final = 0.02
_HALF_HOUR_MS: Final = 30 * 60 * 1000


Snapshot = list[tuple[OwnedQueue, int]]
"""Queues and their committable offsets."""


class AssignedQueues:
    """Fetches the messages of the assigned queues. Belongs to the event loop.

    Args:
        session: The connections to brokers.
        group: The consumer group.
        config: The settings of the consumer.
        subscription: Returns the subscription to a topic; None if there is none any more.
        consumption: Receives the fetched messages.
        progress: Stores offsets.
        orderly: Whether a queue's messages are handled in order. Unless every member gets every
            queue, such a queue is fetched only while its broker locks it for us.
        manual: Whether only :meth:`persist` stores offsets. Then each pull carries its filter,
            since brokers need not know the group.
        sharing: Whether other members get our queues when we are cut off. If not, and others have
            nevertheless gone further, we continue, and store nothing until we have caught up.
    """

    def __init__(
        self,
        session: Session,
        group: str,
        *,
        config: PushConsumerConfig,
        subscription: Callable[[str], Subscription | None],
        consumption: Consumption,
        progress: OffsetStore,
        orderly: bool = False,
        manual: bool = False,
        sharing: Callable[[], bool] = lambda: True,
    ) -> None:
        self._session = session
        self._group = group
        self._config = config
        self._subscription = subscription
        self._consumption = consumption
        self._progress = progress
        self._orderly = orderly
        self._manual = manual
        self._sharing = sharing
        self._shared = config.model is MessageModel.CLUSTERING
        self._locked = orderly and self._shared
        self._fetcher = Fetcher(session, group)
        self._offsets = OffsetCalls(session)
        self._tasks = BackgroundTasks()
        self._handovers = BackgroundTasks()
        self._owned: dict[MessageQueue, tuple[OwnedQueue, asyncio.Task[None]]] = {}
        self._leaving: dict[asyncio.Task[None], OwnedQueue] = {}
        """Queues whose running handler may finish first."""
        self._tallies: dict[str, Tally] = {}
        self._paused_all = False
        self._paused: set[MessageQueue] = set()
        self._resumed = asyncio.Event()
        self._started_ms = time.time_ns() // 1_000_000
        self.locks = ConsumerLocks(
            session,
            group,
            renew_seconds=config.lock_renew_seconds,
            trust_seconds=config.lock_trust_seconds,
            queues=self._lockable,
            regained=self._is_still_ours,
        )
        if self._shared and not self._locked:
            session.on_lost(self._broker_lost)

    @property
    def owned(self) -> list[OwnedQueue]:
        """The queues assigned now."""
        return [owned for owned, _ in self._owned.values()]

    def standing(self, owned: OwnedQueue) -> str:
        """Return why a queue makes no progress now; empty if it does."""
        return "; ".join(filter(None, [owned.pause_reason, self._consumption.holding(owned)]))

    def tally(self, topic: str) -> Tally:
        """Return the number and duration of fetches of ``topic``."""
        return self._tallies.setdefault(topic, Tally())

    async def apply(self, topic: str, share: list[MessageQueue], alone: bool) -> None:
        """Make ``share`` the assigned queues of ``topic``."""
        wanted = set(share)
        lost = [queue for queue in self._owned if queue.topic == topic and queue not in wanted]
        await self._release(lost)
        gained = [queue for queue in share if queue not in self._owned]
        for queue in gained:
            # Give the previous owner of a queue time to store its last offset. A locked queue does
            # not need that: it is unlocked only afterwards.
            self._own(queue, settle=0.0 if alone or self._locked else SETTLE_SECONDS)
        if lost or gained:
            logger.info(
                "queues changed: group=%s topic=%s gained=%s lost=%s",
                self._group,
                topic,
                [f"{queue.broker_name}/{queue.queue_id}" for queue in gained],
                [f"{queue.broker_name}/{queue.queue_id}" for queue in lost],
            )

    async def drop_other_topics(self, topics: list[str]) -> None:
        """Release the queues of every topic that is not in ``topics``."""
        await self._release([queue for queue in self._owned if queue.topic not in topics])

    async def reset(self, queue: MessageQueue, offset: int) -> bool:
        """Continue from ``offset`` and store it; return whether the queue is ours.

        The outcomes of messages in hand are ignored.
        """
        if not self.seek(queue, offset):  # first, so that a concurrent rebalance finds it owned
            return False
        await self._progress.store({queue: offset})
        return True

    def seek(self, queue: MessageQueue, offset: int) -> bool:
        """Continue from ``offset`` without storing it; return whether the queue is ours."""
        owned = self._forget(queue)
        if owned is not None:
            self._start_over(owned, start=offset)
            self._owned[queue][0].persisted = owned.persisted  # we have stored no more than this
        return owned is not None

    async def persist(self, snapshot: Snapshot | None = None) -> None:
        """Store our progress, as it is now or in a snapshot."""
        await self._persist(self.snapshot() if snapshot is None else snapshot)

    def snapshot(self) -> Snapshot:
        """Return our progress."""
        return _snapshot(self.owned)

    def pause(self, queues: Collection[MessageQueue] | None) -> None:
        """Stop fetching, from all queues or these, until :meth:`resume`."""
        if queues is None:
            self._paused_all = True
        else:
            self._paused.update(queues)

    def resume(self, queues: Collection[MessageQueue] | None) -> None:
        """Fetch again from ``queues``, or from all paused ones."""
        if queues is None:
            self._paused_all = False
            self._paused.clear()
        else:
            self._paused.difference_update(queues)
        self._resumed.set()
        self._resumed = asyncio.Event()

    async def wait_until_begun(self, seconds: float) -> None:
        """Wait until the start offsets of our queues are known, or for ``seconds``."""
        try:
            async with asyncio.timeout(seconds):
                for owned in self.owned:
                    await owned.wait_until_begun()
        except TimeoutError:
            logger.warning("start offsets not known yet: group=%s", self._group)

    async def stop_fetching(self) -> None:
        """Stop fetching; the queues stay ours until :meth:`close`."""
        await self._tasks.stop()

    async def close(self) -> None:
        """Store the offsets and release every queue."""
        leaving = list(self._leaving.values())
        await self._tasks.stop()
        await self._handovers.stop()
        mine = [owned for queue in list(self._owned) if (owned := self._forget(queue))] + leaving
        idle = [owned for owned in mine if await self._consumption.settle(owned, 0.0)]
        if not self._manual:
            await self._persist(_snapshot(owned for owned in mine if not owned.is_replaced))
        # A lock whose handler is still running expires by itself.
        await self.locks.release(owned.queue for owned in idle if owned.lock)

    # Ownership.

    def _own(self, queue: MessageQueue, *, settle: float, start: int | None = None) -> None:
        lock = QueueLock() if self._locked else None
        owned = OwnedQueue(queue, lambda: self._bounds(queue.topic), lock=lock)
        work = self._feed(owned, settle=settle, start=start)
        name = f"fetch {queue.topic} {queue.broker_name}/{queue.queue_id}"
        self._owned[queue] = owned, self._tasks.start(work, name=name)

    def _start_over(self, owned: OwnedQueue, *, start: int | None) -> None:
        owned.is_replaced = True
        self._hand_over(owned)
        self._own(owned.queue, settle=0.0, start=start)

    def _forget(self, queue: MessageQueue) -> OwnedQueue | None:
        entry = self._owned.pop(queue, None)
        if entry is None:
            return None
        owned, task = entry
        owned.drop()
        if task is not asyncio.current_task():
            task.cancel()
        return owned

    async def _release(self, queues: Iterable[MessageQueue]) -> None:
        lost = [owned for queue in queues if (owned := self._forget(queue))]
        if self._orderly:
            for owned in lost:
                self._hand_over(owned)
        elif not self._manual:
            await self._persist(_snapshot(lost))

    def _hand_over(self, owned: OwnedQueue) -> None:
        """Let the running handler finish, then release the queue unless it stays ours."""
        if not self._orderly:
            return
        work = self._finish_handover(owned, before=self._leavers(owned.queue))
        task = self._handovers.start(work, name=f"hand over {owned.queue}")
        self._leaving[task] = owned
        task.add_done_callback(self._leaving.pop)

    def _leavers(self, queue: MessageQueue) -> list[asyncio.Task[None]]:
        return [task for task, owned in self._leaving.items() if owned.queue == queue]

    async def _finish_handover(
        self, owned: OwnedQueue, *, before: list[asyncio.Task[None]]
    ) -> None:
        # Its lock is renewed meanwhile: no member begins the next message before this one is done
        # and its offset is stored.
        if before:
            await asyncio.wait(before)
        settled = await self._consumption.settle(owned, self._config.consume_timeout)
        if not settled:
            logger.error("handler still runs, queue released: queue=%s", owned.queue)
        if not owned.is_replaced:
            await self._persist(_snapshot([owned]))
            if settled and owned.lock is not None:
                await self.locks.release([owned.queue])

    def _lockable(self) -> list[OwnedQueue]:
        return [*self.owned, *self._leaving.values()]

    def _broker_lost(self, address: str) -> None:
        """Doubt our queues of a broker that may have dropped us and given them to others."""
        for owned in self.owned:
            if self._session.routes.is_master(owned.queue.broker_name, address):
                owned.doubted = True

    async def _is_still_ours(self, owned: OwnedQueue) -> bool:
        """Return whether to continue with a queue that others may have had meanwhile.

        If others went further than we did, the queue starts again at their offset.
        """
        try:
            is_behind = await self._is_behind(owned, owned.committable or 0)
        except RocketpostError as error:
            self._session.outages.report_failure("queue not used yet", owned.queue, error)
            return False
        if owned.dropped or not is_behind:
            owned.doubted = False
            return not owned.dropped
        if not self._sharing():
            return True
        logger.info("another member has committed a later offset: queue=%s", owned.queue)
        if self._forget(owned.queue) is not None:
            self._start_over(owned, start=None)
        return False

    async def _is_behind(self, owned: OwnedQueue, offset: int) -> bool:
        """Tell whether others stored more than ``offset``; our own offset before a seek is ours."""
        stored = await self._progress.load(owned.queue)
        return stored is not None and stored > offset and stored != owned.persisted

    async def _may_store(self, owned: OwnedQueue, offset: int) -> bool:
        """Tell whether storing our offset undoes no progress of another member."""
        if owned.lock is not None:
            return owned.lock.held
        if not (owned.doubted or offset == owned.found_at):
            return True
        try:
            return not await self._is_behind(owned, offset)
        except RocketpostError as error:
            logger.info("offset not stored: queue=%s reason=%s", owned.queue, error)
            return False

    async def _persist(self, snapshot: Snapshot) -> None:
        offsets: dict[MessageQueue, tuple[OwnedQueue, int]] = {}
        for owned, offset in snapshot:
            if offset != owned.persisted and await self._may_store(owned, offset):
                offsets[owned.queue] = owned, offset
        if not offsets:
            return
        stored = await self._progress.store(
            {queue: offset for queue, (_, offset) in offsets.items()}
        )
        for queue in stored:
            owned, offset = offsets[queue]
            owned.persisted = offset

    def _bounds(self, topic: str) -> CacheBounds:
        config = self._config
        count_max, bytes_max = config.cached_count_max, config.cached_bytes_max
        if config.topic_count_max is not None or config.topic_bytes_max is not None:
            queues = sum(queue.topic == topic for queue in self._owned) or 1
            if config.topic_count_max is not None:
                share = max(1, config.topic_count_max // queues)
                # For a lite pull consumer both bounds hold, as in Java.
                count_max = min(count_max, share) if self._manual else share
            if config.topic_bytes_max is not None:
                bytes_max = max(1, config.topic_bytes_max // queues)
        return CacheBounds(count_max, bytes_max, config.cached_span_max)

    async def _wait_until_wanted(self, owned: OwnedQueue) -> None:
        if not self._is_paused(owned.queue):
            return
        with owned.explain_pause("it is paused"):
            await self.wait_until_wanted(owned.queue)

    async def wait_until_wanted(self, queue: MessageQueue) -> None:
        """Wait until a queue is not paused."""
        while self._is_paused(queue):
            await self._resumed.wait()

    def _is_paused(self, queue: MessageQueue) -> bool:
        return self._paused_all or queue in self._paused

    # Fetching.

    async def _feed(self, owned: OwnedQueue, *, settle: float, start: int | None) -> None:
        offset = await self._begin(owned, settle=settle, start=start)
        while not owned.dropped:
            if owned.doubted and not await self._is_still_ours(owned):
                with owned.explain_pause("its broker was lost, others may have had it"):
                    await owned.wait_until_gone(self._config.error_seconds)
                continue
            await owned.wait_for_room()
            await owned.wait_until_locked()
            await self._wait_until_wanted(owned)
            subscription = self._subscription(owned.queue.topic)
            if subscription is None:
                return
            result = await self._pull(owned, offset, subscription)
            if result is None:
                continue
            if result.status is PullStatus.OFFSET_ILLEGAL:
                logger.warning(
                    "offset moved: queue=%s from=%s to=%s", owned.queue, offset, result.next_offset
                )
                if offset < result.next_offset == result.min_offset:
                    # Retention was faster than we are. Messages in hand need not be lost as well.
                    offset = result.next_offset
                    owned.take([], offset)
                    continue
                if self._manual:
                    self.seek(owned.queue, result.next_offset)
                else:
                    await self.reset(owned.queue, result.next_offset)
                return
            if result.messages:
                await self._wait_until_wanted(
                    owned
                )  # it may have been paused while the pull was held
            offset = result.next_offset
            owned.take(result.messages, offset)
            self._consumption.submit(owned, result.messages)
            if self._config.pull_interval and result.messages:
                await owned.wait_until_gone(self._config.pull_interval)

    async def _begin(self, owned: OwnedQueue, *, settle: float, start: int | None) -> int:
        if settle:
            await asyncio.sleep(settle)
        if before := self._leavers(owned.queue):
            with owned.explain_pause("an earlier handler is still running"):
                await asyncio.wait(before)
        if owned.lock is not None:
            with owned.explain_pause("its broker has not granted the lock yet"):
                await self.locks.acquire(owned)
        while owned.tracker is None:
            try:
                owned.start_at(await self._start_offset(owned) if start is None else start)
            except RocketpostError as error:
                self._session.outages.report_failure("no start offset", owned.queue, error)
                with owned.explain_pause(f"no start offset: {error}"):
                    await asyncio.sleep(self._config.error_seconds)
        if start is None:
            owned.found_at = owned.committable
            if self._manual:
                owned.persisted = owned.committable  # without a poll there is no progress to store
        return owned.tracker.next_offset

    async def _pull(
        self, owned: OwnedQueue, offset: int, subscription: Subscription
    ) -> PullResult | None:
        config = self._config
        tells = self._shared and owned.may_handle and not owned.doubted and not self._manual
        # The previous owner may still store its progress; we have none yet.
        committable = owned.committable if tells and not owned.is_untouched else None
        wish = PullQuery(
            queue=owned.queue,
            offset=offset,
            subscription=subscription,
            count_max=config.pull_count_max,
            bytes_max=config.pull_bytes_max,
            hold_ms=round(config.hold_seconds * 1000),
            commit_offset=committable if committable else None,
            tell_subscription=self._manual,
        )
        began = time.monotonic()
        owned.pulled_ms = time.time_ns() // 1_000_000
        try:
            result = await self._fetcher.pull(wish, timeout=config.pull_timeout)
        except FlowControl:
            with owned.explain_pause("its broker asks for fewer requests"):
                await asyncio.sleep(_FLOW_CONTROL_SECONDS)
            return None
        except RocketpostError as error:
            await self._handle_pull_failure(owned, error)
            return None
        self._session.outages.report_success(owned.queue.broker_name, owned.queue.topic)
        if result.messages:
            now = time.monotonic()
            self.tally(owned.queue.topic).count(len(result.messages), now - began, now=now)
        return result

    async def _handle_pull_failure(self, owned: OwnedQueue, error: RocketpostError) -> None:
        self._session.outages.report_failure("pull failed", owned.queue, error)
        if isinstance(error, SubscriptionNotExist | SubscriptionNotLatest):
            await self._session.heartbeat_all()  # a broker that restarted does not know us
        with owned.explain_pause(f"pulls fail: {error}"):
            await asyncio.sleep(self._config.error_seconds)
            await self._session.routes.refresh(owned.queue.topic)

    async def _start_offset(self, owned: OwnedQueue) -> int:
        queue, config = owned.queue, self._config
        stored = await self._progress.load(queue)
        if stored is not None:
            # A broker also answers 0 if nothing is stored and the queue is young or empty. Store 0
            # then, or the group would count as new again after a pause.
            owned.persisted = stored or None
            return stored
        is_retry = queue.topic.startswith(RETRY_PREFIX)
        if config.start_from is StartFrom.FIRST:
            return 0  # corrected by the first pull if the queue starts later
        if config.start_from is StartFrom.LAST:
            return 0 if is_retry else await self._end_offset(owned)
        if is_retry:
            return await self._offsets.max_offset(queue)
        since = config.start_timestamp_ms
        return await self._offsets.search_offset(
            queue, self._started_ms - _HALF_HOUR_MS if since is None else since
        )

    async def _end_offset(self, owned: OwnedQueue) -> int:
        """Return the end of a queue in which the group has no offset.

        Apache's brokers answer "not found" for an empty queue. If it has messages now, they may
        have been stored since: asked again, the broker answers 0 for a young queue.
        """
        end = await self._offsets.max_offset(owned.queue)
        if not end or not self._shared:
            return end
        stored = await self._progress.load(owned.queue)
        if stored is None:
            return end
        owned.persisted = stored or None
        return stored


def _snapshot(queues: Iterable[OwnedQueue]) -> Snapshot:
    return [(owned, owned.committable) for owned in queues if owned.committable is not None]
