"""Real servers for tests: processes on free ports, and their faults."""

from rocketpost.testing.clock import FakeClock
from rocketpost.testing.cluster import Cluster
from rocketpost.testing.process import ServerFailed, ServerProcess, free_port

__all__ = ["Cluster", "FakeClock", "ServerFailed", "ServerProcess", "free_port"]
