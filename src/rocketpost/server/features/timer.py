"""Timed messages: delivered when due, saved as they move, recalled on request.

``broker.timer.service`` decides. One task here asks it for the next step, stores the messages to
deliver, and sleeps until the next message is due or a new one arrives (``server.due_loop``).
Another task saves the changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from rocketpost.broker.delivery import Wait
from rocketpost.broker.timer.admission import TimerRules
from rocketpost.broker.timer.moving import MessageMover
from rocketpost.broker.timer.recall import RecallService
from rocketpost.broker.timer.service import TimerService
from rocketpost.broker.timer.steps import Due
from rocketpost.broker.topic import TopicTable
from rocketpost.codec.bodies.timer import TimerCheckPoint, TimerMetrics
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.command import Command
from rocketpost.codec.faults import NoPermission, ServiceNotAvailable, TopicNotExist
from rocketpost.codec.headers.timer import RecallHeader
from rocketpost.errors import RocketpostError, StoreError
from rocketpost.model import properties as names
from rocketpost.model.clock import Clock
from rocketpost.model.ids import Position
from rocketpost.model.names import TIMER_TOPIC, is_retry_or_dlq
from rocketpost.model.topic import PERM_WRITE
from rocketpost.server.context import LeaderContext
from rocketpost.server.due_loop import DueLoop, Next
from rocketpost.server.feature import Feature
from rocketpost.server.features.timer_removal import TimerRemoval
from rocketpost.server.metrics.exposition import Family
from rocketpost.server.metrics.timer import timer_families
from rocketpost.server.replication.tables_serving import VersionedCounts
from rocketpost.server.routes.access import PUB, of_topic
from rocketpost.server.routes.pools import PoolKind
from rocketpost.server.routes.route import Reply, Route, waiting
from rocketpost.server.settings.broker import BrokerConfig
from rocketpost.server.writer.log_writer import ArrivalListener
from rocketpost.store.config import StoreConfig
from rocketpost.store.dispatch.arrival import Arrival
from rocketpost.store.draft import Appended
from rocketpost.store.files import FileSystem
from rocketpost.store.message_store import MessageStore
from rocketpost.store.timer.checkpoint import CLEAN
from rocketpost.store.timer.store import TimerStore
from rocketpost.store.timer.values import Save
from rocketpost.transport.connection import Connection

logger = logging.getLogger(__name__)

CHANGED_SLOTS_MAX: Final = 20_000
"""Most changed slots before an extra save, which limits memory."""
TOPICS_SHOWN_MAX: Final = 100
_EXPIRY_SECONDS: Final = 30.0
_LOOK_MS: Final = 5000
_RETRY_SECONDS_MAX: Final = 10.0


def open_timers_blocking(
    store: MessageStore,
    *,
    clock: Clock,
    topics: Iterable[str] = (),
    files: FileSystem | None = None,
) -> TimerStore:
    """Open the timer's files of a store.

    Raises:
        StoreError: The files cannot be read with these settings.
    """
    config = store.config

    def position_of(offset: int) -> int:
        queue = store.queue(TIMER_TOPIC, 0)
        entry = queue.entry(max(offset, int(queue.first))) if queue is not None else None
        return entry[0] if entry is not None else int(store.end_position)

    def oldest_ms() -> int | None:
        queue = store.queue(TIMER_TOPIC, 0)
        if queue is None or queue.first >= queue.end:
            return None
        return queue.store_time(int(queue.first))

    return TimerStore.open_blocking(
        store.layout,
        files if files is not None else store.files,
        precision_ms=config.timer_precision_ms,
        log_file_bytes=config.timer_log_file_bytes,
        commit_log_end=int(store.end_position),
        now_ms=clock.now_ms(),
        position_of=position_of,
        oldest_ms=oldest_ms,
        topics=topics,
    )


def timer_rules(config: StoreConfig) -> TimerRules:
    """Return the settings of timed messages."""
    return TimerRules(
        enabled=config.timer_enabled,
        delay_ms_max=config.timer_delay_sec_max * 1000,
        roll_window_ms=config.timer_roll_window_ms,
        slot_count_max=config.timer_slot_count_max,
        stop_enqueue=config.timer_stop_enqueue,
        stop_dequeue=config.timer_stop_dequeue,
    )


class TimerFeature(Feature):
    """Delivers and recalls timed messages. Owned by the loop.

    Args:
        context: The state of the broker and its leader.
        adopts_waiting: Whether topics with waiting messages may be missing in the table.
    """

    def __init__(self, context: LeaderContext, *, adopts_waiting: bool = False) -> None:
        self._context = context
        self._adopts_waiting = adopts_waiting
        self._topics = context.tables.topics
        # In the log of a group, a topic is before the messages that rely on it.
        self._save_tables = partial(context.persistence.save_urgent, here_only=True)
        self._store = context.store
        self._clock = context.clock
        self._put = context.writer.put
        self._forget_key = context.dedup.keys.forget
        self._much_changed = asyncio.Event()
        self._under_way: asyncio.Future[list[Appended]] | None = None
        self._interval_s = 1.0
        self._rates = _Rates()
        self._counts = VersionedCounts(clock=context.clock)
        self._left_before = (0, 0)
        self._saving = asyncio.Lock()
        self._expiring = asyncio.Lock()

    async def open(self) -> None:
        """Open the timer's files, and restore topics of waiting messages that may be missing."""
        context = self._context
        timers = self._timers = await asyncio.to_thread(
            open_timers_blocking,
            context.store,
            clock=context.clock,
            topics=list(self._topics.configs),
        )
        # What this broker learned of its master while it was a slave.
        timers.left_before = context.tables.master_timer.left_before
        try:
            self._build(timers)
            self._adopt_topics()
        except BaseException:
            self.abandon()
            raise
        context.timed.count_in = lambda slot_ms: timers.wheel.get(slot_ms).waiting

    def abandon(self) -> None:
        """Close the files."""
        self._timers.close()

    def _build(self, timers: TimerStore) -> None:
        context = self._context
        store, topics, clock = context.store, context.tables.topics, context.clock
        store_host, rules = context.store_host, context.timer_rules
        self._service = TimerService(
            store=store,
            timers=timers,
            topics=topics,
            groups=context.tables.groups,
            clock=clock,
            rules=rules,
            store_host=store_host,
            crash_end=int(store.end_position),
            crash_ms=store.store_ms,
            is_indexed=store.index is not None,
            wall_ms=clock.wall_ms,
        )
        self._recalls = RecallService(
            store=store,
            clock=clock,
            rules=rules,
            broker_name=context.identity.name,
            store_host=store_host,
            precision_ms=timers.precision_ms,
            is_indexed=store.index is not None,
        )
        self._mover = MessageMover(
            service=self._service, store=store, timers=timers, clock=clock, store_host=store_host
        )
        self._removal = TimerRemoval(moving=self._mover, put=self._put)
        self._loop = DueLoop(
            self._step,
            failure="timed messages stay",
            on_failure=self._service.note_failed,
            retry_seconds_max=_RETRY_SECONDS_MAX,
        )
        # Its own thread: a save in progress at a cancellation finishes before the next one.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="timer")

    def _adopt_topics(self) -> None:
        topics = self._topics
        if self._adopts_waiting:
            for topic in +self._timers.waiting:
                if topics.find(topic) is None:
                    topics.adopt(topic, queue_nums=topics.rules.default_queue_count)
        if self._timers.is_suspect:
            _adopt_topics(self._store, self._timers, topics)

    def routes(self) -> Sequence[Route]:
        """Return the route of recalls."""
        code, pool = RequestCode.RECALL_MESSAGE, PoolKind.MESSAGES
        return [waiting(code, RecallHeader, of_topic(PUB), self._recall, pool)]

    async def run(self) -> None:
        """Deliver and save until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._loop.run(), name="timer")
            group.create_task(self._save_regularly(), name="timer saves")

    def topic_listeners(self) -> Mapping[str, ArrivalListener]:
        """Wake up for new messages of the timer topic."""
        return {TIMER_TOPIC: self._note_arrivals}

    def _note_arrivals(self, arrivals: list[Arrival]) -> None:
        if not self._loop.is_woken:
            self._loop.wake()

    def configure(self, broker: BrokerConfig, store: StoreConfig) -> None:
        """Apply settings that may change while the broker runs."""
        self._may_recall = broker.recall_enabled
        is_writable = bool(broker.permission & PERM_WRITE)
        self._is_open = is_writable or broker.recall_when_not_writable
        self._interval_s = store.timer_flush_interval_ms / 1000
        self._loop.wake()

    def oldest_needed_position(self) -> Position | None:
        """Return the position of the oldest message that is not in the wheel yet."""
        queue = self._store.queue(TIMER_TOPIC, 0)
        return queue.position_from(self._timers.queue_offset) if queue is not None else None

    async def move_messages_before(self, position: int) -> None:
        """Move waiting messages out of segments that are about to be deleted."""
        needed = self.oldest_needed_position()
        if needed is not None and needed < position:
            raise StoreError(
                "messages before that position are still being added to the timer wheel"
            )
        freed_bytes = position - int(self._store.first_position)
        try:
            async with self._expiring:  # the timer log is read meanwhile
                count = await self._removal.run(position, freed_bytes=freed_bytes)
            if count:
                logger.info("timed messages moved to keep them: count=%s", count)
                await self._save()
        except OSError as error:
            raise StoreError(f"timed messages cannot be moved: {error}") from error

    def check_point(self) -> TimerCheckPoint:
        """Return the progress that is saved: the messages it counts as delivered are durable."""
        return TimerCheckPoint(*self._timers.saved)

    def left_before(self) -> tuple[int, int]:
        """Return the offset and time before which messages have durably left the wheel."""
        return self._left_before

    def timer_metrics(self) -> TimerMetrics:
        """Return the number of waiting messages of each topic."""
        return self._counts.metrics(self._timers.waiting)

    def metrics(self) -> Iterable[Family]:
        """Return the numbers of waiting and delivered timed messages."""
        waiting, now_ms = self._timers.waiting, self._clock.now_ms()
        return timer_families(self._service, waiting=waiting, topics=self._topics, now_ms=now_ms)

    def runtime_values(self) -> dict[str, str]:
        """Return the timer's lag, its counters, and the waiting messages of topics."""
        service, timers = self._service, self._timers
        waiting = (+timers.waiting).most_common(TOPICS_SHOWN_MAX)
        return {
            "timerReadBehind": str(service.behind_ms(self._clock.now_ms()) // 1000),
            "timerOffsetBehind": str(service.offset_behind()),
            "timerCongestNum": str(service.waiting_count),
            "timerEnqueueTps": f"{self._rates.enqueued:.1f}",
            "timerDequeueTps": f"{self._rates.delivered:.1f}",
            "timerDelivered": str(service.delivered),
            "timerRolled": str(service.rolled),
            "timerRecalled": str(service.recalled_count),
            "timerMoved": str(self._mover.moved),
            "timerLost": str(service.lost),
            "timerNotSavedReason": timers.failure or "",
            "timerRebuiltReason": timers.rebuilt_because or "",
            **{f"timingMessages_{topic}": str(count) for topic, count in waiting},
        }

    async def save(self) -> None:
        """Save the timer's state, and close the files."""
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._thread, _do_nothing)
            is_sure = False
            with contextlib.suppress(OSError):  # then the next start looks for copies
                is_sure = self._removal.end()
            is_sure = self._end_delivery() and is_sure
            with contextlib.suppress(OSError):  # then the slot in memory is read again
                self._service.return_open_slot()
                self._mover.rebuild_slots()
            service = self._service
            is_sure = is_sure and not service.is_suspect and not service.slots_to_rebuild
            await self._save(flags=CLEAN if is_sure else 0)
        except OSError as error:
            raise StoreError(f"the timed messages that wait could not be saved: {error}") from error
        finally:
            await asyncio.to_thread(self._thread.shutdown)
            self._timers.close()

    # -- delivering

    async def _step(self) -> int | Next:
        step = self._service.next()
        after: int | Next = Next.AT_ONCE
        if isinstance(step, Due):
            await self._deliver(step)
        elif isinstance(step, Wait):
            after = _LOOK_MS if step.ms is None else step.ms
        else:
            await asyncio.sleep(0)
        if self._timers.wheel.changed_count > CHANGED_SLOTS_MAX:
            self._much_changed.set()
        return after

    async def _deliver(self, due: Due) -> None:
        try:
            self._under_way = self._put(due.drafts)
            # If we are cancelled here, the messages are still stored: see `save`.
            stored = await asyncio.shield(self._under_way)
        except Exception:
            self._under_way = None
            self._service.note_failed()
            raise
        self._under_way = None
        self._service.note_stored(len(stored))

    def _end_delivery(self) -> bool:
        """Settle the delivery in progress at the stop; return False if its outcome is unknown."""
        future, self._under_way = self._under_way, None
        if future is None:
            return True
        if future.done() and not future.cancelled() and future.exception() is None:
            self._service.note_stored(len(future.result()))
            return True
        self._service.note_failed()
        return False

    # -- saving

    async def _save_regularly(self) -> None:
        loop = asyncio.get_running_loop()
        expiry_at = loop.time() + _EXPIRY_SECONDS
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await self._much_changed.wait()
            self._much_changed.clear()
            self._rates.sample(loop.time(), self._service)
            try:
                if self._service.is_changed:
                    await self._save()
                if loop.time() >= expiry_at:
                    expiry_at = loop.time() + _EXPIRY_SECONDS
                    await self._expire()
                if self._service.slots_to_rebuild:
                    self._mover.rebuild_slots()
                    self._loop.wake()
            except (RocketpostError, OSError) as error:
                logger.error("timed messages are not saved: reason=%s", error)
                await asyncio.sleep(_RETRY_SECONDS_MAX)
            except Exception:
                logger.exception("timed messages are not saved")
                await asyncio.sleep(_RETRY_SECONDS_MAX)

    async def _save(self, *, flags: int = 0) -> None:
        async with self._saving:
            self._service.is_changed = False
            left_before = self._timers.left_before
            save = self._timers.prepare_save(
                commit_log_end=int(self._store.confirmed_position),
                now_ms=self._clock.now_ms(),
                flags=flags,
            )
            loop = asyncio.get_running_loop()
            try:
                # A topic that a timed send created must still exist when the message is due.
                await self._save_tables()
                await loop.run_in_executor(self._thread, self._save_blocking, save)
            except (OSError, StoreError):
                self._service.is_changed = True
                raise
            self._timers.mark_saved()
            self._left_before = left_before

    def _save_blocking(self, save: Save) -> None:
        # A power cut must not undo deliveries that the files record.
        self._store.flush_blocking()
        self._timers.save_blocking(save)

    async def _expire(self) -> None:
        """Delete files of the timer log that are no longer needed."""
        loop, timer_log = asyncio.get_running_loop(), self._timers.log
        position = int(self._store.first_position)
        async with self._expiring, self._saving:
            starts = await loop.run_in_executor(
                self._thread, timer_log.find_finished_blocking, position
            )
            timer_log.expire(starts)
        if timer_log.has_expired:
            await self._save()  # else the next start would take the missing files for damage
            await loop.run_in_executor(self._thread, timer_log.unlink_expired_blocking)

    # -- recalling

    async def _recall(
        self, connection: Connection, command: Command, header: RecallHeader
    ) -> Reply:
        """Serve RECALL_MESSAGE: answer once the recall is stored."""
        if not self._may_recall:
            raise NoPermission("recalls are off here: set recallMessageEnable=true")
        if not self._is_open or self._store.refuses_new:
            raise ServiceNotAvailable(
                self._store.why_not_writable or "this broker accepts no messages now"
            )
        if self._topics.find(header.topic) is None:
            raise TopicNotExist(f"the topic {header.topic} does not exist")
        recall = self._recalls.recall(
            header.topic, header.recall_handle, born_host=connection.peer_host
        )
        service = self._service
        service.recalling.add(recall.key)
        try:
            (stored,) = await asyncio.shield(self._put([recall.draft]))
        except StoreError as error:
            raise ServiceNotAvailable(str(error)) from error
        else:
            if stored.queue_offset >= self._timers.queue_offset:  # it is not in the wheel yet
                service.recalled.add(recall.key)
            self._forget_key((header.topic, recall.message_id))
        finally:
            service.recalling.discard(recall.key)
            self._loop.wake()
        return Reply(fields={"msgId": recall.message_id})


class _Rates:
    """Rates of messages that enter and leave the wheel, per second."""

    def __init__(self) -> None:
        self.enqueued = self.delivered = 0.0
        self._at = 0.0
        self._before = (0, 0)

    def sample(self, now: float, service: TimerService) -> None:
        """Compute the rates since the last sample."""
        counts = (service.enqueued, service.delivered)
        passed = now - self._at
        if self._at and passed > 0:
            self.enqueued = (counts[0] - self._before[0]) / passed
            self.delivered = (counts[1] - self._before[1]) / passed
        self._at, self._before = now, counts


def _adopt_topics(store: MessageStore, timers: TimerStore, topics: TopicTable) -> None:
    """Restore topics that timed sends created just before a crash."""
    queue = store.queue(TIMER_TOPIC, 0)
    if queue is None:
        return
    for offset in range(max(timers.queue_offset, int(queue.first)), int(queue.end)):
        entry = queue.entry(offset)
        record = store.record_of(queue, offset, *entry[:2]) if entry is not None else None
        properties = record.properties if record is not None else {}
        topic, queue_id = properties.get(names.REAL_TOPIC), properties.get(names.REAL_QUEUE_ID, "")
        if topic and topics.find(topic) is None and queue_id.isascii() and queue_id.isdecimal():
            count = max(int(queue_id[:6]) + 1, topics.rules.default_queue_count)
            topics.adopt(topic, queue_nums=1 if is_retry_or_dlq(topic) else count)


def _do_nothing() -> None:
    """Do nothing; its completion shows that earlier work of the thread is done."""
