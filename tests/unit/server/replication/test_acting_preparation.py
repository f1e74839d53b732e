"""What a broker does before it goes online: telling, asking, waiting, taking offsets back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from rocketpost.broker.group.offsets import OffsetTable
from rocketpost.broker.transaction.service import TRANSACTION_GROUP
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.command import Command, to_fields
from rocketpost.codec.headers.replication import ExchangeHaInfo, HaInfo
from rocketpost.errors import RemoteProtocolError, RocketpostError
from rocketpost.model.names import HALF_TOPIC
from rocketpost.replication.acting import Ask, AwaitLink, TakeBack, Tell
from rocketpost.server.replication.acting_preparation import (
    MasterPreparation,
    SlavePreparation,
    take_higher,
)
from rocketpost.server.replication.master_address import MasterAddress
from rocketpost.server.replication.status import MasterStatus, ReplicaStatus, SlaveStatus
from rocketpost.server.routes.access import NOTHING
from rocketpost.server.routes.dispatch import Dispatcher
from rocketpost.server.routes.route import NO_HEADER, Reply, plain
from rocketpost.testing.clock import FakeClock
from rocketpost.testing.virtual_time import in_virtual_time
from rocketpost.transport.connection import Connection
from rocketpost.transport.listener import Listener

SLAVE = "10.0.0.2:10911"


def offsets(**rows: int) -> OffsetTable:
    table = OffsetTable(clock=FakeClock())
    for topic, offset in rows.items():
        table.commit(topic, "g", 0, offset)
    return table


def a_master(table: OffsetTable, *replicas: ReplicaStatus) -> MasterPreparation:
    return MasterPreparation(
        address="10.0.0.1:10911",
        ha_address=lambda: "10.0.0.1:10912",
        log_end=77,
        status=lambda: MasterStatus(replicas),
        offsets=table,
    )


@asynccontextmanager
async def member(code: RequestCode, answer: Callable[[Command], Reply]) -> AsyncIterator[str]:
    """Serve one request as another member of the group; yields the address."""

    def serve(connection: Connection, command: Command, header: None) -> Reply:
        return answer(command)

    dispatcher = Dispatcher([plain(code, NO_HEADER, NOTHING, serve)])
    listener = Listener(on_request=dispatcher.handle)
    await listener.start("127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{listener.port}"
    finally:
        await listener.stop()


async def test_a_master_tells_where_it_is() -> None:
    told: list[ExchangeHaInfo] = []

    def take(command: Command) -> Reply:
        told.append(command.read(ExchangeHaInfo))
        return Reply()

    master = a_master(offsets())
    async with member(RequestCode.EXCHANGE_BROKER_HA_INFO, take) as address:
        await master.perform(Tell(address), 1)
    assert told == [
        ExchangeHaInfo(
            master_ha_address="10.0.0.1:10912",
            master_flush_offset=77,
            master_address="10.0.0.1:10911",
        )
    ]
    with pytest.raises(RocketpostError):
        await master.perform(Tell(address), 1)
    await master.close()


async def test_a_master_takes_higher_offsets_back() -> None:
    theirs = offsets(A=7, B=2, New=1).body()
    own = offsets(A=5, B=3, C=4)
    master = a_master(own)
    async with member(RequestCode.GET_ALL_CONSUMER_OFFSET, lambda _: Reply(body=theirs)) as address:
        await master.perform(TakeBack(address), 1)
    assert [own.query(topic, "g", 0) for topic in ("A", "B", "C", "New")] == [7, 3, 4, 1]
    await master.close()


def test_a_reset_that_no_consumer_has_seen_stays() -> None:
    own = offsets(A=5)
    own.reset("A", "g", 0, 1)
    assert take_higher(own, offsets(A=9).body()) == 0
    assert own.query("A", "g", 0) == 1


def test_the_brokers_own_progress_is_not_taken_from_a_slave() -> None:
    """A master that lost the end of its log stores other records at those offsets."""
    own, theirs = offsets(), OffsetTable(clock=FakeClock())
    theirs.commit(HALF_TOPIC, TRANSACTION_GROUP, 0, 9)
    assert take_higher(own, theirs.body()) == 0


def test_a_table_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(RemoteProtocolError):
        take_higher(offsets(), b"?")


def replica(broker_id: int | None, host: str = "10.0.0.2", next_position: int = 5) -> ReplicaStatus:
    return ReplicaStatus(
        address=f"{host}:40000", acknowledged=5, next_position=next_position, broker_id=broker_id
    )


@pytest.mark.parametrize(
    ("found", "follows"),
    [
        (replica(1, host="10.0.0.7"), True),
        (replica(2), False),  # another slave on the same host
        (replica(None), True),  # a slave of RocketMQ is known by its host
        (replica(None, host="10.0.0.3"), False),
        (replica(1, next_position=-1), False),
    ],
)
def test_a_master_knows_which_slave_follows(found: ReplicaStatus, follows: bool) -> None:
    @in_virtual_time
    async def wait() -> None:
        await a_master(offsets(), found).perform(AwaitLink(SLAVE, 10_000), 1)

    if follows:
        wait()
    else:
        with pytest.raises(RocketpostError, match=r"10\.0\.0\.2:10911 after 10000 ms"):
            wait()


async def test_a_slave_asks_where_the_log_is() -> None:
    where = MasterAddress()
    slave = SlavePreparation(master=where, status=SlaveStatus)
    info = HaInfo(master_ha_address="10.0.0.1:10912", master_address="10.0.0.1:10911")
    async with member(
        RequestCode.EXCHANGE_BROKER_HA_INFO, lambda _: Reply(fields=to_fields(info))
    ) as address:
        await slave.perform(Ask(address), 0)
    assert (where.remoting, where.ha) == (address, "10.0.0.1:10912")
    await slave.close()


@in_virtual_time
async def test_a_slave_waits_until_it_follows() -> None:
    looks = iter([False, False, True])
    slave = SlavePreparation(
        master=MasterAddress(), status=lambda: SlaveStatus(is_connected=next(looks))
    )
    await slave.perform(AwaitLink("10.0.0.1:10911", 10_000), 0)
    assert next(looks, None) is None
