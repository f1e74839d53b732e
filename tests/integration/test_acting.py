"""A slave acts for its master while the master is gone, and steps back when it returns."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from rocketpost.codec.codes import RequestCode as Code
from rocketpost.codec.codes import ResponseCode
from rocketpost.server.namesrv.process import NameServer
from rocketpost.server.routes.follower_refusals import ACTING, STANDING_BY

from .acting import acts, master_of, members, name_server, slave_of, until
from .census import find_leaks, overlook_older_objects, take_census
from .replicas import until_copied
from .settings.harness import Peer


async def commit(peer: Peer, offset: int, *, topic: str = "T", group: str = "G") -> None:
    fields = {"consumerGroup": group, "topic": topic, "queueId": 0, "commitOffset": offset}
    await peer.ok(Code.UPDATE_CONSUMER_OFFSET, **fields)


async def committed(peer: Peer, *, topic: str = "T", group: str = "G") -> int:
    fields = {"consumerGroup": group, "topic": topic, "queueId": 0}
    answer = await peer.ok(Code.QUERY_CONSUMER_OFFSET, **fields)
    return int(answer.fields["offset"])


async def lock(peer: Peer, client_id: str) -> list[object]:
    queue = {"brokerName": "broker-a", "queueId": 0, "topic": "T"}
    body = {"clientId": client_id, "consumerGroup": "G", "mqSet": [queue]}
    answer = await peer.ok(Code.LOCK_BATCH_MQ, msgspec.json.encode(body))
    held: list[object] = msgspec.json.decode(answer.body)["lockOKMQSet"]
    return held


def shown(names: NameServer) -> tuple[dict[int, str], int]:
    """Return the addresses and the permission of the topic's route."""
    found = names._table.route("T", acting_master=True)
    assert found is not None
    (broker,), (queues,) = found.route.broker_datas, found.route.queue_datas
    return dict(broker.broker_addrs), queues.perm


@pytest.mark.parametrize("is_notified", [True, False])
async def test_consumers_read_on_while_the_master_is_gone(
    tmp_path: Path, is_notified: bool
) -> None:
    settings: dict[str, object] = {}
    if is_notified:  # nothing but the notice can tell in time
        settings["syncBrokerMemberGroupPeriod"] = 60_000
    async with (
        name_server(notify_min_broker=is_notified) as names,
        master_of(names, tmp_path) as master,
        slave_of(names, tmp_path, **settings) as slave,
    ):
        await until(lambda: members(names) == {0, 1})
        await master.topic("T")
        for body in (b"one", b"two"):
            assert (await master.send("T", body)).code == ResponseCode.SUCCESS
        await commit(master, 1)
        await until_copied(master, slave)
        await until(lambda: slave.server._context.tables.topics.find("T"))
        assert (await slave.send("T")).code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert (await slave.pull("T")).code == ResponseCode.SYSTEM_BUSY
        with pytest.raises(AssertionError, match="lock queues at its leader"):
            await lock(slave, "a")

        await master.server.stop()
        await until(lambda: acts(slave))
        assert shown(names) == ({0: slave.server.address}, 4)
        assert [each.body for each in await slave.records("T")] == [b"one", b"two"]
        assert (await slave.pull("T", 2)).code == ResponseCode.PULL_NOT_FOUND
        await commit(slave, 2)
        assert len(await lock(slave, "a")) == 1
        assert await lock(slave, "b") == []
        for code, (refusal, remark) in ACTING.items():
            answer = await slave.call(code, topic="T", consumerGroup="G", queueId=0)
            assert (answer.code, answer.remark) == (refusal, remark), code.name

        async with master_of(names, tmp_path) as master:
            await until(lambda: members(names) == {0, 1})
            assert await committed(master) == 2, "offsets are back before it is found"
            await until(lambda: not acts(slave))
            addresses = {0: master.server.address, 1: slave.server.address}
            assert shown(names) == (addresses, 6)
            assert (await master.send("T", b"three")).code == ResponseCode.SUCCESS
            await until_copied(master, slave)
            assert (await slave.send("T")).remark == STANDING_BY[Code.SEND_MESSAGE][1]


async def test_the_members_route_is_what_a_rocketmq_broker_asks_for(tmp_path: Path) -> None:
    async with name_server() as names, slave_of(names, tmp_path, skipPreOnline="true") as slave:
        await until(lambda: acts(slave))
        found = names._table.route("rmq_sys_SYNC_BROKER_MEMBER_broker-a", acting_master=True)
        assert found is not None
        assert list(found.route.broker_datas[0].broker_addrs) == [1]


async def test_only_the_smallest_of_two_slaves_acts(tmp_path: Path) -> None:
    async with (
        name_server() as names,
        slave_of(names, tmp_path, broker_id=2) as second,
    ):
        await until(lambda: acts(second))
        async with slave_of(names, tmp_path, broker_id=1) as first:
            await until(lambda: acts(first) and not acts(second))
        await until(lambda: acts(second))


async def test_acting_comes_and_goes_without_leaks(tmp_path: Path) -> None:
    async with name_server() as names, slave_of(names, tmp_path) as slave:
        await until(lambda: acts(slave))

        async def come_and_go() -> None:
            for _ in range(5):
                async with master_of(names, tmp_path, skipPreOnline="true"):
                    await until(lambda: not acts(slave))
                await until(lambda: acts(slave))

        with overlook_older_objects():
            await come_and_go()
            before = await take_census(slave.server)
            await come_and_go()
            assert not await find_leaks(slave.server, before)


@pytest.mark.parametrize("adapts", [False, True])
async def test_a_master_without_enough_members_refuses_before_it_stores(
    tmp_path: Path, adapts: bool
) -> None:
    sync = {"brokerRole": "SYNC_MASTER", "enableAutoInSyncReplicas": str(adapts).lower()}
    async with name_server() as names, master_of(names, tmp_path, **sync) as master:
        async with slave_of(names, tmp_path) as slave:
            await until(lambda: members(names) == {0, 1})
            await master.topic("T")
            await until(lambda: slave.server._term.registered)
            await until(lambda: master.server._term.group.alive == 2)  # type: ignore[attr-defined]
            await until_copied(master, slave)
            assert (await master.send("T", b"both")).code == ResponseCode.SUCCESS
        await until(lambda: master.server._term.group.alive == 1)  # type: ignore[attr-defined]
        answer = await master.send("T", b"alone")
        expected = ResponseCode.SUCCESS if adapts else ResponseCode.SYSTEM_ERROR
        assert answer.code == expected, answer.remark
        stored = [each.body for each in await master.records("T")]
        assert stored == ([b"both", b"alone"] if adapts else [b"both"])
