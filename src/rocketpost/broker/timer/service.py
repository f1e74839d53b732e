"""Decides the timer's next step: take new messages into the wheel, or deliver due messages.

New messages come first. Every message of the timer topic gets a unit, even if it is already due, so
that the files know every delivered message, and a recall is known before the message it recalls is
due. Then the slot of the present time is read and delivered in the order of due times. A finished
slot is emptied.

After a crash the files are as they were last saved, so some due messages may already have been
delivered. These are looked up by their copies, which name their originals. That is needed only for
messages due before the last store time before the crash, since none is delivered early.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import islice
from typing import Final, NamedTuple

from rocketpost.broker.delivery import Groups, Store, Topics, Wait
from rocketpost.broker.timer.admission import (
    TimerRules,
    Waiting,
    copy_draft,
    day_wait_ms,
    recall_key,
    waiting_of,
)
from rocketpost.broker.timer.copies import Copies
from rocketpost.broker.timer.intake import Intake
from rocketpost.broker.timer.slot import Decision, OpenSlot, Outcome, SlotEntry
from rocketpost.broker.timer.steps import AGAIN, Again, Due, TimerTally
from rocketpost.broker.timer.target import Targets
from rocketpost.codec.record import Record
from rocketpost.model import properties as names
from rocketpost.model.clock import Clock
from rocketpost.model.names import TIMER_TOPIC
from rocketpost.store.timer.log import DEFAULT, RECALL, ROLL, Unit
from rocketpost.store.timer.store import TimerStore
from rocketpost.store.timer.values import Cursor, Item
from rocketpost.store.timer.wheel import NOWHERE

logger = logging.getLogger(__name__)

LOAD_COUNT_MAX: Final = 2000
BATCH_COUNT_MAX: Final = 256
BATCH_BYTES_MAX: Final = 4 * 1024 * 1024
SCAN_COUNT: Final = 2048
_HOLD_MS: Final = 10


class _Next(NamedTuple):
    """Result of a look ahead: the next used slot, if there is one before ``until_ms``."""

    slot_ms: int | None
    until_ms: int


class TimerService:
    """Moves messages into the wheel and out of it. Owned by the event loop; waits for nothing.

    Args:
        crash_end: End of the commit log when the broker started.
        crash_ms: Store time of the last message before that.
        is_indexed: Whether messages are found by key.
        wall_ms: Returns the time of day, which is behind the clock after it was set back;
            messages that name such a time wait for it. The clock's time by default.
    """

    def __init__(
        self,
        *,
        store: Store,
        timers: TimerStore,
        topics: Topics,
        groups: Groups,
        clock: Clock,
        rules: Callable[[], TimerRules],
        store_host: bytes,
        crash_end: int,
        crash_ms: int,
        is_indexed: bool = True,
        wall_ms: Callable[[], int] | None = None,
    ) -> None:
        self._store = store
        self._timers = timers
        self._targets = Targets(topics=topics, groups=groups)
        self._clock = clock
        self._wall_ms = wall_ms or clock.now_ms
        self._rules = rules
        self._store_host = store_host
        crash_ms, read_ms = crash_ms if timers.is_suspect else -1, timers.read_ms
        self.copies = Copies(store=store, crash_end=crash_end, crash_ms=crash_ms, read_ms=read_ms)
        self._slot: OpenSlot | None = None
        self._next: _Next | None = None
        self._empty_count = 0
        self._batch: list[Decision] = []
        self.recalling: set[str] = set()
        """Recalls that are being stored; their messages are held until then."""
        self.recalled: set[str] = set()
        """Recalls that are stored but not in the wheel yet."""
        self.is_held = False
        """Whether taking and delivering are paused: see ``broker.timer.moving``."""
        self.moved: set[int] = set()
        """Positions of messages that were moved; their units in the wheel are void."""
        self.slots_to_rebuild: set[int] = set()
        """Slots with such units. Nothing is taken meanwhile, or a crash would show both copies."""
        self.enqueued = self.delivered = self.rolled = self.recalled_count = self.lost = 0
        self.tally = TimerTally()
        self.is_changed = False
        """Whether there are changes to save."""
        self._intake = Intake(store=store, timers=timers, copies=self.copies, is_indexed=is_indexed)
        self.is_changed |= self._intake.start()  # before the log grows again, if it was cut

    # -- called by the server

    def next(self) -> Due | Wait | Again:
        """Return the next step: store messages, wait, or ask again.

        Raises:
            OSError: The timer log could not be written; ask again later.
        """
        assert not self._batch
        if self.is_held:
            return Wait(_HOLD_MS)
        rules, now_ms = self._rules(), min(self._clock.now_ms(), self._store.stamp_ms())
        if self._timers.slot_of(now_ms) < self._timers.read_ms:
            self._restart_earlier(now_ms)
        is_far_behind = self._timers.slot_ms_max < now_ms + rules.roll_window_ms
        if is_far_behind and self._slot is None and isinstance(self._open_next(now_ms), Again):
            return AGAIN  # otherwise new messages would not fit the wheel
        if not rules.stop_enqueue and not self.slots_to_rebuild and self._take(rules, now_ms):
            return AGAIN
        if rules.stop_dequeue:
            return Wait(None)
        return self._serve(now_ms)

    def note_stored(self, count: int) -> None:
        """Note that the first ``count`` of the messages to store are stored.

        Raises:
            OSError: The timer log could not be written; messages not noted are looked up again.
        """
        slot = self._slot
        assert slot is not None
        batch, self._batch = self._batch, []
        trouble: OSError | None = None
        for at, decision in enumerate(batch):
            if decision.outcome is Outcome.SENT and count == 0:
                slot.put_back([each.entry for each in batch[at:]])
                break
            count -= decision.outcome is Outcome.SENT
            try:
                self._settle(decision)
            except OSError as error:
                trouble = error
                slot.put_back([decision.entry])
                continue
            if trouble is None:  # else a crash would count messages put back as delivered
                self._timers.cursor = Cursor(*decision.entry)
        if trouble is not None:
            raise trouble

    def note_failed(self) -> None:
        """Note that nothing of the last batch was stored, if there was one."""
        if self._slot is not None:
            self._slot.put_back([each.entry for each in self._batch])
        self._batch = []

    def return_open_slot(self) -> None:
        """Put the remaining messages of the open slot back into the wheel, for an orderly stop.

        Raises:
            OSError: The timer log could not be read or written; nothing was changed.
        """
        if self._slot is not None or self._timers.cursor.position != NOWHERE:
            self._return_slot(self._timers.read_ms, self._clock.now_ms())

    @property
    def is_suspect(self) -> bool:
        """Whether messages that were delivered before a crash may still wait."""
        timers = self._timers
        return self.copies.may_wait(read_ms=timers.read_ms, queue_offset=timers.queue_offset)

    @property
    def waiting_count(self) -> int:
        """Number of waiting messages."""
        return sum(self._timers.waiting.values())

    def behind_ms(self, now_ms: int) -> int:
        """Return how long the first waiting message has been due."""
        first = self._slot.first() if self._slot is not None else None
        return max(0, now_ms - first.due_ms) if first is not None else 0

    def offset_behind(self) -> int:
        """Return the number of messages that are not in the wheel yet."""
        queue = self._store.queue(TIMER_TOPIC, 0)
        return max(0, int(queue.end) - self._timers.queue_offset) if queue is not None else 0

    def intake_behind_ms(self, now_ms: int) -> int:
        """Return for how long the next message has waited to enter the wheel; 0 if none waits."""
        queue, offset = self._store.queue(TIMER_TOPIC, 0), self._timers.queue_offset
        if queue is None or offset >= queue.end:
            return 0
        stored_ms = queue.store_time(max(offset, int(queue.first)))
        return max(0, now_ms - stored_ms) if stored_ms > 0 else 0

    def record(self, position: int, size: int) -> Record | None:
        """Return the message of a unit; None if it is gone or another record is in its place."""
        return self._intake.record(position, size)

    def was_delivered(self, record: Record, *, due_ms: int) -> bool:
        """Tell whether a message left the wheel before a crash, unknown to the saved wheel."""
        if not self.copies.is_needed(due_ms):
            return False
        properties = record.properties
        return self.copies.exists(record, properties, properties.get(names.REAL_TOPIC, ""))

    def due_of(self, unit: Unit) -> int:
        """Return when a unit is due; RocketMQ's units do not contain the due time."""
        if unit.due_ms:
            return unit.due_ms
        record = self.record(unit.position, unit.size)
        waiting = (
            waiting_of(record.properties, self._timers.precision_ms) if record is not None else None
        )
        if waiting is None or unit.magic & ROLL:
            return unit.slot_ms
        return waiting.due_ms

    def is_reading(self, slot_ms: int) -> bool:
        """Tell whether some of a slot may be delivered; only its old chain shows which."""
        if self._slot is not None and self._slot.slot_ms == slot_ms:
            return True
        return slot_ms == self._timers.read_ms and self._timers.cursor.position != NOWHERE

    # -- into the wheel

    def _take(self, rules: TimerRules, now_ms: int) -> bool:
        """Take some messages from the timer topic; False if there are none to take."""
        taken = self._intake.take(rules, now_ms)
        if taken is None:
            return False
        self.is_changed = True
        self.enqueued += len(taken)
        self.tally.enter([each for each in taken if each[1].recalls is None], now_ms)
        for item, waiting, at in taken:
            self._note_entry(item, waiting, at=at)
        return True

    def _note_entry(self, item: Item, waiting: Waiting, *, at: int) -> None:
        slot, ahead, is_recall = self._slot, self._next, bool(item.magic & RECALL)
        self._empty_count = 0
        if ahead is not None and item.slot_ms < (ahead.slot_ms or ahead.until_ms):
            self._next = _Next(item.slot_ms, ahead.until_ms)
        is_open = slot is not None and slot.slot_ms == item.slot_ms
        if is_recall and not item.magic & ROLL:
            assert waiting.recalls is not None
            self.recalled.discard(waiting.recalls)
            if is_open and slot is not None:
                slot.recalled.add(waiting.recalls)
            return
        if not is_recall:
            self._timers.waiting[waiting.topic] += 1
        if is_open and slot is not None:
            slot.add_late(SlotEntry(item.due_ms, at))

    # -- out of the wheel

    def _serve(self, now_ms: int) -> Due | Wait | Again:
        if self._slot is None:
            waits = self._open_next(now_ms)
            if waits is not None:
                return waits
        slot = self._slot
        assert slot is not None
        if slot.chain is not None:
            self._load(slot)
            return AGAIN
        first = slot.first()
        if first is None:
            return self._close_or_wait(slot, now_ms)
        if first.due_ms > now_ms:
            return Wait(first.due_ms - now_ms)
        return self._decide_due(slot, now_ms)

    def _open_next(self, now_ms: int) -> Wait | Again | None:
        """Open the next used slot, if its time has come."""
        timers = self._timers
        if self._next is None:
            until_ms = timers.read_ms + SCAN_COUNT * timers.precision_ms
            self._next = _Next(timers.wheel.next_used(timers.read_ms, count=SCAN_COUNT), until_ms)
        found, until_ms = self._next
        here = timers.slot_of(now_ms)
        if found is None and until_ms <= here:
            # A full turn of the wheel found nothing, so no slot before the present is used.
            self._empty_count += SCAN_COUNT
            is_round = self._empty_count >= timers.wheel.slot_count
            self._move(here if is_round else until_ms)
            self._next = None
            return AGAIN
        if found is None or found > here:
            self._move(here)
            return Wait((found if found is not None else until_ms) + 1 - now_ms)
        self._next = None
        self._empty_count = 0
        self._move(found)
        self._open(found)
        return None

    def _open(self, slot_ms: int) -> None:
        timers = self._timers
        chain = timers.units_from(timers.wheel.get(slot_ms).last)
        self._slot = OpenSlot(slot_ms, chain, base=timers.log.first)

    def _move(self, slot_ms: int) -> None:
        if slot_ms != self._timers.read_ms:
            self._timers.read_ms, self._timers.cursor = slot_ms, Cursor()
            self._timers.left_before = self._timers.queue_offset, slot_ms

    def _load(self, slot: OpenSlot) -> None:
        """Read some units of a slot's chain."""
        assert slot.chain is not None
        try:
            units = list(islice(slot.chain, LOAD_COUNT_MAX))
            for at, unit in units:
                if unit.magic & RECALL and not unit.magic & ROLL:
                    record = self.record(unit.position, unit.size)
                    if record is not None:
                        slot.recalled.add(record.properties.get(names.TIMER_RECALLS, ""))
                else:
                    slot.add(SlotEntry(self.due_of(unit), at))
        except OSError:
            self._slot = None  # the chain cannot be read on: the slot is opened again
            raise
        if len(units) < LOAD_COUNT_MAX:
            slot.finish_loading(self._timers.cursor)

    def _close_or_wait(self, slot: OpenSlot, now_ms: int) -> Wait | Again:
        end_ms = slot.slot_ms + self._timers.precision_ms
        if now_ms <= end_ms:
            return Wait(end_ms + 1 - now_ms)
        self._timers.wheel.clear(slot.slot_ms)
        self._slot = None
        self._move(end_ms)
        self.is_changed = True
        return AGAIN

    def _decide_due(self, slot: OpenSlot, now_ms: int) -> Due | Wait | Again:
        """Take due messages from the slot, as many as are stored at once."""
        size_sum = 0
        while len(self._batch) < BATCH_COUNT_MAX and size_sum < BATCH_BYTES_MAX:
            first = slot.first()
            if first is None or first.due_ms > now_ms:
                break
            decision = self._decide(slot, first, now_ms)
            if decision.outcome is Outcome.HELD:
                break
            slot.pop()
            self._batch.append(decision)
            size_sum += decision.unit.size
        drafts = [decision.draft for decision in self._batch if decision.draft is not None]
        if drafts:
            return Due(drafts)
        is_held = not self._batch
        self.note_stored(0)
        return Wait(_HOLD_MS) if is_held else AGAIN

    def _decide(self, slot: OpenSlot, entry: SlotEntry, now_ms: int) -> Decision:
        unit = self._timers.log.unit(entry.position)
        record = self.record(unit.position, unit.size) if unit is not None else None
        is_moved = unit is not None and unit.position in self.moved
        if unit is None or record is None:
            if not is_moved:
                self.lost += 1
                logger.error("timed message is gone or damaged: unit=%s", entry.position)
            return Decision(entry, Outcome.DROPPED, "", unit or _NO_UNIT)
        properties = record.properties
        topic = properties.get(names.REAL_TOPIC, "")
        is_rolled = bool(unit.magic & ROLL)
        counted = "" if unit.magic & RECALL else topic
        if is_moved:
            return Decision(entry, Outcome.DROPPED, counted, unit)
        if not is_rolled:
            key = recall_key(topic, properties.get(names.UNIQUE_KEY, ""))
            if key in self.recalling:
                return Decision(entry, Outcome.HELD, counted, unit)
            if key in slot.recalled or key in self.recalled:
                self.recalled_count += 1
                return Decision(entry, Outcome.DROPPED, counted, unit)
        if self.was_delivered(record, due_ms=entry.due_ms):
            return Decision(entry, Outcome.DROPPED, counted, unit)
        if is_rolled:
            target: tuple[str, int] | None = (TIMER_TOPIC, 0)
        else:
            target = self._targets.find(topic, properties)
            if target is not None and self._targets.is_missing(topic, now_ms):
                outcome = (
                    Outcome.DROPPED if self._targets.has_given_up(topic, now_ms) else Outcome.LATER
                )
                return Decision(entry, outcome, counted, unit)
        if target is None:
            logger.error("timed message without destination: position=%s", record.position)
            return Decision(entry, Outcome.DROPPED, counted, unit)
        wait_ms = day_wait_ms(properties, self._timers.precision_ms, self._wall_ms())
        if wait_ms > 0 and not is_rolled:
            return Decision(entry, Outcome.LATER, counted, unit, wait_ms=wait_ms)
        draft = copy_draft(
            record,
            properties,
            topic=target[0],
            queue_id=target[1],
            enqueued_ms=unit.written_ms,
            now_ms=now_ms,
            store_host=self._store_host,
        )
        return Decision(entry, Outcome.SENT, counted, unit, draft)

    def _settle(self, decision: Decision) -> None:
        timers, slot = self._timers, self._slot
        assert slot is not None
        if decision.outcome is Outcome.LATER:
            now_ms = self._clock.now_ms()
            due_ms = max(now_ms, decision.entry.due_ms) + decision.wait_ms
            slot_ms = max(timers.slot_of(due_ms), timers.read_ms)
            unit = decision.unit
            item = Item(slot_ms, due_ms, unit.magic, unit.position, unit.size, unit.topic_hash)
            (at,) = timers.add([item], now_ms=now_ms)
            if slot_ms == slot.slot_ms:
                slot.add_late(SlotEntry(due_ms, at))
        elif decision.topic:
            timers.waiting[decision.topic] -= 1
        if decision.outcome is Outcome.SENT:
            if decision.unit.magic & ROLL:
                self.rolled += 1
            else:
                self.delivered += 1
                self.tally.leave(decision.topic)
        self.is_changed = True

    # -- clocks and crashes

    def _restart_earlier(self, now_ms: int) -> None:
        """Restart at an earlier slot, since the clock was set back."""
        logger.warning("the clock was set back: by_ms=%s", self._timers.read_ms - now_ms)
        self._return_slot(self._timers.slot_of(now_ms), now_ms)
        self._next = None

    def _return_slot(self, read_ms: int, now_ms: int) -> None:
        """Put the messages left in the first slot back into the wheel; continue at ``read_ms``.

        Messages that were too late for their own slot wait in the first one; they may return now.
        """
        timers = self._timers
        before = (timers.read_ms, timers.cursor)
        if self._slot is None:
            self._open(timers.read_ms)
        slot = self._slot
        assert slot is not None
        while slot.chain is not None:
            self._load(slot)
        entries: list[SlotEntry] = []
        try:
            units = self._recalls_of(slot)
            while slot.first() is not None:
                entries.append(slot.pop())
                unit = timers.log.unit(entries[-1].position)
                if unit is not None:
                    units.append(unit)
            timers.read_ms, timers.cursor = read_ms, Cursor()
            items = [self._rescheduled_item(unit) for unit in units]
            timers.add(items, now_ms=now_ms, anew=slot.slot_ms)
        except OSError:
            slot.put_back(entries)
            timers.read_ms, timers.cursor = before
            raise
        self.slots_to_rebuild.update(item.slot_ms for item in items if item.position in self.moved)
        self._slot = None
        self.is_changed = True

    def _rescheduled_item(self, unit: Unit) -> Item:
        """Return the new slot and due time of a unit's message."""
        timers = self._timers
        slot_ms, due_ms = unit.slot_ms, unit.due_ms
        record = self.record(unit.position, unit.size)
        if record is not None and not unit.magic & ROLL:
            waiting = waiting_of(record.properties, timers.precision_ms)
            if waiting is not None:
                slot_ms, due_ms = waiting.slot_ms, waiting.due_ms
        slot_ms = max(slot_ms, timers.read_ms)
        due_ms = max(due_ms, slot_ms)
        return Item(slot_ms, due_ms, unit.magic, unit.position, unit.size, unit.topic_hash)

    def _recalls_of(self, slot: OpenSlot) -> list[Unit]:
        timers = self._timers
        chain = timers.units_from(timers.wheel.get(slot.slot_ms).last)
        return [unit for _, unit in chain if unit.magic & RECALL and not unit.magic & ROLL][::-1]


_NO_UNIT: Final = Unit(-1, DEFAULT, 0, 0, 0, 0, 0, 0)
