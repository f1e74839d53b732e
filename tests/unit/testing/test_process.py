"""Ports that test processes give to their servers."""

from __future__ import annotations

from itertools import pairwise

import pytest

from rocketpost.server.fleet.plan import PORT_STEP
from rocketpost.testing.process import free_port

WORKERS = 16
FLEET = 8
"""Brokers of the largest fleet that a test starts at a given port, with room to spare."""


def test_no_server_of_one_worker_has_a_port_of_another_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTEST_XDIST_TESTRUNUID", "one run")
    spans = []
    for worker in range(WORKERS):
        monkeypatch.setenv("PYTEST_XDIST_WORKER", f"gw{worker}")
        ports = [free_port() for _ in range(20)]
        spans.append((min(ports) - 2, max(ports) + 1 + PORT_STEP * (FLEET - 1)))
    spans.sort()
    for (_, last), (first, _) in pairwise(spans):
        assert last < first


def test_no_port_is_given_again_soon() -> None:
    ports = [free_port() for _ in range(40)]
    assert len(set(ports)) == len(ports)
