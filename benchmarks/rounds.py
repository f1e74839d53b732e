"""Interleaved rounds: each workload goes to every server in turn, over and over."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from closed_loop import RequestRefused, Requests
from servers import Target, cpu_seconds
from workloads import Workload


@dataclass(slots=True)
class Measurement:
    """The CPU that servers spent in rounds of workloads."""

    costs: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    """CPU microseconds per message of every round, by workload and server."""
    between: dict[str, float] = field(default_factory=dict)
    """CPU microseconds per message that a server spent between its turns, idle work included."""
    loader: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    """CPU microseconds per message of the load generator, by workload and server."""

    def least(self, row: str, target: str) -> float:
        """Return the cost of the cheapest round."""
        return min(self.costs[row, target])

    def median(self, row: str, target: str) -> float:
        """Return the median cost of a round."""
        return statistics.median(self.costs[row, target])

    def ratios(self, row: str, target: str, base: str) -> list[float]:
        """Return the ratio of two servers in every round."""
        pairs = zip(self.costs[row, target], self.costs[row, base], strict=True)
        return [mine / theirs for mine, theirs in pairs]


def measure(
    targets: Sequence[Target], rows: Sequence[Workload], *, rounds: int, scale: float = 1.0
) -> Measurement:
    """Return what the servers spend per message; a round before the first is discarded."""
    requests = {row.name: row.requests() for row in rows}
    found = Measurement()
    run_round(targets, rows, requests, scale=scale)
    began = {target.name: cpu_seconds(target.pid) for target in targets}
    spent = dict.fromkeys(began, 0.0)
    messages = dict.fromkeys(began, 0)
    for number in range(1, rounds + 1):
        order = targets if number % 2 else targets[::-1]
        for row, target, cpu, loader_cpu, count in run_round(order, rows, requests, scale=scale):
            found.costs.setdefault((row, target), []).append(cpu / count * 1e6)
            found.loader.setdefault((row, target), []).append(loader_cpu / count * 1e6)
            spent[target] += cpu
            messages[target] += count
        print(f"  round {number} of {rounds}", file=sys.stderr, flush=True)
    for target in targets:
        late = cpu_seconds(target.pid) - began[target.name] - spent[target.name]
        found.between[target.name] = late / max(1, messages[target.name]) * 1e6
    return found


def run_round(
    targets: Sequence[Target],
    rows: Sequence[Workload],
    requests: dict[str, Requests],
    *,
    scale: float = 1.0,
) -> list[tuple[str, str, float, float, int]]:
    """Run every workload once against every server.

    Returns:
        Workload, server, CPU seconds of the server and of the loader, and messages of each turn.
    """
    turns = []
    for row in rows:
        for target in targets:
            if target.is_echo and not row.has_echo:
                continue
            loader, before = time.process_time(), cpu_seconds(target.pid)
            try:
                run = row.run(target.port, requests[row.name], scale=scale)
            except RequestRefused as refused:
                text = f"{target.name} refused a request of {row.name}: {refused}"
                raise SystemExit(text) from None
            cpu, loader = cpu_seconds(target.pid) - before, time.process_time() - loader
            turns.append((row.name, target.name, cpu, loader, run.requests * row.per_request))
    return turns
