"""Brokers of a command are kept running, and a stop tells what went wrong."""

from __future__ import annotations

import asyncio
import itertools
import logging

import pytest

from rocketpost.errors import RocketpostError
from rocketpost.server.fleet.broker_process import BrokerEnded, BrokerProcess, describe_end
from rocketpost.server.fleet.fleet import Fleet, fleet_ready
from rocketpost.server.fleet.plan import BrokerPlan
from rocketpost.testing.virtual_time import in_virtual_time


class FakeBroker(BrokerProcess):
    """A broker without a process, which ends when a test says so.

    Args:
        name: Its name.
        refusals: The starts that fail, counted from 0.
        stop_code: The exit code after it was asked to stop.
    """

    def __init__(self, name: str, *, refusals: tuple[int, ...] = (), stop_code: int = 0) -> None:
        plan = BrokerPlan(0, name, {})
        super().__init__(plan, sharers=2, accept_missing=False)
        self.launched: list[float] = []
        self.ended: asyncio.Future[int] | None = None
        self._refusals = refusals
        self._stop_code = stop_code

    @property
    def pid(self) -> int:
        return len(self.launched)

    @property
    def is_running(self) -> bool:
        return self.ended is not None and not self.ended.done()

    async def launch(self) -> None:
        assert not self.is_running
        self.ended = asyncio.get_running_loop().create_future()
        self.launched.append(asyncio.get_running_loop().time())

    async def wait_ready(self) -> None:
        if len(self.launched) - 1 in self._refusals:
            self.end(2)
            raise BrokerEnded(f"the broker {self.name} did not start: {describe_end(2)}")
        self.ready_line = f"The broker[{self.name}] boot success"

    def ask_to_stop(self) -> None:
        self.end(self._stop_code)

    def end(self, code: int) -> None:
        if self.ended is not None and not self.ended.done():
            self.ended.set_result(code)

    async def wait_ended(self) -> int:
        assert self.ended is not None
        return await self.ended


@in_virtual_time
async def test_brokers_start_and_stop_together() -> None:
    first, second = brokers = [FakeBroker("broker-a"), FakeBroker("broker-a-1")]
    fleet = Fleet(brokers)
    await fleet.start()
    assert fleet_ready(fleet).splitlines() == [
        "The broker[broker-a] boot success",
        "The broker[broker-a-1] boot success",
        "2 brokers run: broker-a pid 1, broker-a-1 pid 1",
    ]
    await fleet.stop()
    assert not first.is_running
    assert not second.is_running


@in_virtual_time
async def test_no_other_broker_starts_if_the_first_cannot() -> None:
    first, second = FakeBroker("broker-a", refusals=(0,)), FakeBroker("broker-a-1")
    with pytest.raises(BrokerEnded, match="broker-a did not start: exit code 2"):
        await Fleet([first, second]).start()
    assert not second.launched


@in_virtual_time
async def test_all_are_stopped_if_one_cannot_start() -> None:
    first, second = FakeBroker("broker-a"), FakeBroker("broker-a-1", refusals=(0,))
    with pytest.raises(BrokerEnded, match="broker-a-1 did not start"):
        await Fleet([first, second]).start()
    assert not first.is_running


def test_a_broker_that_keeps_ending_is_restarted_ever_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)

    @in_virtual_time
    async def run() -> list[float]:
        broker, other = FakeBroker("broker-a-1", refusals=(2,)), FakeBroker("broker-a")
        fleet = Fleet([broker, other])
        await fleet.start()
        broker.end(-9)
        await asyncio.sleep(1.5)  # restarted after 1 s
        broker.end(0)
        await asyncio.sleep(8)  # refused after 2 s, then restarted after 4 s
        await asyncio.sleep(60)
        broker.end(1)
        await asyncio.sleep(2)  # served well: restarted after 1 s again
        assert len(other.launched) == 1
        await fleet.stop()
        return broker.launched

    launched = run()
    gaps = [round(after - before, 1) for before, after in itertools.pairwise(launched)]
    assert gaps[:3] == [1.0, 2.5, 4.0]
    assert launched[-1] == pytest.approx(1.5 + 8 + 60 + 1, abs=0.1)
    assert "broker ended: name=broker-a-1 pid=1 how=killed by SIGKILL" in caplog.messages
    assert "broker restarted: name=broker-a-1 pid=2" in caplog.messages
    assert any("broker not restarted: name=broker-a-1" in line for line in caplog.messages)


@in_virtual_time
async def test_a_stop_names_brokers_that_did_not_end_well() -> None:
    dead, unsaved = FakeBroker("broker-a"), FakeBroker("broker-a-1", stop_code=2)
    fleet = Fleet([dead, unsaved])
    await fleet.start()
    dead.end(-11)
    await asyncio.sleep(0.5)
    with pytest.raises(RocketpostError) as caught:
        await fleet.stop()
    assert str(caught.value) == (
        "broker-a was not running: killed by SIGSEGV; broker-a-1 did not stop cleanly: exit code 2"
    )


def test_a_stop_that_takes_long_says_for_whom_it_waits(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    class Slow(FakeBroker):
        def ask_to_stop(self) -> None:
            asyncio.get_running_loop().call_later(25, self.end, 0)

    @in_virtual_time
    async def run() -> None:
        fleet = Fleet([FakeBroker("broker-a"), Slow("broker-a-1")])
        await fleet.start()
        await fleet.stop()

    run()
    assert caplog.messages == ["broker is stopping: name=broker-a-1 pid=1"] * 2
