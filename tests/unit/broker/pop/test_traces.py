"""Life stories of popped messages, as text: ``traces/*.txt``.

After each command stands what was stored and handed out, and what is in flight. Times are
milliseconds since the start of the trace. ``g`` is the group, T has two queues, and a message is
named after the order in which it was sent. Checked whatever the file says: a message that was
acknowledged is never handed out again, and all others are handed out in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rocketpost.broker.pop.changes import Change
from rocketpost.broker.pop.log import ACK_TAG, BATCH_ACK_TAG, CHECKPOINT_TAG
from rocketpost.codec.bodies.pop import decode_ack, decode_checkpoint
from rocketpost.codec.properties import decode_properties
from rocketpost.errors import Fault, StoreFull
from rocketpost.store.draft import Draft
from rocketpost.testing.trace_files import TraceCommand, run_trace

from ..pop_world import REVIVE_TOPIC, Delivery, World

TRACES = sorted((Path(__file__).parent / "traces").glob("*.txt"))


class TracedWorld(World):
    """Runs commands, and tells what follows from them."""

    def __init__(self, root: Path) -> None:
        self.lines: list[str] = []
        self.held: dict[str, Delivery] = {}
        self.first: dict[str, Delivery] = {}
        self.acked: set[str] = set()
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
        yield f"in flight at {self.clock.now_ms() - self.start_ms}: {self.state()}"

    def state(self) -> str:
        found = []
        for key in self.in_flight:
            checkpoint = self.in_flight.find(key)
            assert checkpoint is not None
            offsets = ",".join(map(str, sorted(checkpoint.left)))
            due_ms = checkpoint.due_ms - self.start_ms
            found.append(f"{key.topic}/{key.queue_id} {offsets} until {due_ms}")
        return "; ".join(found) or "nothing"

    def put(self, service: Any, change: Change) -> None:
        is_new = not any(change is each for _, each, _ in self.storing)
        super().put(service, change)
        if is_new:
            self.lines += [f"stored: {self.described(draft)}" for draft in change.drafts]

    def described(self, draft: Draft) -> str:
        properties = decode_properties(draft.properties)
        if draft.topic != REVIVE_TOPIC:
            name = properties["UNIQ_KEY"]
            return f"{name} again in {draft.topic}, {draft.reconsume_times} times"
        if properties["TAGS"] == CHECKPOINT_TAG:
            body = decode_checkpoint(draft.body)
            until = body.pt + body.it - self.start_ms
            return f"checkpoint of {body.n} from {body.t}/{body.q} {body.so}, until {until}"
        assert properties["TAGS"] in (ACK_TAG, BATCH_ACK_TAG)
        ack = decode_ack(draft.body)
        return f"ack of {ack.t}/{ack.q} {','.join(map(str, ack.offsets))}"

    # Clients.

    def do_send(self, command: TraceCommand) -> None:
        for _ in range(int(command.args[0])):
            self.send(command.option_int("queue", 0))

    def do_pop(self, command: TraceCommand) -> None:
        """Pop; with ``unstored`` without ever learning whether the checkpoint is stored."""
        request = self.request(
            count_max=command.option_int("count", 32),
            invisible_ms=command.option_int("invisible", 1000),
        )
        popped = self.start_pop(request)
        if "unstored" in command.args:
            return
        self.commit()
        got = self.delivered(popped)
        for each in got:
            assert each.name not in self.acked, f"{each.name} was acknowledged"
            self.held[each.name] = each
            self.first.setdefault(each.name, each)
        self.lines.append(f"got: {' '.join(each.name for each in got) or 'nothing'}")

    def do_ack(self, command: TraceCommand) -> None:
        for name in command.args:
            self.ack(self.held[name])
            self.acked.add(name)

    def do_ack_late(self, command: TraceCommand) -> None:
        """Acknowledge the first delivery of a message, although there was another since."""
        self.ack(self.first[command.args[0]])

    def do_change(self, command: TraceCommand) -> None:
        name = command.args[0]
        self.held[name] = super().change(self.held[name], int(command.args[1]))

    # The broker.

    def do_later(self, command: TraceCommand) -> None:
        """Let time go by, and revive what was not acknowledged."""
        self.clock.advance(int(command.args[0]))
        self.revive()

    def do_full(self, command: TraceCommand) -> None:
        self.full = command.args == ["yes"]

    def do_save(self, command: TraceCommand) -> None:
        """Save the offsets of groups, as far as they may be."""
        self.save()

    def do_crash(self, command: TraceCommand) -> None:
        """Start again with the log, and the offsets as they were last saved."""
        self.crash()


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_traces(path: Path, tmp_path: Path, rewrite: bool) -> None:
    world = TracedWorld(tmp_path / "store")
    try:
        run_trace(path, world.run, rewrite=rewrite)
        # Whatever happened: everything that is not acknowledged comes in the end.
        missing = {f"m{n + 1}" for n in range(world.sent)} - world.acked
        for _ in range(20):
            world.clock.advance(100_000)
            world.revive()
            missing -= {each.name for each in world.pop(world.request(invisible_ms=50_000))}
        assert not missing, f"{missing} are lost"
    finally:
        world.close()
