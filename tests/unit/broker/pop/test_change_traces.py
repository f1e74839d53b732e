"""Changes of popping as they settle, one by one, as text: ``change_traces/*.txt``.

A change is appended when a command asks for it and settles with ``commit`` or ``fail``; until then
nothing is handed out or confirmed. After each command stands what was appended, handed out or
refused, and the state: the group's offset in each queue, the messages in flight by checkpoint
(``0:3+4`` are the offsets 3 and 4 of queue 0, ``~`` marks those whose end is being stored), and how
far nothing of the revive topic is needed. The invariants of ``broker.pop`` are checked after every
command, whatever the file says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rocketpost.broker.pop.changes import Change
from rocketpost.broker.pop.service import PopResult
from rocketpost.broker.pop.targets import Cursor, PopRequest
from rocketpost.errors import Fault, StoreFull
from rocketpost.store.draft import Draft
from rocketpost.testing.trace_files import TraceCommand, run_trace

from ..pop_world import REVIVE_TOPIC, Delivery, World

TRACES = sorted((Path(__file__).parent / "change_traces").glob("*.txt"))


class TracedWorld(World):
    """Runs commands, and tells what follows from them."""

    def __init__(self, root: Path) -> None:
        self.lines: list[str] = []
        self.popping: list[PopResult] = []
        self.hands: dict[str, Delivery] = {}
        super().__init__(root)

    def run(self, command: TraceCommand) -> Iterator[str]:
        action: Callable[[TraceCommand], None] = getattr(self, f"do_{command.name}")
        self.lines = []
        try:
            action(command)
        except (Fault, StoreFull) as error:
            self.lines.append(f"refused: {type(error).__name__}: {error}")
        yield from self.lines
        yield f"state: {self.state()}"
        self.in_flight.check()

    def state(self) -> str:
        offsets = [max(0, self.offsets.query("T", "g", queue_id)) for queue_id in range(2)]
        flights = []
        for key in sorted(self.in_flight):
            checkpoint = self.in_flight.find(key)
            assert checkpoint is not None
            marks = dict.fromkeys(checkpoint.left, "")
            marks |= dict.fromkeys(checkpoint.closing, "~")
            where = "" if key.topic == "T" else "again "
            flights.append(
                f"{where}{key.queue_id}:" + "+".join(f"{o}{marks[o]}" for o in sorted(marks))
            )
        batches = [
            f"batch {cursor.queue_id}:" + "+".join(map(str, batch.left))
            for cursor, batch in self.batches
        ]
        reached = [self.watermark.offset(queue) for queue in range(2)]
        in_flight = ", ".join([*flights, *batches]) or "nothing"
        return f"offsets {offsets}, in flight {in_flight}, not needed up to {reached}"

    # What is told.

    def put(self, service: Any, change: Change) -> None:
        drafts = list(change.drafts)
        before = len(self.storing)
        super().put(service, change)
        if len(self.storing) > before:
            self.lines += [f"appended: {described(draft)}" for draft in drafts]

    def commit(self, count: int | None = None) -> None:
        super().commit(count)
        self.hand_out()

    def hand_out(self) -> None:
        for popped in self.popping:
            parts = [part for part in popped.parts if part.change.is_stored]
            for delivery in self.delivered(popped._replace(parts=parts)):
                self.hands[delivery.name] = delivery
                times = delivery.record.reconsume_times
                again = f", delivery {times + 1}" if times else ""
                self.lines.append(f"handed out: {delivery.name}{again}")
        self.popping = []

    # Consumers.

    def do_send(self, command: TraceCommand) -> None:
        for name in command.args:
            self.send(command.option_int("queue", 0), name=name)

    def do_pop(self, command: TraceCommand) -> None:
        """Pop; ``order`` pops queue 0 in order."""
        in_order = "order" in command.args
        request: PopRequest = self.request(
            0 if in_order else command.option_int("queue", -1),
            count_max=command.option_int("count", 32),
            invisible_ms=command.option_int("invisible", 1000),
            in_order=in_order,
            attempt_id=command.options.get("attempt", ""),
        )
        popped = self.start_pop(request)
        self.popping.append(popped)
        if not popped.parts:
            self.lines.append("found nothing" + (", but there may be more" * popped.is_cut))

    def do_ack(self, command: TraceCommand) -> None:
        for name in command.args:
            delivery = self.hands[name]
            if command.options.get("order"):
                change = self.ordered.ack(
                    Cursor(*delivery.key[:3]), delivery.key.pop_ms, delivery.offset
                )
            else:
                change = self.receipts.ack(delivery.key, [delivery.offset])
            if change is None:
                self.lines.append(f"{name} needs no ack")

    def do_change(self, command: TraceCommand) -> None:
        [name] = command.args
        delivery = self.hands[name]
        changed = self.receipts.change_invisible_time(
            delivery.key, delivery.offset, command.option_int("invisible", 1000)
        )
        key = delivery.key._replace(start_offset=delivery.offset, pop_ms=changed.pop_ms)
        self.hands[name] = delivery._replace(key=key)

    def do_reset(self, command: TraceCommand) -> None:
        self.offsets.reset("T", "g", command.option_int("queue", 0), int(command.args[0]))

    # The broker.

    def do_commit(self, command: TraceCommand) -> None:
        """Store what was appended, or the first records of each change."""
        self.commit(int(command.args[0]) if command.args else None)

    def do_fail(self, command: TraceCommand) -> None:
        """Lose what was appended."""
        self.fail()
        self.hand_out()

    def do_full(self, command: TraceCommand) -> None:
        self.full = command.args == ["yes"]

    def do_later(self, command: TraceCommand) -> None:
        """Let time go by, and begin to hand out again what is due."""
        self.clock.advance(int(command.args[0]))
        self.receipts.revive()

    def do_save(self, command: TraceCommand) -> None:
        self.save()
        self.save_batches()

    def do_crash(self, command: TraceCommand) -> None:
        """Kill the broker with everything in the log that was appended, and start it again."""
        self.popping = []
        self.crash()


def described(draft: Draft) -> str:
    """Return a record in short."""
    if draft.topic != REVIVE_TOPIC:
        return f"copy in {draft.topic}/{draft.queue_id}"
    kinds = {"ck": "checkpoint", "ack": "ack", "bAck": "acks", "order": "batch"}
    tag = bytes(draft.properties).split(b"TAGS\x01")[1].split(b"\x02")[0].decode()
    return f"{kinds[tag]} in revive queue {draft.queue_id}"


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_traces(path: Path, tmp_path: Path, rewrite: bool) -> None:
    world = TracedWorld(tmp_path / "store")
    try:
        run_trace(path, world.run, rewrite=rewrite)
    finally:
        world.close()
