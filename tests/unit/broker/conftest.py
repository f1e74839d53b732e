from __future__ import annotations

import pytest

from rocketpost.testing.clock import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()
