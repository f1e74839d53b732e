from __future__ import annotations

from collections.abc import Callable

import pytest

from client.network import FakeNetwork
from rocketpost.client import session


@pytest.fixture
def use_network(monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeNetwork], FakeNetwork]:
    """Let every session of the test speak over a network in memory."""

    def use(network: FakeNetwork) -> FakeNetwork:
        monkeypatch.setattr(session, "Connector", network.connector)
        return network

    return use
