"""Send-backs are answered when they are stored."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rocketpost.broker.group.retry import RetryService
from rocketpost.broker.stats import BrokerStats
from rocketpost.broker.topic import TopicTable
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.errors import StoreFull
from rocketpost.model.group import GroupConfig
from rocketpost.model.retry_policy import RetryPolicy
from rocketpost.server.handlers.retry import RetryHandlers
from rocketpost.store.draft import Appended, Draft
from rocketpost.testing.clock import FakeClock

from .fakes import Caller, FakeStore


class Groups:
    def use(self, group: str) -> None:
        """Nothing expires here."""

    def find_or_create(self, group: str, *, by: str = "") -> GroupConfig | None:
        return GroupConfig(group_name=group, retry_queue_nums=0 if group == "none" else 1)

    def retry_policy(self, group: str) -> RetryPolicy | None:
        return None


class World:
    def __init__(self, clock: FakeClock) -> None:
        self.store = FakeStore()
        self.puts: list[tuple[list[Draft], asyncio.Future[list[Appended]]]] = []
        self.writable = True
        self.stats = BrokerStats(clock=clock)
        service = RetryService(
            topics=TopicTable(clock=clock, cluster_name="C", broker_name="b"),
            groups=Groups(),
            record_at=self.store.record_at,
            store_host=bytes(8),
            random_below=lambda count: 0,
            level_max=18,
            put_off=lambda draft, ms: draft,
        )
        handlers = RetryHandlers(
            service=service,
            put=self.put,
            wait_for_slaves=self.wait_for_slaves,
            broker_writable=lambda: self.writable,
            stats=self.stats,
        )
        self.caller = Caller(handlers)
        self.replicated = asyncio.Event()
        self.replicated.set()

    async def wait_for_slaves(self) -> None:
        await self.replicated.wait()

    def put(self, drafts: list[Draft]) -> asyncio.Future[list[Appended]]:
        future: asyncio.Future[list[Appended]] = asyncio.get_running_loop().create_future()
        self.puts.append((drafts, future))
        return future


@pytest.fixture
def retries() -> World:
    return World(FakeClock())


async def ask(world: World, **fields: str) -> Any:
    values = {"offset": "1000", "group": "g", "delayLevel": "0"} | fields
    return await world.caller(RequestCode.CONSUMER_SEND_MSG_BACK, values)


async def test_a_send_back_is_answered_when_it_is_stored(retries: World) -> None:
    retries.store.put_record(1000)
    asking = asyncio.ensure_future(ask(retries))
    while not retries.puts:
        await asyncio.sleep(0)
    [(drafts, future)] = retries.puts
    assert drafts[0].queue_id == 2
    assert not asking.done()
    assert retries.stats.item("SNDBCK_PUT_NUMS", "T@g") is None
    future.set_result([])
    assert (await asking).code == ResponseCode.SUCCESS
    counted = retries.stats.item("SNDBCK_PUT_NUMS", "T@g")
    assert counted is not None
    assert counted.stats_minute.sum == 1


async def test_a_send_back_is_answered_when_slaves_have_it(retries: World) -> None:
    retries.store.put_record(1000)
    retries.replicated.clear()
    asking = asyncio.ensure_future(ask(retries))
    while not retries.puts:
        await asyncio.sleep(0)
    retries.puts[0][1].set_result([])
    for _ in range(5):
        await asyncio.sleep(0)
    assert not asking.done()
    retries.replicated.set()
    assert (await asking).code == ResponseCode.SUCCESS


async def test_a_send_back_that_is_not_stored_is_an_error(retries: World) -> None:
    retries.store.put_record(1000)
    asking = asyncio.ensure_future(ask(retries, delayLevel="-1"))
    while not retries.puts:
        await asyncio.sleep(0)
    retries.puts[0][1].set_exception(StoreFull("no room"))
    response = await asking
    assert (response.code, response.remark) == (ResponseCode.SYSTEM_ERROR, "no room")


async def test_refusals_and_nothing_to_do(retries: World) -> None:
    assert (await ask(retries, group="none")).code == ResponseCode.SUCCESS
    assert (await ask(retries)).code == ResponseCode.SYSTEM_ERROR
    retries.writable = False
    assert (await ask(retries)).code == ResponseCode.NO_PERMISSION
    assert not retries.puts
