"""A network that loses, delays, repeats and reorders messages between nodes.

Each direction of a link is blocked and allowed on its own, so that partitions may be one-way. A
message that was sent before a link was blocked still arrives: it was under way.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from rocketpost.testing.sim.scheduler import Scheduler

N = TypeVar("N", bound=Hashable)
M = TypeVar("M")


@dataclass(slots=True, kw_only=True)
class NetworkFaults:
    """Shares of messages that a network mistreats, and how long messages take."""

    drop: float = 0.0
    duplicate: float = 0.0
    slow: float = 0.0
    """Share of messages that take up to ``slow_ms``, and so arrive after later ones."""

    delay_ms: int = 5
    slow_ms: int = 500


class MessageNetwork(Generic[N, M]):
    """Delivers messages by ``deliver(source, target, message)``; all chance is ``rng``'s."""

    def __init__(
        self,
        scheduler: Scheduler,
        rng: random.Random,
        deliver: Callable[[N, N, M], None],
    ) -> None:
        self.faults = NetworkFaults()
        self.blocked: set[tuple[N, N]] = set()
        """Directions, as (source, target), in which messages are lost."""

        self._scheduler = scheduler
        self._random = rng.random
        self._deliver = deliver

    def send(self, source: N, target: N, message: M) -> None:
        """Take a message, and deliver it later, or twice, or not at all."""
        faults = self.faults
        chance = self._random
        if (source, target) in self.blocked or (faults.drop and chance() < faults.drop):
            return
        self._plan(source, target, message)
        if faults.duplicate and chance() < faults.duplicate:
            self._plan(source, target, message)

    def _plan(self, source: N, target: N, message: M) -> None:
        faults = self.faults
        is_slow = faults.slow and self._random() < faults.slow
        limit = faults.slow_ms if is_slow else faults.delay_ms
        delay_ms = 1 + int(self._random() * limit)
        self._scheduler.after(delay_ms, self._deliver, source, target, message)

    def isolate(self, node: N, others: Iterable[N]) -> None:
        """Block both directions between a node and all others."""
        for other in others:
            if other != node:
                self.blocked |= {(node, other), (other, node)}

    def split(self, one: Iterable[N], other: Iterable[N]) -> None:
        """Block both directions between two sets of nodes."""
        right = list(other)
        for node in one:
            self.isolate(node, right)

    def heal(self) -> None:
        """Allow all directions, and mistreat no message from now on."""
        self.blocked.clear()
        self.faults = NetworkFaults()
