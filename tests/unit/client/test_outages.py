from __future__ import annotations

import logging

import pytest

from rocketpost.client.outages import Outages
from rocketpost.codec.faults import NoPermission
from rocketpost.errors import ConnectionLost
from rocketpost.model.route import MessageQueue

QUEUES = [MessageQueue("a", queue_id, "T") for queue_id in range(8)]
GONE = ConnectionLost("nobody listens")


class World:
    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)
        self._caplog = caplog
        self.now = 0.0
        self.outages = Outages(clock=lambda: self.now)

    def fail(self, *, seconds: int, error: ConnectionLost | NoPermission = GONE) -> None:
        """Have every queue fail once a second."""
        for _ in range(seconds):
            for queue in QUEUES:
                self.outages.report_failure("pull failed", queue, error)
            self.now += 1

    def lines(self) -> list[str]:
        lines = [record.getMessage() for record in self._caplog.records]
        self._caplog.clear()
        return lines


@pytest.fixture
def world(caplog: pytest.LogCaptureFixture) -> World:
    return World(caplog)


def test_an_outage_is_logged_at_its_start_every_minute_and_at_its_end(world: World) -> None:
    world.fail(seconds=130)
    world.outages.report_broker_failure("heartbeat failed", "a", GONE)
    world.outages.report_success("a", "T")
    world.outages.report_success("a", "T")
    queue = QUEUES[0]
    assert world.lines() == [
        f"pull failed: queue={queue} reason=nobody listens",
        f"pull failed: queue={queue} reason=nobody listens seconds=60 failures=481",
        f"pull failed: queue={queue} reason=nobody listens seconds=120 failures=961",
        "broker answers again: broker=a topic=all seconds=130 failures=1041",
    ]


def test_brokers_and_refusals_are_distinguished(world: World) -> None:
    world.fail(seconds=1)
    world.fail(seconds=1, error=NoPermission("not readable"))
    world.outages.report_broker_failure("heartbeat failed", "b", GONE)
    assert [line.partition(":")[0] for line in world.lines()] == [
        "pull failed",
        "pull failed",
        "heartbeat failed",
    ]
    world.outages.report_success("a")
    assert [line.partition(" seconds")[0] for line in world.lines()] == [
        "broker answers again: broker=a topic=all"
    ]
    world.outages.report_success("a", "T")
    assert [line.partition(" seconds")[0] for line in world.lines()] == [
        "broker answers again: broker=a topic=T"
    ]


def test_an_unstable_broker_is_logged_once_a_minute(world: World) -> None:
    for _ in range(120):
        world.fail(seconds=1)
        world.outages.report_success("a", "T")
    assert len(world.lines()) == 4


def test_a_broker_that_fails_again_much_later_is_logged_immediately(world: World) -> None:
    world.fail(seconds=100)
    world.outages.report_success("a", "T")
    world.lines()
    world.now += 60
    world.fail(seconds=1)
    assert world.lines() == [f"pull failed: queue={QUEUES[0]} reason=nobody listens"]


def test_the_number_of_remembered_outages_is_bounded(world: World) -> None:
    for number in range(5000):
        world.outages.report_broker_failure("heartbeat failed", f"b{number}", GONE)
    assert len(world.outages._outages) == 4096
