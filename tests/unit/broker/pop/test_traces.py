"""The lives of popped messages, change by change, as text: ``traces/*.txt``.

A change is appended when a command asks for it and settles with ``commit`` or ``fail``; until then
nothing is handed out or confirmed. After each command come the appended records, the messages
handed out, refusals, and the state: the time, the group's offset in each queue, the checkpoints in
flight, and the watermark of each revive queue. ``0:3+4 until 1000`` is a checkpoint of the offsets
3 and 4 of queue 0 that falls due at 1000; ``~`` marks messages whose end is being stored, and
``retry`` a queue of the retry topic. Times are milliseconds since the start of the trace.

Checked after every command, whatever the file says: the invariants of ``broker.pop``. Checked at
the end: a message whose acknowledgement is stored is never handed out again, and all others are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rocketpost.broker.pop.changes import Change
from rocketpost.broker.pop.log import ACK_TAG, BATCH_ACK_TAG, CHECKPOINT_TAG
from rocketpost.broker.pop.service import PopResult
from rocketpost.broker.pop.targets import Cursor, PopRequest
from rocketpost.codec.bodies.pop import decode_ack, decode_checkpoint
from rocketpost.codec.bodies.pop_order import decode_order_record
from rocketpost.codec.properties import decode_properties
from rocketpost.errors import Fault, StoreFull
from rocketpost.store.draft import Draft
from rocketpost.testing.trace_files import TraceCommand, run_trace

from ..pop_world import REVIVE_TOPIC, Delivery, World

TRACES = sorted((Path(__file__).parent / "traces").glob("*.txt"))


class TracedWorld(World):
    """Runs commands, and describes their effects."""

    def __init__(self, root: Path) -> None:
        self.lines: list[str] = []
        self.names: set[str] = set()
        self.popping: list[PopResult] = []
        self.held: dict[str, Delivery] = {}
        self.first: dict[str, Delivery] = {}
        self.acks: list[tuple[str, Change]] = []
        self.acked: set[str] = set()
        self.in_order = False
        super().__init__(root)
        self.start_ms = self.clock.now_ms()

    def run(self, command: TraceCommand) -> Iterator[str]:
        action: Callable[[TraceCommand], None] = getattr(self, f"do_{command.name}")
        self.lines = []
        try:
            action(command)
        except (Fault, StoreFull) as error:
            self.lines.append(f"refused: {type(error).__name__}: {error}")
        yield from self.lines
        yield f"at {self.clock.now_ms() - self.start_ms}: {self.state()}"
        self.in_flight.check()
        self.acked |= {name for name, change in self.acks if change.is_stored}

    def state(self) -> str:
        offsets = [max(0, self.offsets.query("T", "g", queue_id)) for queue_id in range(2)]
        flights = []
        for key in sorted(self.in_flight):
            checkpoint = self.in_flight.find(key)
            assert checkpoint is not None
            marks = dict.fromkeys(checkpoint.left, "")
            marks |= dict.fromkeys(checkpoint.closing, "~")
            where = "" if key.topic == "T" else "retry "
            taken = "+".join(f"{offset}{marks[offset]}" for offset in sorted(marks))
            until_ms = checkpoint.due_ms - self.start_ms
            flights.append(f"{where}{key.queue_id}:{taken} until {until_ms}")
        batches = [
            f"batch {cursor.queue_id}:" + "+".join(map(str, batch.left))
            for cursor, batch in self.batches
        ]
        watermark = [self.watermark.offset(queue) for queue in range(2)]
        in_flight = ", ".join([*flights, *batches]) or "nothing"
        return f"offsets {offsets}, in flight {in_flight}, watermark {watermark}"

    # Effects.

    def put(self, service: Any, change: Change) -> None:
        drafts = list(change.drafts)
        before = len(self.storing)
        super().put(service, change)
        if len(self.storing) > before:
            self.lines += [f"appended: {self.describe(draft)}" for draft in drafts]

    def commit(self, count: int | None = None) -> None:
        super().commit(count)
        self.hand_out()

    def hand_out(self) -> None:
        for popped in self.popping:
            parts = [part for part in popped.parts if part.change.is_stored]
            for delivery in self.delivered(popped._replace(parts=parts)):
                name, times = delivery.name, delivery.record.reconsume_times
                assert name not in self.acked, f"{name} was acknowledged"
                self.held[name] = delivery
                self.first.setdefault(name, delivery)
                again = f", delivery {times + 1}" if times else ""
                self.lines.append(f"handed out: {name}{again}")
        self.popping = []

    def describe(self, draft: Draft) -> str:
        """Return a record in short."""
        properties = decode_properties(draft.properties)
        if draft.topic != REVIVE_TOPIC:
            name, times = properties["UNIQ_KEY"], draft.reconsume_times
            return f"copy of {name} in {draft.topic}/{draft.queue_id}, delivery {times + 1}"
        where = f"in revive queue {draft.queue_id}"
        tag = properties["TAGS"]
        if tag == CHECKPOINT_TAG:
            body = decode_checkpoint(draft.body)
            until_ms = body.pt + body.it - self.start_ms
            return (
                f"checkpoint of {body.n} from {body.t}/{body.q} {body.so} until {until_ms} {where}"
            )
        if tag in (ACK_TAG, BATCH_ACK_TAG):
            ack = decode_ack(draft.body)
            return f"ack of {ack.t}/{ack.q} {'+'.join(map(str, ack.offsets))} {where}"
        batch = decode_order_record(draft.body)
        return f"batch of {batch.t}/{batch.q} at {batch.n} {where}"

    # Consumers.

    def do_send(self, command: TraceCommand) -> None:
        for name in command.args:
            self.send(command.option_int("queue", 0), name=name)
            self.names.add(name)

    def do_pop(self, command: TraceCommand) -> None:
        """Pop; ``order`` pops queue 0 in order."""
        in_order = self.in_order = "order" in command.args
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
            delivery = self.held[name]
            if command.options.get("order"):
                change = self.ordered.ack(
                    Cursor(*delivery.key[:3]), delivery.key.pop_ms, delivery.offset
                )
            else:
                change = self.receipts.ack(delivery.key, [delivery.offset])
            if change is None:
                self.lines.append(f"{name} needs no ack")
            else:
                self.acks.append((name, change))

    def do_ack_late(self, command: TraceCommand) -> None:
        """Acknowledge the first delivery of a message that has been redelivered since."""
        [name] = command.args
        delivery = self.first[name]
        if self.receipts.ack(delivery.key, [delivery.offset]) is None:
            self.lines.append(f"the first delivery of {name} needs no ack")

    def do_change(self, command: TraceCommand) -> None:
        [name] = command.args
        delivery = self.held[name]
        changed = self.receipts.change_invisible_time(
            delivery.key, delivery.offset, command.option_int("invisible", 1000)
        )
        key = delivery.key._replace(start_offset=delivery.offset, pop_ms=changed.pop_ms)
        self.held[name] = delivery._replace(key=key)

    def do_reset(self, command: TraceCommand) -> None:
        self.offsets.reset("T", "g", command.option_int("queue", 0), int(command.args[0]))

    # The broker.

    def do_commit(self, command: TraceCommand) -> None:
        """Store the appended records, or only the first ones of each change."""
        self.commit(int(command.args[0]) if command.args else None)

    def do_fail(self, command: TraceCommand) -> None:
        """Lose the appended records."""
        self.fail()
        self.hand_out()

    def do_full(self, command: TraceCommand) -> None:
        self.full = command.args == ["yes"]

    def do_later(self, command: TraceCommand) -> None:
        """Let time pass, and begin to redeliver the messages that are due."""
        self.clock.advance(int(command.args[0]))
        self.receipts.revive()

    def do_save(self, command: TraceCommand) -> None:
        self.save()
        self.save_batches()

    def do_crash(self, command: TraceCommand) -> None:
        """Kill the broker with everything in the log that was appended, and start it again."""
        self.popping = []
        self.crash()


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_traces(path: Path, tmp_path: Path, rewrite: bool) -> None:
    world = TracedWorld(tmp_path / "store")
    try:
        run_trace(path, world.run, rewrite=rewrite)
        world.full = False
        world.commit()
        missing = world.names - world.acked
        for _ in range(20):
            world.clock.advance(100_000)
            world.revive()
            queue_id = 0 if world.in_order else -1
            request = world.request(queue_id, invisible_ms=50_000, in_order=world.in_order)
            got = {each.name for each in world.pop(request)}
            assert not got & world.acked, "acknowledged messages were handed out again"
            missing -= got
        assert not missing, f"{missing} are lost"
    finally:
        world.close()
