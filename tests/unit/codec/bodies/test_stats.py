from __future__ import annotations

import msgspec

from rocketpost.codec.bodies.stats import (
    QueueEntries,
    QueueEntry,
    ReplicationState,
    StatsBody,
    UpstreamInfo,
    decode_key_values,
    encode_key_values,
)


def test_key_values_are_sorted_and_come_back() -> None:
    assert encode_key_values({"b": "2", "a": "1"}) == b'{"table":{"a":"1","b":"2"}}'
    assert decode_key_values(b'{"table":{"a":"1","b":"2"}}') == {"a": "1", "b": "2"}


def test_statistics_are_javas_text() -> None:
    window = b'{"avgpt":0.0,"sum":0,"tps":0.0}'
    assert msgspec.json.encode(StatsBody()) == (
        b'{"statsDay":%b,"statsHour":%b,"statsMinute":%b}' % (window, window, window)
    )


def test_queue_entries_leave_out_what_is_not_there() -> None:
    entry = QueueEntry(eval=True, physic_offset=1, physic_size=2, tags_code=3)
    body = QueueEntries(max_queue_index=1, min_queue_index=0, queue_data=[entry])
    assert msgspec.json.encode(body) == (
        b'{"maxQueueIndex":1,"minQueueIndex":0,"queueData":[{"eval":true,"physicOffset":1,'
        b'"physicSize":2,"tagsCode":3}]}'
    )


def test_the_state_of_a_master_and_of_a_slave_are_javas_text() -> None:
    assert msgspec.json.encode(ReplicationState(master_commit_log_max_offset=7)) == (
        b'{"haClientRuntimeInfo":{"lastReadTimestamp":0,"lastWriteTimestamp":0,'
        b'"masterFlushOffset":0,"maxOffset":0,"transferredByteInSecond":0},"haConnectionInfo":[],'
        b'"inSyncSlaveNums":0,"master":true,"masterCommitLogMaxOffset":7}'
    )
    upstream = UpstreamInfo(
        last_read_timestamp=1, last_write_timestamp=2, master_addr="h:1", max_offset=3
    )
    assert msgspec.json.encode(ReplicationState(ha_client_runtime_info=upstream, master=False)) == (
        b'{"haClientRuntimeInfo":{"lastReadTimestamp":1,"lastWriteTimestamp":2,"masterAddr":"h:1",'
        b'"masterFlushOffset":0,"maxOffset":3,"transferredByteInSecond":0},"haConnectionInfo":[],'
        b'"inSyncSlaveNums":0,"master":false,"masterCommitLogMaxOffset":0}'
    )
