"""Notices of a changed smallest id, over real connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rocketpost.codec.codes import RequestCode
from rocketpost.codec.command import Command
from rocketpost.namesrv.min_broker import MinBrokerChange
from rocketpost.server.namesrv.min_broker_notices import MinBrokerNotices
from rocketpost.testing.waiting import settle
from rocketpost.transport.connection import Connection
from rocketpost.transport.listener import Listener


class Broker:
    """Collects the notices that reach a port."""

    def __init__(self) -> None:
        self.told: asyncio.Queue[Command] = asyncio.Queue()
        self.listener = Listener(on_request=self._take)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.listener.port}"

    def _take(self, connection: Connection, command: Command) -> None:
        connection.end_turn()
        self.told.put_nowait(command)


@asynccontextmanager
async def a_broker() -> AsyncIterator[Broker]:
    broker = Broker()
    await broker.listener.start("127.0.0.1", 0)
    try:
        yield broker
    finally:
        await broker.listener.stop()


async def test_members_get_the_change_without_empty_fields() -> None:
    notices = MinBrokerNotices()
    async with a_broker() as one, a_broker() as other:
        notices.tell(MinBrokerChange("b", (one.address, other.address), 1, "h:1", "h:0"))
        for broker in (one, other):
            command = await asyncio.wait_for(broker.told.get(), 5)
            assert command.code == RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE
            assert command.is_oneway
            assert command.fields == {
                "minBrokerId": "1", "minBrokerAddr": "h:1", "offlineBrokerAddr": "h:0"
            }  # fmt: skip
        await notices.close()


async def test_the_last_of_several_changes_arrives() -> None:
    notices = MinBrokerNotices()
    async with a_broker() as broker:
        for key in (2, 1, 0):
            notices.tell(MinBrokerChange("b", (broker.address,), key, f"h:{key}"))
        seen = ""
        async with asyncio.timeout(5):
            while seen != "0":
                seen = (await broker.told.get()).fields["minBrokerId"]
        await notices.close()


async def test_a_broker_that_is_gone_keeps_no_task() -> None:
    notices = MinBrokerNotices()
    async with a_broker() as broker:
        gone = broker.address
    notices.tell(MinBrokerChange("b", (gone,), 1, "h:1"))
    await asyncio.gather(*notices._tasks.values())
    await settle()
    assert not notices._tasks
    await notices.close()


async def test_closing_drops_what_is_not_sent() -> None:
    notices = MinBrokerNotices()
    async with a_broker() as broker:
        notices.tell(MinBrokerChange("b", (broker.address,), 1, "h:1"))
        await notices.close()
        assert not notices._tasks
