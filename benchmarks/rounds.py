"""Interleaved rounds: each workload goes to every server in turn, over and over."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from closed_loop import RequestRefused
from servers import Target, cpu_seconds
from workloads import Workload

Costs = dict[tuple[str, str], list[float]]
"""CPU microseconds per message of every round, by workload and server."""


def measure(
    targets: Sequence[Target], rows: Sequence[Workload], *, rounds: int, scale: float = 1.0
) -> Costs:
    """Return what the servers spend per message; a round before the first is discarded."""
    requests = {row.name: row.requests() for row in rows}
    costs: Costs = {}
    for number in range(rounds + 1):
        for row in rows:
            for target in targets if number % 2 else reversed(targets):
                if target.name == "echo" and not row.has_echo:
                    continue
                before = cpu_seconds(target.pid)
                try:
                    run = row.run(target.port, requests[row.name], scale=scale)
                except RequestRefused as refused:
                    text = f"{target.name} refused a request of {row.name}: {refused}"
                    raise SystemExit(text) from None
                spent = (cpu_seconds(target.pid) - before) * 1e6
                if number:
                    messages = run.requests * row.per_request
                    costs.setdefault((row.name, target.name), []).append(spent / messages)
        print(f"round {number} of {rounds}", file=sys.stderr, flush=True)
    return costs
