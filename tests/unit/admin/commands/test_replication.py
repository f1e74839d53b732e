from __future__ import annotations

import json

import msgspec

from rocketpost.admin.commands.replication import epochs_text, replication_text
from rocketpost.admin.render import json_text, time_text_ms
from rocketpost.codec.bodies.leniency import decode_body
from rocketpost.codec.bodies.stats import (
    Epoch,
    EpochList,
    ReplicaInfo,
    ReplicationState,
    UpstreamInfo,
)


def test_a_master_and_its_slaves() -> None:
    state = ReplicationState(
        ha_connection_info=[
            ReplicaInfo(addr="10.0.0.2:1", in_sync=True, slave_ack_offset=786),
            ReplicaInfo(addr="10.0.0.3:1", diff=9, transferred_byte_in_second=2048),
        ],
        in_sync_slave_nums=1,
        master_commit_log_max_offset=786,
    )
    lines = replication_text("127.0.0.1:34141", state).splitlines()
    assert lines[:5] == [
        "",
        "#MasterAddr\t127.0.0.1:34141",
        "#MasterCommitLogMaxOffset\t786",
        "#SlaveNum\t2",
        "#InSyncSlaveNum\t1",
    ]
    assert lines[5] == (
        "#SlaveAddr                        #SlaveAckOffset             #Diff "
        "#TransferSpeed(KB/s)          #Status #TransferFromWhere"
    )
    assert lines[6].split() == ["10.0.0.2:1", "786", "0", "0.00", "OK", "0"]
    assert lines[7].split() == ["10.0.0.3:1", "0", "9", "2.00", "Fall", "Behind", "0"]
    assert len(lines) == 8


def test_a_slave_that_cannot_follow_is_named_with_the_reason() -> None:
    state = ReplicationState(
        ha_connection_info=[
            ReplicaInfo(addr="10.0.0.2:1", broker_id=2, problem="its log is longer"),
            ReplicaInfo(addr="10.0.0.3:1", problem="heartbeats only"),
        ],
    )
    assert replication_text("127.0.0.1:34141", state).splitlines()[8:] == [
        "#Problem\tslave 2 at 10.0.0.2:1 cannot follow: its log is longer",
        "#Problem\tthe slave at 10.0.0.3:1 cannot follow: heartbeats only",
    ]


def test_a_slave_and_its_master() -> None:
    state = ReplicationState(
        ha_client_runtime_info=UpstreamInfo(
            last_read_timestamp=1_794_784_528_244,
            master_addr="10.0.0.1:10912",
            master_flush_offset=7,
            max_offset=786,
            transferred_byte_in_second=2048,
        ),
        master=False,
    )
    assert replication_text("127.0.0.1:34141", state).splitlines() == [
        "",
        "#MasterAddr\t10.0.0.1:10912",
        "#CommitLogMaxOffset\t786",
        "#TransferSpeed(KB/s)\t2.00",
        f"#LastReadTime\t{time_text_ms(1_794_784_528_244)}",
        "#LastWriteTime\tnever",
        "#MasterFlushOffset\t7",
    ]
    lost = UpstreamInfo(problem="the master is gone")
    text = replication_text(
        "127.0.0.1:1", ReplicationState(ha_client_runtime_info=lost, master=False)
    )
    assert "#MasterAddr\tunknown" in text
    assert text.endswith("#Problem\tthe master is gone")


def test_the_state_of_a_java_slave_is_read_and_shown_to_programs() -> None:
    body = (
        b'{"haClientRuntimeInfo":{"lastReadTimestamp":1,"lastWriteTimestamp":2,'
        b'"masterAddr":"127.0.0.1:10912","masterFlushOffset":0,"maxOffset":220,'
        b'"transferredByteInSecond":0},"haConnectionInfo":[],"inSyncSlaveNums":0,'
        b'"master":false,"masterCommitLogMaxOffset":0}'
    )
    state = decode_body(body, ReplicationState)
    assert state.ha_client_runtime_info.max_offset == 220
    assert state.ha_client_runtime_info.problem is msgspec.UNSET
    assert json.loads(json_text({"a": state}))["a"] == json.loads(body)


def test_epochs_are_printed_as_by_the_original() -> None:
    epochs = EpochList(
        broker_id=2,
        broker_name="b",
        cluster_name="c",
        epoch_list=[Epoch(epoch=3, start_offset=0, end_offset=109)],
    )
    assert epochs_text("127.0.0.1:1", epochs).splitlines() == [
        "",
        "#clusterName\tc",
        "#brokerName\tb",
        "#brokerAddr\t127.0.0.1:1",
        "#brokerId\t2",
        "#Epoch: EpochEntry{epoch=3, startOffset=0, endOffset=109}",
    ]
