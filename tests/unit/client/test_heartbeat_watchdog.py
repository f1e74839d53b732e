from __future__ import annotations

import asyncio
import logging
import threading
import time

import pytest

from client.brokers import network_of
from client.network import Answer, FakeNetwork
from rocketpost.client import heartbeat_watchdog as watchdog_module
from rocketpost.client.config import ClientConfig
from rocketpost.client.heartbeat_watchdog import HeartbeatWatchdog
from rocketpost.client.session import Session
from rocketpost.codec.codes import RequestCode
from rocketpost.testing.waiting import until

A = "a:1"


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> FakeNetwork:
    network = network_of({}, {A: lambda command: Answer()})
    monkeypatch.setattr(watchdog_module, "Connector", network.connector)
    return network


class Counting(HeartbeatWatchdog):
    """Counts how often it looked at the loop."""

    looks = 0

    async def _rest(self) -> None:
        await super()._rest()
        self.looks += 1


class Expecting(logging.Handler):
    """Knows when a text is logged, from whatever thread."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text
        self.logged = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if self._text in record.getMessage():
            self.logged.set()


def a_handler_that_blocks(released: threading.Event) -> None:
    released.wait(30)


async def test_heartbeats_continue_while_the_loop_is_blocked(
    network: FakeNetwork, caplog: pytest.LogCaptureFixture
) -> None:
    enough = threading.Event()

    def serve(command: object) -> Answer:
        if len(network.sent(RequestCode.HEART_BEAT)) >= 3:
            enough.set()
        return Answer()

    network.servers[A] = serve
    session = Session(ClientConfig(name_servers="ns:1", heartbeat_seconds=0.02))
    session.heartbeat, session.heartbeat_sent = ([A], b"beat"), time.monotonic()
    watchdog = Counting(session, stall_seconds=0.02)
    moving = asyncio.ensure_future(watchdog.keep_moving())
    await asyncio.sleep(0)
    a_handler_that_blocks(enough)
    watchdog.looks = 0
    assert enough.is_set()
    assert {command.body for command in network.sent(RequestCode.HEART_BEAT)} == {b"beat"}
    assert "the event loop is blocked" in caplog.text
    assert "a_handler_that_blocks" in caplog.text
    session.heartbeat_sent = time.monotonic() + 1.0  # the loop's own heartbeat
    await until(lambda: watchdog.looks > 2)
    count = len(network.sent(RequestCode.HEART_BEAT))
    watchdog.looks = 0
    await until(lambda: watchdog.looks > 2)
    assert len(network.sent(RequestCode.HEART_BEAT)) == count
    moving.cancel()
    await watchdog.stop()


async def test_a_broker_that_cannot_be_reached_ends_nothing(network: FakeNetwork) -> None:
    session = Session(ClientConfig(name_servers="ns:1", heartbeat_seconds=0.01))
    session.heartbeat = ["gone:1"], b""
    failure = Expecting("heartbeat failed: broker=gone:1")
    watchdog_module.logger.addHandler(failure)
    watchdog = HeartbeatWatchdog(session, stall_seconds=0.01)
    assert failure.logged.wait(30)  # in the thread of the loop, which does not move
    watchdog_module.logger.removeHandler(failure)
    await watchdog.stop()
