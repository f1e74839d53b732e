"""Life stories of timed messages, as text: ``traces/*.txt``.

All times are milliseconds since the start of the trace. A slot of the wheel has 10 of them, and the
wheel holds messages for 400: what is due later is rolled, which is to say stored again. After each
command stands what was stored and what is in the wheel; there ``K1 due 25`` waits for its delivery
and ``K1 rolls 200`` for its next copy. Checked after every command, whatever the file says: no
message is delivered early, or twice, or after its recall was stored.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rocketpost.broker.delivery import Wait
from rocketpost.broker.timer.admission import waiting_of
from rocketpost.broker.timer.steps import Due
from rocketpost.codec.record import Record
from rocketpost.model.names import TIMER_TOPIC
from rocketpost.store.draft import Appended, Draft
from rocketpost.store.timer.log import RECALL, ROLL, Unit
from rocketpost.testing.trace_files import TraceCommand, run_trace

from ..store.world import NOW
from .world import World

TRACES = sorted((Path(__file__).parent / "traces").glob("*.txt"))


class Steady(random.Random):
    """Chance without surprises: everything fits, and nothing fails."""

    def random(self) -> float:
        return 0.5


class TracedWorld(World):
    """Runs commands, and tells what follows from them."""

    def run(self, command: TraceCommand) -> Iterator[str]:
        action: Callable[[TraceCommand], None] = getattr(self, f"do_{command.name}")
        self.lines: list[str] = []
        action(command)
        yield from self.lines
        if self.store is not None:
            yield f"wheel at {self.clock.ms - NOW}: {self.state()}"
            self.judge(is_over=False)
        else:
            yield "stopped"

    def state(self) -> str:
        timers = self.timers
        waiting = [
            unit
            for slot_ms, slot in timers.wheel.used_slots()
            for at, unit in timers.units_from(slot.last)
            if slot_ms > timers.read_ms or (unit.due_ms, at) > timers.cursor
        ]
        waiting.sort(key=lambda unit: (unit.due_ms, unit.position))
        behind = self.service.offset_behind()
        not_taken = [f"{behind} not taken yet"] if behind else []
        return ", ".join([*not_taken, *map(self.described_unit, waiting)]) or "empty"

    def described_unit(self, unit: Unit) -> str:
        record = self.running.record_at(unit.position)
        assert record is not None
        name = described(record)
        if unit.magic & RECALL:
            return name
        what = "rolls" if unit.magic & ROLL else "due"
        return f"{name} {what} {unit.due_ms - NOW}"

    def put(self, drafts: list[Draft]) -> list[Appended]:
        stored = super().put(drafts)
        for appended in stored:
            record = self.running.record_at(appended.position)
            assert record is not None
            self.lines.append(f"stored: {where(record)}")
        return stored

    # Clients.

    def do_send(self, command: TraceCommand) -> None:
        """Send a message with each of these delays."""
        for delay in command.args:
            self.send(random.Random(1), int(delay))

    def do_recall(self, command: TraceCommand) -> None:
        for key in command.args:
            if not self.recall(self.sent[key]):
                self.lines.append(f"refused: it is too late to recall {key}")

    # The broker.

    def do_start(self, command: TraceCommand) -> None:
        self.open()
        if self.timers.is_suspect:
            self.lines.append("was not stopped in order")

    def do_serve(self, command: TraceCommand) -> None:
        """Do what there is to do; only ``steps`` of it, or store only ``room`` messages."""
        room = command.option_int("room", 10_000)
        for _ in range(command.option_int("steps", 10_000)):
            before = self.service.enqueued
            found = self.service.next()
            if isinstance(found, Wait):
                self.lines.append("waits" if found.ms is None else f"waits {found.ms} ms")
                return
            if isinstance(found, Due):
                count = min(room, len(found.drafts))
                if count:
                    self.put(found.drafts[:count])
                self.service.note_stored(count)
                if count < len(found.drafts):
                    self.lines.append(f"no room for {len(found.drafts) - count}")
                    return
            if self.service.enqueued > before:
                self.lines.append(f"taken into the wheel: {self.service.enqueued - before}")

    def do_later(self, command: TraceCommand) -> None:
        """Let time go by, and serve."""
        self.clock.ms += int(command.args[0])
        self.do_serve(command)

    def do_asleep(self, command: TraceCommand) -> None:
        """Let time go by without serving."""
        self.clock.ms += int(command.args[0])

    def do_save(self, command: TraceCommand) -> None:
        self.save()

    def do_move(self, command: TraceCommand) -> None:
        """Move messages that wait in the log before its end, as before a deletion."""
        is_done = self.move_messages_before(Steady(1), int(self.running.end_position))
        self.lines.append("moved" if is_done else "not moved: messages are just due")

    def do_kill(self, command: TraceCommand) -> None:
        """Kill the process: files are as the page cache has them."""
        self.kill()

    def do_cut(self, command: TraceCommand) -> None:
        """Cut the power: only what was synced is left."""
        self._drop(self.disk.after_power_cut(Dark()))

    def do_stop(self, command: TraceCommand) -> None:
        self.close()


class Dark(random.Random):
    """Chance that keeps nothing of what was not synced."""

    def random(self) -> float:
        return 0.999999

    def getrandbits(self, k: int, /) -> int:
        return 0


def described(record: Record) -> str:
    """Return a message of the timer topic in short."""
    properties = record.properties
    if "TIMER_DEL_UNIQKEY" in properties:
        return f"recall of {properties['TIMER_DEL_UNIQKEY'].partition('+')[2]}"
    times = properties.get("TIMER_ROLL_TIMES")
    return properties["UNIQ_KEY"] + (f" copy {times}" if times else "")


def where(record: Record) -> str:
    at, properties = record.queue_offset, record.properties
    if record.topic != TIMER_TOPIC:
        return f"{properties['UNIQ_KEY']} in {record.topic}/{record.queue_id} at {at}"
    waiting = waiting_of(properties, 10)
    assert waiting is not None
    return f"timer topic {at}, {described(record)} for {waiting.due_ms - NOW}"


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_traces(path: Path, rewrite: bool) -> None:
    world = TracedWorld()
    run_trace(path, world.run, rewrite=rewrite)
    assert world.store is not None, "a trace ends with a running broker"
    world.finish()
    world.judge(is_over=True)
