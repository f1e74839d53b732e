"""Any mixture of pops, acks, changes, time and crashes, against a small model of what may happen.

The model knows for each message whether it is acknowledged, and else until when it is in somebody's
hands. A message must not be handed out while it is, nor after it was acknowledged; in the end,
every message that was not acknowledged is handed out.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from ..pop_world import Delivery, World

INVISIBLE = st.sampled_from([0, 10, 100, 1000])


class PopMachine(RuleBasedStateMachine):
    """The rules of the game."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.world = World(self.root / "store")
        self.acked: set[str] = set()
        self.hands: dict[str, Delivery] = {}
        self.until: dict[str, int] = {}
        self.names: set[str] = set()

    def teardown(self) -> None:
        try:
            self.world.clock.advance(100_000)
            self.world.revive()
            while deliveries := self.world.pop():
                self.take(deliveries)
            assert self.names - self.acked <= self.seen_at_end
        finally:
            self.world.close()
            shutil.rmtree(self.root)

    @property
    def seen_at_end(self) -> set[str]:
        now_ms = self.world.clock.now_ms()
        return {name for name, until_ms in self.until.items() if until_ms > now_ms}

    def take(self, deliveries: list[Delivery]) -> None:
        now_ms = self.world.clock.now_ms()
        for delivery in deliveries:
            name = delivery.name
            assert name not in self.acked
            assert self.until.get(name, 0) <= now_ms
            self.until[name] = delivery.due_ms
            self.hands[name] = delivery

    @rule(queue_id=st.integers(0, 1), count=st.integers(1, 4))
    def send(self, queue_id: int, count: int) -> None:
        for _ in range(count):
            self.names.add(self.world.send(queue_id))

    @rule(queue_id=st.integers(-1, 1), count=st.integers(1, 3), invisible_ms=INVISIBLE)
    def pop(self, queue_id: int, count: int, invisible_ms: int) -> None:
        request = self.world.request(queue_id, count_max=count, invisible_ms=invisible_ms)
        self.take(self.world.pop(request))

    @rule(count=st.integers(1, 3), invisible_ms=INVISIBLE)
    def pop_and_die_before_the_answer(self, count: int, invisible_ms: int) -> None:
        request = self.world.request(count_max=count, invisible_ms=invisible_ms)
        popped = self.world.start_pop(request)
        self.take(self.world.delivered(popped))
        self.world.crash()

    @precondition(lambda self: self.hands)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        delivery = self.hands.pop(data.draw(st.sampled_from(sorted(self.hands.items())))[0])
        is_current = self.is_current(delivery)
        self.world.ack(delivery)
        if is_current:
            self.acked.add(delivery.name)

    @precondition(lambda self: self.hands)
    @rule(data=st.data())
    def ack_and_die_before_the_answer(self, data: st.DataObject) -> None:
        delivery = self.hands.pop(data.draw(st.sampled_from(sorted(self.hands.items())))[0])
        if self.is_current(delivery):
            self.acked.add(delivery.name)
        self.world.receipts.ack(delivery.key, [delivery.offset])
        self.world.crash()

    @precondition(lambda self: self.hands)
    @rule(data=st.data(), invisible_ms=INVISIBLE)
    def change(self, data: st.DataObject, invisible_ms: int) -> None:
        name, delivery = data.draw(st.sampled_from(sorted(self.hands.items())))
        if self.is_current(delivery):
            changed = self.world.change(delivery, invisible_ms)
            self.until[name] = changed.due_ms
            self.hands[name] = changed

    @rule(ms=st.sampled_from([1, 10, 100, 1000]))
    def wait(self, ms: int) -> None:
        self.world.clock.advance(ms)

    @rule()
    def revive(self) -> None:
        self.world.revive()

    @rule()
    def revive_and_die(self) -> None:
        self.world.receipts.revive()
        self.world.crash()

    @rule()
    def save(self) -> None:
        self.world.save()

    @rule()
    def crash(self) -> None:
        self.world.crash()

    def is_current(self, delivery: Delivery) -> bool:
        """Whether the message is still in these hands: nothing has ended the delivery."""
        checkpoint = self.world.in_flight.find(delivery.key)
        return checkpoint is not None and delivery.offset in checkpoint.left


TestPopping = PopMachine.TestCase
TestPopping.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
