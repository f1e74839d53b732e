"""The console beside ``rocketpost up``: its command line, and the pipe whose end stops it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rocketpost.cli import rocketpost
from rocketpost.console.child import ConsoleChild
from rocketpost.errors import ConfigError


class FakeProcess:
    """A process that ends when nobody holds the other end of its pipe, unless it hangs."""

    hangs = False
    error: OSError | None = None
    started: list[FakeProcess]

    def __init__(self, words: list[str], *, pass_fds: list[int]) -> None:
        if self.error is not None:
            raise self.error
        [inherited] = pass_fds
        self.words = words
        self.inherited = inherited
        self.pipe = os.dup(inherited)
        os.set_blocking(self.pipe, False)
        self.is_killed = False
        self.has_ended = False
        self.started.append(self)

    def hears_parent(self) -> bool:
        """Tell whether the other end of the pipe is open."""
        try:
            return os.read(self.pipe, 1) != b""
        except BlockingIOError:
            return True

    def kill(self) -> None:
        self.is_killed = True

    def wait(self, timeout: float | None = None) -> int:
        if not self.is_killed and (self.hangs or self.hears_parent()):
            assert timeout is not None, "it would wait for ever"
            raise subprocess.TimeoutExpired(self.words, timeout)
        self.has_ended = True
        return 0


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FakeProcess]]:
    """Processes that were started instead of real ones."""
    found: list[FakeProcess] = []
    monkeypatch.setattr(FakeProcess, "started", found, raising=False)
    monkeypatch.setattr(subprocess, "Popen", FakeProcess)
    yield found
    for process in found:
        os.close(process.pipe)


@pytest.fixture
def pipes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Pipes that the console's parent has made."""
    found: list[tuple[int, int]] = []
    make = os.pipe

    def pipe() -> tuple[int, int]:
        found.append(make())
        return found[-1]

    monkeypatch.setattr(os, "pipe", pipe)
    return found


def make_child(state: Path) -> ConsoleChild:
    return ConsoleChild(state, host="127.0.0.1", port=8088)


def test_it_is_a_console_of_this_python(started: list[FakeProcess], tmp_path: Path) -> None:
    child = make_child(tmp_path)
    child.start("127.0.0.1:9876")
    [process] = started
    program, *words = process.words[2:]
    assert process.words[:2] == [sys.executable, "-c"]
    assert "rocketpost.cli" in program
    assert words == [
        "console", "-n", "127.0.0.1:9876", "--state", str(tmp_path),
        "--host", "127.0.0.1", "--port", "8088", "--parent-fd", str(process.inherited),
    ]  # fmt: skip
    child.stop_blocking()


def test_its_options_are_those_of_the_command(started: list[FakeProcess], tmp_path: Path) -> None:
    child = make_child(tmp_path)
    child.start("127.0.0.1:9876")
    child.stop_blocking()
    command = rocketpost.commands["console"]
    words: list[str] = started[0].words[4:]
    context = command.make_context("console", words)
    assert context.params["parent_fd"] == started[0].inherited
    assert context.params["port"] == 8088


def test_it_ends_when_the_pipe_is_closed(started: list[FakeProcess], tmp_path: Path) -> None:
    child = make_child(tmp_path)
    child.start("127.0.0.1:9876")
    [process] = started
    assert process.hears_parent()
    child.stop_blocking()
    assert (process.has_ended, process.is_killed) == (True, False)
    child.stop_blocking()  # the pipe is closed once; another file may have its number now


def test_the_end_that_is_read_is_only_the_child_s(
    started: list[FakeProcess], pipes: list[tuple[int, int]], tmp_path: Path
) -> None:
    child = make_child(tmp_path)
    child.start("127.0.0.1:9876")
    [(reading, writing)] = pipes
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(reading)
    assert not os.get_inheritable(writing)
    child.stop_blocking()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(writing)


def test_a_console_that_hangs_is_killed(
    started: list[FakeProcess], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(FakeProcess, "hangs", True)
    child = make_child(tmp_path)
    child.start("127.0.0.1:9876")
    child.stop_blocking()
    assert (started[0].has_ended, started[0].is_killed) == (True, True)


def test_one_that_was_never_started_is_not_waited_for(tmp_path: Path) -> None:
    make_child(tmp_path).stop_blocking()


def test_a_console_that_cannot_be_started_leaves_no_pipe(
    started: list[FakeProcess],
    pipes: list[tuple[int, int]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(FakeProcess, "error", BlockingIOError("no more processes"))
    child = make_child(tmp_path)
    with pytest.raises(BlockingIOError, match="no more processes"):
        child.start("127.0.0.1:9876")
    child.stop_blocking()
    for end in pipes[0]:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(end)


def test_all_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    ConsoleChild.check_installed()
    installed = {"starlette": object()}
    find: Any = installed.get
    monkeypatch.setattr(importlib.util, "find_spec", find)
    with pytest.raises(ConfigError, match=r"needs jinja2, uvicorn: pip .*rocketpost\[console\]"):
        ConsoleChild.check_installed()
