from __future__ import annotations

import pytest

from rocketpost.errors import ConfigError
from rocketpost.raft.config import RaftConfig


@pytest.mark.parametrize(
    "wrong",
    [
        {"heartbeat_ticks": 0},
        {"heartbeat_ticks": 5},
        {"election_ticks_max": 10},
        {"window_bytes": 0},
        {"window_bytes": 1000, "gather_bytes": 1001},
        {"window_bytes": 1000, "spare_bytes": 1001},
    ],
)
def test_times_and_sizes_that_cannot_work_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=r"is \d+; use"):
        RaftConfig(**wrong)
    RaftConfig()
