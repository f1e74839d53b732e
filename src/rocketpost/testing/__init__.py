"""Real servers for tests: processes on free ports, faults, and checks of promises."""

from rocketpost.testing.campaign import Campaign
from rocketpost.testing.clock import FakeClock
from rocketpost.testing.cluster import Cluster
from rocketpost.testing.fault_proxy import FaultProxy
from rocketpost.testing.ledger import Ledger, PromiseBroken
from rocketpost.testing.link import BrokerLink
from rocketpost.testing.process import ServerFailed, ServerProcess, free_port

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
    "free_port",
]
