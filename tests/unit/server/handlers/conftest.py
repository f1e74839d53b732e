from __future__ import annotations

import pytest

from rocketpost.testing.clock import FakeClock

from .world import World


@pytest.fixture
def world() -> World:
    return World(FakeClock())
