"""The timer against a model: any order of sends, recalls, ticks, clock jumps, saves and stops."""

from __future__ import annotations

import random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from .world import World

DELAYS_MS = st.sampled_from([1, 2, 9, 10, 11, 35, 120, 390, 410, 900, 3000])
SEEDS = st.integers(min_value=0, max_value=2**32)


class TimerMachine(RuleBasedStateMachine):
    """One broker's timer; :meth:`World.judge` knows what was promised."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.world.open()

    @rule(delay_ms=DELAYS_MS, count=st.integers(min_value=1, max_value=4), seed=SEEDS)
    def send(self, delay_ms: int, count: int, seed: int) -> None:
        for _ in range(count):
            self.world.send(random.Random(seed), delay_ms)

    @rule(at=st.integers(min_value=0, max_value=10_000))
    def recall(self, at: int) -> None:
        waiting = [timed for timed in self.world.sent.values() if timed.handle]
        if waiting:
            self.world.recall(waiting[at % len(waiting)])

    @rule(by_ms=st.sampled_from([0, 1, 7, 10, 50, 400, 9000]), steps=st.sampled_from([1, 2, 500]))
    def tick(self, by_ms: int, steps: int) -> None:
        self.world.clock.ms += by_ms
        self.world.serve(None, steps)

    @rule(by_ms=st.sampled_from([1, 10, 70, 500]))
    def set_clock_back(self, by_ms: int) -> None:
        self.world.clock.ms -= by_ms

    @rule()
    def save(self) -> None:
        self.world.save()

    @rule()
    def stop(self) -> None:
        self.world.close()
        self.world.open()

    @rule()
    def kill(self) -> None:
        self.world.kill()
        self.world.open()

    @rule(seed=SEEDS)
    def lose_power(self, seed: int) -> None:
        self.world.lose_power(random.Random(seed))
        self.world.open()

    @invariant()
    def what_was_promised_holds(self) -> None:
        self.world.judge(is_over=False)

    def teardown(self) -> None:
        self.world.finish()
        self.world.judge(is_over=True)


TestTimer = TimerMachine.TestCase
TestTimer.settings = settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
