"""The queues that are ours, one task each that fetches: long polls, flow control, offsets.

A queue's life: given by the rebalance, start offset found, fetched until it is taken away, its
offset told to the broker, forgotten.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

from rocketpost.client.config import PushConsumerConfig, StartFrom
from rocketpost.client.fetch import Fetcher, PullResult, PullStatus, PullWish
from rocketpost.client.message import ReceivedMessage
from rocketpost.client.offset_calls import OffsetCalls
from rocketpost.client.owned_queue import OwnedQueue
from rocketpost.client.session import Session
from rocketpost.client.tally import Tally
from rocketpost.client.tasks import Tasks
from rocketpost.codec.faults import FlowControl, SubscriptionNotExist, SubscriptionNotLatest
from rocketpost.errors import RocketpostError
from rocketpost.model.group import Subscription
from rocketpost.model.names import RETRY_PREFIX
from rocketpost.model.route import MessageQueue

logger = logging.getLogger(__name__)

Submit = Callable[[OwnedQueue, Sequence[ReceivedMessage]], None]
"""Takes fetched messages to be handled."""

SETTLE_SECONDS: Final = 0.5
_FLOW_CONTROL_SECONDS: Final = 0.02
_HALF_HOUR_MS: Final = 30 * 60 * 1000


class Feeding:
    """Fetches the queues that are ours. Belongs to the event loop.

    Args:
        session: How to reach brokers.
        group: The consumer group.
        config: The consumer's.
        subscription: Returns what we want of a topic; None if nothing any more.
        submit: Takes what was fetched.
    """

    def __init__(
        self,
        session: Session,
        group: str,
        *,
        config: PushConsumerConfig,
        subscription: Callable[[str], Subscription | None],
        submit: Submit,
    ) -> None:
        self._session = session
        self._group = group
        self._config = config
        self._subscription = subscription
        self._submit = submit
        self._fetcher = Fetcher(session, group)
        self._offsets = OffsetCalls(session)
        self._tasks = Tasks()
        self._owned: dict[MessageQueue, tuple[OwnedQueue, asyncio.Task[None]]] = {}
        self._tallies: dict[str, Tally] = {}
        self._started_ms = time.time_ns() // 1_000_000

    @property
    def owned(self) -> list[OwnedQueue]:
        """The queues that are ours now."""
        return [owned for owned, _ in self._owned.values()]

    def tally(self, topic: str) -> Tally:
        """Return how many messages of ``topic`` were fetched, and how long that took."""
        return self._tallies.setdefault(topic, Tally())

    async def apply(self, topic: str, share: list[MessageQueue], alone: bool) -> None:
        """Let ``share`` be the queues of ``topic`` that are ours."""
        wanted = set(share)
        lost = [queue for queue in self._owned if queue.topic == topic and queue not in wanted]
        await asyncio.gather(*(self._release(queue) for queue in lost))
        gained = [queue for queue in share if queue not in self._owned]
        for queue in gained:
            # A queue that another member has to let go of should find its last offset stored.
            self._own(queue, settle=0.0 if alone else SETTLE_SECONDS)
        if lost or gained:
            logger.info(
                "queues changed: group=%s topic=%s gained=%s lost=%s",
                self._group,
                topic,
                [f"{queue.broker_name}/{queue.queue_id}" for queue in gained],
                [f"{queue.broker_name}/{queue.queue_id}" for queue in lost],
            )

    async def drop_other_topics(self, topics: list[str]) -> None:
        """Let go of the queues of every topic that is not in ``topics``."""
        lost = [queue for queue in self._owned if queue.topic not in topics]
        await asyncio.gather(*(self._release(queue) for queue in lost))

    async def reset(self, queue: MessageQueue, offset: int) -> None:
        """Go on from ``offset``, wherever we stood; what is in hand counts for nothing."""
        if self._forget(queue) is None:
            return
        try:
            await self._offsets.commit_offset(self._group, queue, offset)
        except RocketpostError as error:
            logger.warning("offset not stored: queue=%s reason=%s", queue, error)
        self._own(queue, settle=0.0, start=offset)

    async def persist(self) -> None:
        """Tell the brokers how far we have come."""
        await asyncio.gather(*(self._persist(owned) for owned in self.owned))

    async def stop_fetching(self) -> None:
        """Fetch nothing more; the queues stay ours until :meth:`close`."""
        await self._tasks.stop()

    async def close(self) -> None:
        """Store the offsets and let go of every queue."""
        await self._tasks.stop()
        await asyncio.gather(*(self._release(queue) for queue in list(self._owned)))

    # Owning and letting go.

    def _own(self, queue: MessageQueue, *, settle: float, start: int | None = None) -> None:
        owned = OwnedQueue(queue, self._config)
        work = self._feed(owned, settle=settle, start=start)
        name = f"fetch {queue.topic} {queue.broker_name}/{queue.queue_id}"
        self._owned[queue] = owned, self._tasks.start(work, name=name)

    def _forget(self, queue: MessageQueue) -> OwnedQueue | None:
        entry = self._owned.pop(queue, None)
        if entry is None:
            return None
        owned, task = entry
        owned.dropped = True
        if task is not asyncio.current_task():
            task.cancel()
        return owned

    async def _release(self, queue: MessageQueue) -> None:
        owned = self._forget(queue)
        if owned is not None:
            await self._persist(owned)

    async def _persist(self, owned: OwnedQueue) -> None:
        offset = owned.committable
        if offset is None or offset == owned.persisted:
            return
        try:
            await self._offsets.commit_offset(self._group, owned.queue, offset)
            owned.persisted = offset
        except RocketpostError as error:
            logger.warning("offset not stored: queue=%s reason=%s", owned.queue, error)

    # Fetching.

    async def _feed(self, owned: OwnedQueue, *, settle: float, start: int | None) -> None:
        if settle:
            await asyncio.sleep(settle)
        while owned.tracker is None:
            try:
                owned.start_at(await self._start_offset(owned) if start is None else start)
            except RocketpostError as error:
                logger.warning("no start offset: queue=%s reason=%s", owned.queue, error)
                await asyncio.sleep(self._config.error_seconds)
        offset = owned.tracker.next_offset
        while not owned.dropped:
            await owned.wait_for_room()
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
                await self.reset(owned.queue, result.next_offset)
                return
            offset = result.next_offset
            owned.take(result.messages, offset)
            self._submit(owned, result.messages)

    async def _pull(
        self, owned: OwnedQueue, offset: int, subscription: Subscription
    ) -> PullResult | None:
        config = self._config
        committable = owned.committable
        wish = PullWish(
            queue=owned.queue,
            offset=offset,
            subscription=subscription,
            count_max=config.pull_count_max,
            bytes_max=config.pull_bytes_max,
            hold_ms=round(config.hold_seconds * 1000),
            commit_offset=committable if committable else None,
            tell_subscription=False,
        )
        began = time.monotonic()
        owned.pulled_ms = time.time_ns() // 1_000_000
        try:
            result = await self._fetcher.pull(wish, timeout=config.pull_timeout)
        except FlowControl:
            await asyncio.sleep(_FLOW_CONTROL_SECONDS)
            return None
        except RocketpostError as error:
            await self._pull_failed(owned, error)
            return None
        if result.messages:
            now = time.monotonic()
            self.tally(owned.queue.topic).count(len(result.messages), now - began, now=now)
        return result

    async def _pull_failed(self, owned: OwnedQueue, error: RocketpostError) -> None:
        logger.warning("pull failed: queue=%s reason=%s", owned.queue, error)
        if isinstance(error, SubscriptionNotExist | SubscriptionNotLatest):
            await self._session.heartbeat_all()  # a broker that restarted does not know us
        await asyncio.sleep(self._config.error_seconds)
        await self._session.routes.refresh(owned.queue.topic)

    async def _start_offset(self, owned: OwnedQueue) -> int:
        queue, config = owned.queue, self._config
        stored = await self._offsets.group_offset(self._group, queue)
        if stored is not None:
            owned.persisted = stored
            return stored
        is_retry = queue.topic.startswith(RETRY_PREFIX)
        if config.start_from is StartFrom.FIRST:
            return 0  # corrected by the first pull if the queue starts later
        if config.start_from is StartFrom.LAST:
            return 0 if is_retry else await self._offsets.max_offset(queue)
        if is_retry:
            return await self._offsets.max_offset(queue)
        since = config.start_timestamp_ms
        return await self._offsets.search_offset(
            queue, self._started_ms - _HALF_HOUR_MS if since is None else since
        )
