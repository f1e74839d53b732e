"""Asking again: for how long, how often, and what for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from rocketpost.codec.faults import NoPermission, SystemBusy
from rocketpost.errors import ConnectionLost, RocketpostError, RouteNotFound
from rocketpost.spark.outage import retry_during_outage
from rocketpost.testing.virtual_time import in_virtual_time


class Server:
    """Fails at first, and notes when it was asked."""

    def __init__(self, *failures: RocketpostError) -> None:
        self.failures = list(failures)
        self.asked: list[float] = []
        self.mended = 0

    async def ask(self) -> str:
        self.asked.append(round(asyncio.get_running_loop().time(), 3))
        if self.failures:
            raise self.failures.pop(0)
        return "answer"

    async def mend(self) -> None:
        self.mended += 1


def many(make: Callable[[], RocketpostError]) -> Server:
    return Server(*[make() for _ in range(1000)])


@in_virtual_time
async def test_pauses_double_up_to_two_seconds() -> None:
    server = Server(*[ConnectionLost() for _ in range(7)])
    assert (
        await retry_during_outage(server.ask, seconds=60, pause=0.1, between=server.mend)
        == "answer"
    )
    assert server.asked == [0.0, 0.1, 0.3, 0.7, 1.5, 3.1, 5.1, 7.1]
    assert server.mended == 7


@in_virtual_time
async def test_time_runs_out() -> None:
    server = many(ConnectionLost)
    with pytest.raises(ConnectionLost) as raised:
        await retry_during_outage(server.ask, seconds=10, pause=0.1)
    assert 8 < server.asked[-1] <= 10
    assert raised.value.__notes__ == ["retried for 10 s"]


@in_virtual_time
async def test_no_time_means_one_attempt() -> None:
    server = many(SystemBusy)
    with pytest.raises(SystemBusy):
        await retry_during_outage(server.ask, seconds=0, pause=0)
    assert server.asked == [0.0]


@in_virtual_time
async def test_a_name_that_nobody_knows_is_asked_for_a_few_times() -> None:
    server = Server(ConnectionLost(), *[RouteNotFound("T") for _ in range(9)])
    with pytest.raises(RouteNotFound):
        await retry_during_outage(server.ask, seconds=60, pause=0.1, unknown_max=2)
    assert len(server.asked) == 4  # the lost connection does not count


@in_virtual_time
async def test_a_refusal_is_final() -> None:
    server = Server(NoPermission("no"))
    with pytest.raises(NoPermission):
        await retry_during_outage(server.ask, seconds=60, pause=0.1)
    assert server.asked == [0.0]
