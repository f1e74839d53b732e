"""Trace files: what is compared, what is written, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketpost.testing.trace_files import TraceCommand, parse_command, run_trace

TRACE = """\
# Adds.
add 2 times=3
----
sum 6

# Says nothing.
add 1
----

add 1
----
sum 8
"""


class Adder:
    def __init__(self) -> None:
        self.sum = 0

    def __call__(self, command: TraceCommand) -> Iterator[str]:
        self.sum += int(command.args[0]) * command.option_int("times", 1)
        if self.sum % 2 == 0:
            yield f"sum {self.sum}"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "adder.txt"
    path.write_text(TRACE)
    return path


def test_a_command_has_arguments_and_options() -> None:
    assert parse_command("send a  b k=v=w") == TraceCommand("send", ["a", "b"], {"k": "v=w"})


def test_the_actual_trace_is_compared(path: Path) -> None:
    run_trace(path, Adder())
    path.write_text(TRACE.replace("sum 6", "sum 7"))
    with pytest.raises(AssertionError, match=r"(?s)-sum 7\n\+sum 6"):
        run_trace(path, Adder())


def test_the_actual_trace_can_be_written(path: Path) -> None:
    path.write_text(TRACE.replace("sum 8", "nonsense\nsum 9"))
    run_trace(path, Adder(), rewrite=True)
    assert path.read_text() == TRACE


@pytest.mark.parametrize("text", ["", "# only a comment\n", "add 1\nsum 2\n"])
def test_invalid_traces_are_refused(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises((ValueError, IndexError)):
        run_trace(path, Adder())
