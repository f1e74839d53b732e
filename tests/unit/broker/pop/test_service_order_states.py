"""Any mixture of ordered pops, acks, changes, time and crashes, against a model of a queue.

The model knows what is acknowledged, and the batch in hand with the times at which its messages may
come again. A pop gets nothing while a message of the batch is neither acknowledged nor late; else
it gets the oldest messages that are not acknowledged, in their order and without a gap. Messages
with a tag that the group does not want may be anywhere between them.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from rocketpost.broker.pop.targets import Cursor
from rocketpost.kernel.hashing import string_hash

from ..pop_world import Delivery, World

CURSOR = Cursor("T", "g", 0)
WANTED = frozenset({string_hash("A")})
INVISIBLE = st.sampled_from([0, 10, 100, 1000])


class OrderMachine(RuleBasedStateMachine):
    """The rules of the game."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.world = World(self.root / "store")
        self.sent: list[str] = []
        self.acked: set[str] = set()
        self.batch: dict[str, Delivery] = {}
        self.until: dict[str, int] = {}

    def teardown(self) -> None:
        try:
            self.world.clock.advance(100_000)
            while deliveries := self.take(32, 1000):
                for delivery in deliveries:
                    self.finish(delivery)
            assert self.acked == set(self.sent)
            self.world.ordered.clean()  # a file may tell of a batch that is over
            assert len(self.world.batches) == 0
        finally:
            self.world.close()
            shutil.rmtree(self.root)

    @property
    def is_blocked(self) -> bool:
        now_ms = self.world.clock.now_ms()
        return any(self.until[name] > now_ms for name in self.batch if name not in self.acked)

    def take(self, count: int, invisible_ms: int, *, dies: bool = False) -> list[Delivery]:
        request = self.world.request(
            0, count_max=count, invisible_ms=invisible_ms, in_order=True, tags=WANTED
        )
        popped = self.world.start_pop(request)
        deliveries = self.world.delivered(popped)
        if dies:
            self.world.crash()
        else:
            self.world.commit()
        if self.is_blocked:
            assert deliveries == []
            return []
        left = [name for name in self.sent if name not in self.acked]
        got = [delivery.name for delivery in deliveries]
        assert got == left[: len(got)]
        assert len(got) == min(count, len(left))
        if deliveries:
            self.batch = {delivery.name: delivery for delivery in deliveries}
            self.until = {delivery.name: delivery.due_ms for delivery in deliveries}
        return deliveries

    def finish(self, delivery: Delivery, *, dies: bool = False) -> None:
        self.world.ordered.ack(CURSOR, delivery.key.pop_ms, delivery.offset)
        if dies:
            self.world.crash()
        else:
            self.world.commit()
        self.acked.add(delivery.name)

    @rule(tags=st.lists(st.sampled_from("AAB"), min_size=1, max_size=4))
    def send(self, tags: list[str]) -> None:
        for tag in tags:
            name = self.world.send(0, tag=tag)
            if tag == "A":
                self.sent.append(name)

    @rule(count=st.integers(1, 5), invisible_ms=INVISIBLE, dies=st.booleans())
    def pop(self, count: int, invisible_ms: int, dies: bool) -> None:
        self.take(count, invisible_ms, dies=dies)

    @precondition(lambda self: self.batch)
    @rule(data=st.data(), dies=st.booleans())
    def ack(self, data: st.DataObject, dies: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.batch)))
        self.finish(self.batch[name], dies=dies)

    @precondition(lambda self: self.batch.keys() - self.acked)
    @rule(data=st.data(), invisible_ms=INVISIBLE, dies=st.booleans())
    def change(self, data: st.DataObject, invisible_ms: int, dies: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.batch.keys() - self.acked)))
        delivery = self.batch[name]
        self.world.ordered.change_invisible_time(
            CURSOR, delivery.key.pop_ms, delivery.offset, invisible_ms
        )
        self.until[name] = self.world.clock.now_ms() + invisible_ms
        if dies:
            self.world.crash()
        else:
            self.world.commit()

    @rule(ms=st.sampled_from([1, 10, 100, 1000]))
    def wait(self, ms: int) -> None:
        self.world.clock.advance(ms)

    @rule()
    def save(self) -> None:
        self.world.save()

    @rule()
    def save_batches(self) -> None:
        self.world.save_batches()

    @rule()
    def crash(self) -> None:
        self.world.crash()


TestPoppingInOrder = OrderMachine.TestCase
TestPoppingInOrder.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
