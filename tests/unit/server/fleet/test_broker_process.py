"""The end of a broker's process is told in words."""

from __future__ import annotations

import pytest

from rocketpost.server.fleet.broker_process import describe_end


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (0, "exit code 0"),
        (2, "exit code 2"),
        (-9, "killed by SIGKILL"),
        (-99, "killed by signal 99"),
    ],
)
def test_an_exit_code_is_described(code: int, text: str) -> None:
    assert describe_end(code) == text
