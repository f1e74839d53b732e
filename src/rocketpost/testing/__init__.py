"""Servers for tests: real processes or simulated machines, faults, and checks of promises.

The names are imported on first use, since pytest imports the fixtures of this package in every run.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rocketpost.testing.campaign import Campaign
    from rocketpost.testing.clock import FakeClock
    from rocketpost.testing.cluster import Cluster
    from rocketpost.testing.fault_proxy import FaultProxy
    from rocketpost.testing.ledger import Ledger, PromiseBroken
    from rocketpost.testing.link import BrokerLink
    from rocketpost.testing.process import ServerFailed, ServerProcess, free_port
    from rocketpost.testing.sim.cluster import SimulatedCluster

__all__ = [
    "BrokerLink",
    "Campaign",
    "Cluster",
    "FakeClock",
    "FaultProxy",
    "Ledger",
    "PromiseBroken",
    "ServerFailed",
    "ServerProcess",
    "SimulatedCluster",
    "free_port",
]

_HOMES: Final = {
    "BrokerLink": "link",
    "Campaign": "campaign",
    "Cluster": "cluster",
    "FakeClock": "clock",
    "FaultProxy": "fault_proxy",
    "Ledger": "ledger",
    "PromiseBroken": "ledger",
    "ServerFailed": "process",
    "ServerProcess": "process",
    "SimulatedCluster": "sim.cluster",
    "free_port": "process",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
