from __future__ import annotations

import pytest

from rocketpost.codec.bodies.leniency import decode_body
from rocketpost.codec.bodies.stats import EpochList, ReplicationState
from rocketpost.codec.codes import RequestCode as Code
from rocketpost.codec.codes import ResponseCode
from rocketpost.errors import StoreFull
from rocketpost.server.replication.status import MasterStatus, ReplicaStatus, SlaveStatus

from .fakes import json_of
from .world import World

NO_UPSTREAM = {
    "lastReadTimestamp": 0,
    "lastWriteTimestamp": 0,
    "masterFlushOffset": 0,
    "maxOffset": 0,
    "transferredByteInSecond": 0,
}


async def test_a_master_without_slaves(world: World) -> None:
    assert json_of(await world.call(Code.GET_BROKER_HA_STATUS)) == {
        "haClientRuntimeInfo": NO_UPSTREAM,
        "haConnectionInfo": [],
        "inSyncSlaveNums": 0,
        "master": True,
        "masterCommitLogMaxOffset": 5000,
    }


async def test_a_master_lists_its_slaves_in_the_words_of_java(world: World) -> None:
    foreign = ReplicaStatus("10.0.0.2:4711", 4000, 4500, bytes_per_second=99, is_in_sync=True)
    world.replication = MasterStatus((foreign,))
    body = json_of(await world.call(Code.GET_BROKER_HA_STATUS))
    assert isinstance(body, dict)
    assert body["inSyncSlaveNums"] == 1
    assert body["haConnectionInfo"] == [
        {
            "addr": "10.0.0.2:4711",
            "diff": 1000,
            "inSync": True,
            "slaveAckOffset": 4000,
            "transferFromWhere": 4500,
            "transferredByteInSecond": 99,
        }
    ]


async def test_a_slave_that_cannot_follow_is_shown_with_the_reason(world: World) -> None:
    ours = ReplicaStatus("10.0.0.3:4712", 0, -1, broker_id=2, problem="its log differs")
    world.replication = MasterStatus((ours,))
    response = await world.call(Code.GET_BROKER_HA_STATUS)
    [shown] = decode_body(response.body, ReplicationState).ha_connection_info
    assert (shown.broker_id, shown.problem) == (2, "its log differs")
    assert (shown.in_sync, shown.diff) == (False, 5000)


async def test_a_slave_describes_its_connection_in_the_words_of_java(world: World) -> None:
    world.checkpoint.master_flushed = 77
    world.replication = SlaveStatus(
        "10.0.0.1:10912",
        is_connected=True,
        last_read_ms=1_700_000_000_001,
        last_write_ms=1_700_000_000_002,
        bytes_per_second=1234,
    )
    assert json_of(await world.call(Code.GET_BROKER_HA_STATUS)) == {
        "haClientRuntimeInfo": {
            "lastReadTimestamp": 1_700_000_000_001,
            "lastWriteTimestamp": 1_700_000_000_002,
            "masterAddr": "10.0.0.1:10912",
            "masterFlushOffset": 77,
            "maxOffset": 5000,
            "transferredByteInSecond": 1234,
        },
        "haConnectionInfo": [],
        "inSyncSlaveNums": 0,
        "master": False,
        "masterCommitLogMaxOffset": 0,
    }


async def test_the_flushed_position_of_the_master_is_saved_at_a_slave_only(world: World) -> None:
    fields = {"masterFlushOffset": "4096"}
    assert (await world.call(Code.RESET_MASTER_FLUSH_OFFSET, fields)).code == 0
    assert (world.checkpoint.master_flushed, world.checkpoint.saved) == (0, [])
    world.replication = SlaveStatus()
    assert (await world.call(Code.RESET_MASTER_FLUSH_OFFSET, fields)).code == 0
    assert (world.checkpoint.master_flushed, world.checkpoint.saved) == (4096, [4096])


@pytest.mark.parametrize("error", [StoreFull("no space"), OSError("input/output error")])
async def test_a_position_that_is_not_saved_is_not_acknowledged(
    world: World, error: Exception
) -> None:
    world.replication = SlaveStatus()
    world.checkpoint.error = error
    response = await world.call(Code.RESET_MASTER_FLUSH_OFFSET, {"masterFlushOffset": "4096"})
    assert response.code == ResponseCode.SYSTEM_ERROR
    assert str(error) in (response.remark or "")


async def test_a_negative_position_is_refused(world: World) -> None:
    response = await world.call(Code.RESET_MASTER_FLUSH_OFFSET, {"masterFlushOffset": "-1"})
    assert response.code == ResponseCode.INVALID_PARAMETER


async def test_epochs_are_refused_in_the_words_of_java(world: World) -> None:
    response = await world.call(Code.GET_BROKER_EPOCH_CACHE)
    assert response.code == ResponseCode.SYSTEM_ERROR
    assert response.remark == "this request only for controllerMode "


async def test_a_member_of_a_group_tells_its_terms(world: World) -> None:
    world.replication = SlaveStatus(epochs=[(3, 0), (5, 700)], broker_id=2)
    response = await world.call(Code.GET_BROKER_EPOCH_CACHE)
    found = decode_body(response.body, EpochList)
    assert (found.broker_id, found.broker_name, found.cluster_name) == (2, "broker-a", "c")
    assert [(each.epoch, each.start_offset, each.end_offset) for each in found.epoch_list] == [
        (3, 0, 700),
        (5, 700, 2**63 - 1),
    ]
