"""Life stories of transactions, as text: ``traces/*.txt``.

After each command stands what was stored, what was asked or refused, and which transactions are
pending: ``a@0`` is the one of message a, whose newest half has queue offset 0. Checked after every
command, whatever the file says: a message is committed once at most, and is pending, committed,
discarded or named by an op message, but never lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rocketpost.broker.delivery import Wait
from rocketpost.broker.transaction.checks import Question
from rocketpost.broker.transaction.log import checks_of, first_offset
from rocketpost.broker.transaction.service import TRANSACTION_GROUP, Rules
from rocketpost.codec.record import Record
from rocketpost.errors import Fault, StoreFull
from rocketpost.model.names import CHECK_MAX_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from rocketpost.store.draft import Appended, Draft
from rocketpost.testing.trace_files import TraceCommand, run_trace

from ..transaction_world import COMMIT, ROLLBACK, Sent, World

TRACES = sorted((Path(__file__).parent / "traces").glob("*.txt"))
ENDS = {"commit": COMMIT, "rollback": ROLLBACK}


class TracedWorld(World):
    """Runs commands, and tells what follows from them."""

    def __init__(self, root: Path) -> None:
        self.lines: list[str] = []
        self.sent: dict[str, Sent] = {}
        self.asked: dict[str, Sent] = {}
        super().__init__(root, rules=Rules(check_max=2))

    def run(self, command: TraceCommand) -> Iterator[str]:
        action: Callable[[TraceCommand], None] = getattr(self, f"do_{command.name}")
        self.lines = []
        try:
            action(command)
        except (Fault, StoreFull) as error:
            self.lines.append(f"refused: {type(error).__name__}: {error}")
        yield from self.lines
        yield f"pending: {self.state()}"
        self.check()

    def state(self) -> str:
        now_ms = self.clock.now_ms()
        halves = sorted(self.transactions.table, key=lambda half: half.offset)
        return ", ".join(
            f"{half.identity.unique_key}@{half.offset}"
            + (f" {half.ending.value}" if half.ending else f" due in {half.due_ms - now_ms} ms")
            for half in halves
        ) or "nothing"  # fmt: skip

    def check(self) -> None:
        committed = self.names()
        assert len(committed) == len(set(committed)), committed
        over = {half.properties["UNIQ_KEY"] for half in self.halves()} - set(self.pending)
        named = self.done() | set(self.transactions.ops._offsets)
        for half in self.halves():
            name = half.properties["UNIQ_KEY"]
            is_known = name in committed or name in self.discarded() or half.queue_offset in named
            assert name not in over or is_known, f"{name} is lost"

    # What is told.

    def put(self, drafts: list[Draft]) -> list[Appended]:
        stored = super().put(drafts)
        for appended in stored:
            record = self.store.record_at(appended.position)
            assert record is not None
            self.lines.append(f"stored: {described(record)}")
        return stored

    def ask(self, questions: list[Question]) -> None:
        for question in questions:
            self.asked[question.unique_key] = Sent(
                question.unique_key, question.position, question.offset
            )
            self.lines.append(f"asked: {question.group} about {question.unique_key}")

    # Producers.

    def do_send(self, command: TraceCommand) -> None:
        immunity = command.options.get("immunity")
        more = {"CHECK_IMMUNITY_TIME_IN_SECONDS": immunity} if immunity else {}
        for name in command.args:
            self.sent[name] = self.send(name, **more)

    def do_end(self, command: TraceCommand) -> None:
        """End a transaction.

        With ``asked`` in answer to a question; with ``begin`` only decided, and not stored yet.
        """
        name, kind = command.args[0], ENDS[command.args[1]]
        how = command.args[2:]
        is_answer = "asked" in how
        sent = self.asked[name] if is_answer else self.sent[name]
        ending = self.begin(sent, kind, asked=is_answer)
        if ending is None:
            self.lines.append("ended like that before")
        elif "begin" not in how:
            stored: list[Appended] = []
            try:
                stored = self.put(ending.drafts)
            finally:
                self.transactions.note_stored(ending, stored)

    def do_unknown(self, command: TraceCommand) -> None:
        self.transactions.note_unknown(self.header(self.asked[command.args[0]], 0, asked=True))

    def do_producers(self, command: TraceCommand) -> None:
        self.producers = set(command.args)
        for group in command.args:
            self.checks.note_producer(group)

    def do_resume(self, command: TraceCommand) -> None:
        [record] = [
            each
            for each in self.records(CHECK_MAX_TOPIC)
            if each.properties["UNIQ_KEY"] == command.args[0]
        ]
        self.put([self.transactions.resume(record.position)])

    # The broker.

    def do_later(self, command: TraceCommand) -> None:
        """Let time go by, and do what is due."""
        self.ask(self.later(int(command.args[0])))

    def do_wait(self, command: TraceCommand) -> None:
        """Let the time go by that the broker would wait, and do what is due."""
        step = self.checks.next()
        assert isinstance(step, Wait)
        self.lines.append(f"waited: {step.ms} ms" if step.ms is not None else "nothing to wait for")
        self.ask(self.later(step.ms or 0))

    def do_room(self, command: TraceCommand) -> None:
        """Let the store take so many drafts at once; ``all`` is the normal state."""
        self.room = None if command.args == ["all"] else int(command.args[0])

    def do_save(self, command: TraceCommand) -> None:
        self.save()
        for topic, name in ((HALF_TOPIC, "half"), (OP_HALF_TOPIC, "op")):
            self.lines.append(
                f"saved: {name} queue from {self.offsets.query(topic, TRANSACTION_GROUP, 0)}"
            )

    def do_crash(self, command: TraceCommand) -> None:
        """Kill the broker, start it again and let it look for commits that a crash hid."""
        self.crash()
        self.lines.append(f"read: {self.state()}")
        while self.transactions.look_up_commits(1):
            pass

    def do_move(self, command: TraceCommand) -> None:
        """Store all halves again, as for those in a segment that is about to be deleted."""
        end = self.store.end_position
        while self.checks.is_needed_before(end):
            work = self.checks.move_halves_before(end)
            assert work is not None
            self.ask(self.do(work))


def described(record: Record) -> str:
    """Return a record in short."""
    name, at = record.properties["UNIQ_KEY"], record.queue_offset
    if record.topic == OP_HALF_TOPIC:
        return f"op message, done: {bytes(record.body).decode()}"
    if record.topic == CHECK_MAX_TOPIC:
        return f"discarded {name}"
    if record.topic == HALF_TOPIC:
        checks, first = checks_of(record.properties), first_offset(record, record.properties)
        again = f", again of {first}" if first != at else ""
        return f"half {name}@{at}{again}" + (f", checks {checks}" if checks else "")
    return f"message {name} in {record.topic}/{record.queue_id} at {at}"


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_traces(path: Path, tmp_path: Path, rewrite: bool) -> None:
    world = TracedWorld(tmp_path / "store")
    try:
        run_trace(path, world.run, rewrite=rewrite)
    finally:
        world.close()
