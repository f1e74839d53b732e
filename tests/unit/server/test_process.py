"""A server process starts, serves and stops in order, whatever happens in between."""

from __future__ import annotations

import asyncio
import logging
import os
import signal

import pytest

from rocketpost.server import process
from rocketpost.server.logs.lines import OneLineFormatter
from rocketpost.testing.waiting import settle


class Fake:
    """A server that notes what is done to it, and can be signalled or fail at will."""

    def __init__(self, *, signal_in_start: bool = False, failure: str | None = None) -> None:
        self.calls: list[str] = []
        self._signal_in_start = signal_in_start
        self._failure = failure

    async def start(self) -> None:
        self.calls.append("start")
        if self._signal_in_start:
            os.kill(os.getpid(), signal.SIGTERM)
            await settle()  # the loop sees the signal

    async def stop(self) -> None:
        self.calls.append("stop")

    async def wait_failed(self) -> str:
        if self._failure is None:
            await asyncio.Event().wait()
        return self._failure or ""


@pytest.fixture(autouse=True)
def unfrozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the collector of the test process as it is."""
    monkeypatch.setattr(process.gc, "freeze", lambda: None)
    monkeypatch.setattr(process.gc, "set_threshold", lambda *_: None)


def ready_then_signal(_: Fake) -> str:
    os.kill(os.getpid(), signal.SIGINT)
    return "ready"


def test_a_clean_stop_says_so(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    server = Fake()
    with caplog.at_level(logging.INFO, logger=process.__name__):
        assert asyncio.run(process._run(lambda: server, ready_then_signal)) == 0
    assert server.calls == ["start", "stop"]
    assert capsys.readouterr().out == "ready\n"
    assert caplog.messages[-1] == "stopped: clean=true"


def test_a_signal_during_the_start_stops_without_a_welcome(
    capsys: pytest.CaptureFixture[str],
) -> None:
    server = Fake(signal_in_start=True)
    assert asyncio.run(process._run(lambda: server, lambda _: "ready")) == 0
    assert server.calls == ["start", "stop"]
    assert capsys.readouterr().out == ""


def test_a_failure_is_distinguished_from_a_stop(caplog: pytest.LogCaptureFixture) -> None:
    server = Fake(failure="the cleaner ended")
    assert asyncio.run(process._run(lambda: server, lambda _: "ready")) == 1
    assert server.calls == ["start", "stop"]
    assert "server stopped: reason=the cleaner ended" in caplog.messages
    assert "stopped: clean=true" not in caplog.messages


def test_a_server_that_cannot_say_that_it_is_ready_is_stopped() -> None:
    def broken_pipe(_: Fake) -> str:
        raise BrokenPipeError

    server = Fake()
    with pytest.raises(BrokenPipeError):
        asyncio.run(process._run(lambda: server, broken_pipe))
    assert server.calls == ["start", "stop"]


def test_a_server_stops_when_its_parent_is_gone(caplog: pytest.LogCaptureFixture) -> None:
    server = Fake()
    reader, writer = os.pipe()

    def ready(_: Fake) -> str:
        os.close(writer)
        return "ready"

    with caplog.at_level(logging.INFO, logger=process.__name__):
        assert asyncio.run(process._run(lambda: server, ready, reader)) == 0
    os.close(reader)
    assert server.calls == ["start", "stop"]


def test_every_line_of_a_labelled_log_has_the_label() -> None:
    formatter = OneLineFormatter("%(levelname)s %(message)s", prefix="[broker-a] ")
    try:
        raise ValueError("bad")
    except ValueError as error:
        caught = (ValueError, error, error.__traceback__)
    record = logging.LogRecord("a", logging.ERROR, "a.py", 1, "it failed", None, caught)
    lines = formatter.format(record).splitlines()
    assert len(lines) > 2
    assert lines[0] == "[broker-a] ERROR it failed"
    assert all(line.startswith("[broker-a] ") for line in lines)
