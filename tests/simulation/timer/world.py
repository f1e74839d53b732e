"""A store with a timer on a simulated disk, and a judge who knows what was promised.

The world does in one thread what ``server.features.timer`` does with tasks: ask the service, store
what it wants, save now and then. Whatever stops it, at any call to the disk: what was acknowledged
comes once, not early, and not at all if its recall was acknowledged.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from rocketpost.broker.delivery import Wait
from rocketpost.broker.timer.admission import TimedMessages, TimerRules, recall_handle
from rocketpost.broker.timer.moving import MessageMover
from rocketpost.broker.timer.recall import RecallService
from rocketpost.broker.timer.service import TimerService
from rocketpost.broker.timer.steps import Due
from rocketpost.codec.faults import IllegalOperation
from rocketpost.codec.properties import decode_properties, encode_properties
from rocketpost.codec.record import Record, pack_host
from rocketpost.errors import StoreError
from rocketpost.model.names import TIMER_TOPIC
from rocketpost.model.topic import TopicConfig
from rocketpost.server.features.timer import timer_rules
from rocketpost.store.config import FlushMode, StoreConfig
from rocketpost.store.draft import Appended, Draft
from rocketpost.store.message_store import MessageStore
from rocketpost.store.queue.files import FILLER_SIZE
from rocketpost.store.timer.checkpoint import CLEAN
from rocketpost.store.timer.store import TimerStore
from rocketpost.testing.sim.disk import SimulatedDisk

from ..store.world import HOST, NOW, PowerCut, formatted, small

__all__ = ["PowerCut", "Timed", "World"]

BORN = pack_host("10.0.0.9", 4000)
SLOT_COUNT = 600
FOREVER = 2**62


class Clock:
    def __init__(self) -> None:
        self.ms = NOW

    def now_ms(self) -> int:
        return self.ms


class Topics:
    def find(self, topic: str) -> TopicConfig | None:
        return TopicConfig(topic_name=topic, read_queue_nums=1, write_queue_nums=1)

    def create_internal(self, topic: str, *, queue_nums: int) -> TopicConfig:
        raise AssertionError(topic)


class Groups:
    def find(self, group: str) -> object | None:
        return None


@dataclass
class Timed:
    """One timed message, and what its sender was told."""

    key: str
    due_ms: int
    handle: str = ""
    is_acked: bool = False
    is_recalled: bool = False
    may_be_recalled: bool = False


@dataclass
class World:
    """State that survives a crash: the disk, the clock, and what producers know."""

    disk: SimulatedDisk = field(default_factory=formatted)
    config: StoreConfig = field(default_factory=lambda: timer_config())
    clock: Clock = field(default_factory=Clock)
    sent: dict[str, Timed] = field(default_factory=dict)
    count: int = 0
    found_delivered: int = 0
    rolled: int = 0
    store: MessageStore | None = None

    # -- running

    def open(self) -> None:
        store = self.store = MessageStore.open_blocking(
            self.config, clock=self.clock, files=self.disk, on_durable=lambda position: None
        )
        self.rules = timer_rules(self.config)

        def position_of(offset: int) -> int:
            queue = store.queue(TIMER_TOPIC, 0)
            entry = queue.entry(max(offset, int(queue.first))) if queue is not None else None
            return entry[0] if entry is not None else int(store.end_position)

        def oldest_ms() -> int | None:
            queue = store.queue(TIMER_TOPIC, 0)
            if queue is None or queue.first >= queue.end:
                return None
            return queue.store_time(int(queue.first))

        self.timers = TimerStore.open_blocking(
            store.layout,
            self.disk,
            precision_ms=self.config.timer_precision_ms,
            log_file_bytes=self.config.timer_log_file_bytes,
            commit_log_end=int(store.end_position),
            now_ms=self.clock.now_ms(),
            position_of=position_of,
            oldest_ms=oldest_ms,
            topics=["T"],
            slot_count=SLOT_COUNT,
        )
        self.service = TimerService(
            store=store,
            timers=self.timers,
            topics=Topics(),
            groups=Groups(),
            clock=self.clock,
            rules=self._rules,
            store_host=HOST,
            crash_end=int(store.end_position),
            crash_ms=store.store_ms,
            is_indexed=store.index is not None,
        )
        self.mover = MessageMover(
            service=self.service,
            store=store,
            timers=self.timers,
            clock=self.clock,
            store_host=HOST,
        )
        self.kind = TimedMessages(
            clock=self.clock,
            precision_ms=self.timers.precision_ms,
            rules=self._rules,
            random_below=lambda count: 0,
        )
        self.recalls = RecallService(
            store=store,
            clock=self.clock,
            rules=self._rules,
            broker_name="b",
            store_host=HOST,
            precision_ms=self.timers.precision_ms,
            is_indexed=True,
        )

    def _rules(self) -> TimerRules:
        return self.rules

    @property
    def running(self) -> MessageStore:
        assert self.store is not None
        return self.store

    def put(self, drafts: list[Draft]) -> list[Appended]:
        store = self.running
        stored = [store.append(draft) for draft in drafts]
        end = store.commit()
        if self.config.flush_mode is FlushMode.SYNC_FLUSH:
            store.flush_blocking()
        store.confirm(end)
        return stored

    def send(self, rng: random.Random, delay_ms: int) -> Timed:
        self.count += 1
        key = f"K{self.count}"
        timed = self.sent[key] = Timed(key, self.clock.ms + delay_ms)
        properties = {"UNIQ_KEY": key, "TIMER_DELIVER_MS": str(timed.due_ms)}
        body = b"x" * rng.choice([1, 40, 200])
        encoded = encode_properties(properties)
        plain = Draft("T", 0, 0, 0, self.clock.ms, BORN, HOST, 0, 0, body, encoded, 0, (key,))
        draft = self.kind.prepare(plain, properties) or plain
        if draft is not plain:
            timed.handle = recall_handle(decode_properties(draft.properties), "b") or ""
        self.put([draft])
        timed.is_acked = True
        return timed

    def recall(self, timed: Timed) -> bool:
        try:
            recall = self.recalls.recall("T", timed.handle, born_host=BORN)
        except IllegalOperation:
            return False
        timed.may_be_recalled = True
        self.service.recalling.add(recall.key)
        (stored,) = self.put([recall.draft])
        self.service.recalling.discard(recall.key)
        if stored.queue_offset >= self.timers.queue_offset:
            self.service.recalled.add(recall.key)
        timed.is_recalled = True
        return True

    def step(self, rng: random.Random | None = None) -> bool:
        """Do what the service wants; False if that is to wait."""
        found = self.service.next()
        if isinstance(found, Wait):
            return False
        if isinstance(found, Due):
            count = len(found.drafts)
            if rng is not None and rng.random() < 0.1:  # the store took only some
                count = rng.randrange(count + 1)
            if count:
                self.put(found.drafts[:count])
            self.service.note_stored(count)
        return True

    def move_messages_before(self, rng: random.Random, position: int) -> bool:
        """Move the waiting messages before a position; False if some are left."""
        found: dict[int, int] = {}
        for found in self.mover.survey(position):  # noqa: B007 - the last has all
            pass
        try:
            for slot_ms in sorted(found, reverse=True):
                self._move(rng, slot_ms, position)
        except StoreError:
            return False
        return True

    def _move(self, rng: random.Random, slot_ms: int, position: int) -> None:
        departure = self.mover.begin(slot_ms, position)
        if departure is None:
            return
        try:
            while drafts := self.mover.drafts(departure):
                assert not self.step()  # it stands still
                count = len(drafts) if rng.random() < 0.9 else rng.randrange(1, len(drafts) + 1)
                self.put(drafts[:count])
                self.mover.note_stored(departure, count)
                if count < len(drafts):
                    raise StoreError("no room")
        finally:
            self.mover.end(departure)

    def waits_before(self, position: int) -> bool:
        """Whether anything in the wheel needs what lies before a position."""
        timers = self.timers
        return any(
            unit.position < position
            and (unit.slot_ms > timers.read_ms or (unit.due_ms, at) > timers.cursor)
            for _, slot in timers.wheel.used_slots()
            for at, unit in timers.units_from(slot.last)
        )

    def serve(self, rng: random.Random | None = None, steps_max: int = 10_000) -> None:
        for _ in range(steps_max):
            if not self.step(rng):
                return

    def save(self, flags: int = 0) -> None:
        save = self.timers.prepare_save(
            commit_log_end=int(self.running.confirmed_position),
            now_ms=self.clock.now_ms(),
            flags=flags,
        )
        self.running.flush_blocking()
        self.timers.save_blocking(save)
        self.timers.mark_saved()

    # -- stopping

    def lose_power(self, rng: random.Random) -> None:
        self._drop(self.disk.after_power_cut(rng))

    def kill(self) -> None:
        self._drop(self.disk.after_kill())

    def close(self) -> None:
        self.service.return_open_slot()
        self.mover.rebuild_slots()
        is_sure = not self.service.is_suspect and not self.service.slots_to_rebuild
        self.save(CLEAN if is_sure else 0)
        self.timers.close()
        store, self.store = self.running, None
        self._note()
        store.close_blocking()

    def _drop(self, disk: SimulatedDisk) -> None:
        store, self.store = self.store, None
        self.disk = disk
        self._note()
        if store is not None:
            with contextlib.suppress(OSError, StoreError):
                store.close_blocking()  # on the dead disk: nothing reaches the new one

    def _note(self) -> None:
        if hasattr(self, "service"):
            self.found_delivered += self.service.copies.found
            self.rolled += self.service.rolled

    # -- judging

    def delivered(self) -> list[Record]:
        store = self.running
        queue = store.queue("T", 0)
        records = []
        for offset in range(int(queue.first), int(queue.end)) if queue is not None else ():
            entry = queue.entry(offset) if queue is not None else None
            assert entry is not None
            if entry[1] == FILLER_SIZE:  # a power cut took the message that was here
                continue
            record = store.record_at(entry[0])
            assert record is not None
            records.append(record)
        return records

    def finish(self) -> None:
        """Let everything come due."""
        latest = max([timed.due_ms for timed in self.sent.values()], default=0)
        while True:
            self.serve()
            if self.clock.ms > latest + 2 * self.timers.precision_ms:
                return
            self.clock.ms += self.timers.precision_ms * 37 + 13

    def judge(self, *, is_over: bool) -> None:
        """Compare what is delivered with what was promised."""
        counts: Counter[str] = Counter()
        for record in self.delivered():
            properties = decode_properties(record.properties_bytes)
            timed = self.sent[properties["UNIQ_KEY"]]
            counts[timed.key] += 1
            if "TIMER_DEQUEUE_MS" in properties:
                assert int(properties["TIMER_DEQUEUE_MS"]) >= timed.due_ms, f"{timed} is early"
                assert record.store_ms >= timed.due_ms, f"{timed} bears an early store time"
            assert not timed.is_recalled, f"{timed} was recalled"
        assert max(counts.values(), default=1) == 1, f"twice: {counts.most_common(3)}"
        if is_over:
            for timed in self.sent.values():
                promised = timed.is_acked and not timed.may_be_recalled
                assert counts[timed.key] == 1 or not promised, f"{timed} is lost"
            assert not self.service.waiting_count, self.timers.waiting
            assert self.service.lost == 0


def timer_config(**changes: Any) -> StoreConfig:
    """Return settings with tiny files and short slots."""
    settings: dict[str, Any] = {
        "segment_bytes": 64 * 1024,
        "index_slot_count": 64,
        "index_entry_count": 4096,
        "timer_precision_ms": 10,
        "timer_roll_slots": 40,
        "timer_log_file_bytes": 4096,
        "reserved_hours": 100_000,
    }
    return small(**(settings | changes))


def with_clean_stop(config: StoreConfig, **changes: Any) -> StoreConfig:
    """Return other settings for the next start."""
    return replace(config, **changes)
