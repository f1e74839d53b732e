from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketpost.server.service_manager import ServiceManager
from rocketpost.testing.waiting import settle


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    """The socket on which systemd would listen."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.setblocking(False)
        yield listener


def received(listener: socket.socket) -> list[str]:
    found = []
    while True:
        try:
            found.append(listener.recv(4096).decode())
        except BlockingIOError:
            return found


def test_systemd_is_told_when_requests_are_served_and_when_it_stops(
    systemd: socket.socket,
) -> None:
    environment = {"NOTIFY_SOCKET": systemd.getsockname(), "HOME": "/"}
    manager = ServiceManager(environment)
    manager.ready("boot success\nof two lines")
    manager.stopping()
    assert received(systemd) == [
        "READY=1\nSTATUS=boot success of two lines",
        "STOPPING=1\nSTATUS=stopping",
    ]
    assert environment == {"HOME": "/"}  # child processes do not speak for this one


def test_an_abstract_socket() -> None:
    name = f"rocketpost-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(f"\0{name}")
        ServiceManager({"NOTIFY_SOCKET": f"@{name}"}).stopping()
        assert listener.recv(100).startswith(b"STOPPING=1")


async def test_the_event_loop_sends_signs_of_life(systemd: socket.socket) -> None:
    manager = ServiceManager({"NOTIFY_SOCKET": systemd.getsockname(), "WATCHDOG_USEC": "30000000"})
    assert manager.alive_seconds == 15
    task = asyncio.ensure_future(manager.keep_alive())
    await settle()
    assert received(systemd) == ["WATCHDOG=1"]
    task.cancel()


async def test_without_systemd_nothing_is_sent() -> None:
    manager = ServiceManager({})
    manager.ready("x")
    await manager.keep_alive()  # returns at once


def test_the_watchdog_of_another_process_is_not_ours() -> None:
    assert ServiceManager({"WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"}).alive_seconds == 0


def test_a_socket_that_is_gone_does_no_harm(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "gone")}).ready("x")
    assert "systemd was not told" in caplog.text
