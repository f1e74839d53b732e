from __future__ import annotations

import pytest

from rocketpost.codec.bodies.offset import (
    BrokerConsumeState,
    ConsumeState,
    QueueProgress,
    decode_broker_consume_state,
    decode_consume_state,
    decode_offset_table,
    decode_queue_offsets,
    encode_broker_consume_state,
    encode_consume_state,
    encode_correction,
    encode_offset_row,
    encode_offset_table,
    encode_queue_offset_list,
    encode_queue_offsets,
)
from rocketpost.errors import RemoteProtocolError
from rocketpost.model.route import MessageQueue
from rocketpost.model.topic import DataVersion

Q0, Q1 = (MessageQueue("broker-a", queue, "TopicA") for queue in (0, 1))
STATE = ConsumeState(
    queues={
        Q0: QueueProgress(
            broker_offset=10, consumer_offset=5, last_timestamp=1700000000000, pull_offset=7
        )
    }
)
# The texts of the Java classes, run with fastjson 1.2.83.
STATE_TEXT = (
    b'{"consumeTps":0.0,"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"TopicA"}:'
    b'{"brokerOffset":10,"consumerOffset":5,"lastTimestamp":1700000000000,"pullOffset":7}}}'
)
BROKER_TEXT = (
    b'{"brokerAddr":"10.0.0.1:10911","consumeStatsList":[{"GroupA":[%b]}],'
    b'"totalDiff":5,"totalInflightDiff":2}' % STATE_TEXT
)
RESET_TEXT = (
    b'{"offsetTable":{{"brokerName":"broker-a","queueId":1,"topic":"TopicA"}:101,'
    b'{"brokerName":"broker-a","queueId":0,"topic":"TopicA"}:100}}'
)
RESET_LIST = (
    b'{"offsetTable":[{"brokerName":"broker-a","offset":100,"queueId":0,"topic":"TopicA"}]}'
)


def test_offset_tables_have_bare_keys() -> None:
    rows = [("TopicA@GroupA", encode_offset_row({0: 5, 1: 6}))]
    version = DataVersion(3, 0, 1700000000000)
    text = encode_offset_table(version, rows)
    assert text == (
        b'{"dataVersion":{"counter":3,"stateVersion":0,"timestamp":1700000000000},'
        b'"offsetTable":{"TopicA@GroupA":{0:5,1:6}}}'
    )
    lines = encode_offset_table(version, [*rows, ("TopicB@GroupA", b"{}")], lines=True)
    assert lines.count(b"\n") == 3
    for data in (text, lines, text.replace(b"0:5", b'"0":5')):
        body = decode_offset_table(data)
        assert body.offset_table["TopicA@GroupA"] == {0: 5, 1: 6}
        assert body.data_version == version


def test_an_offset_table_may_hold_nulls() -> None:
    assert decode_offset_table(b'{"offsetTable":null}').offset_table == {}
    assert decode_offset_table(b'{"offsetTable":{"T@G":{0:null,1:2}}}').offset_table == {
        "T@G": {1: 2}
    }


def test_progress_has_object_keys() -> None:
    assert encode_consume_state(STATE) == STATE_TEXT
    assert decode_consume_state(STATE_TEXT) == STATE


def test_progress_of_a_broker() -> None:
    state = BrokerConsumeState(
        broker_addr="10.0.0.1:10911",
        groups=[("GroupA", [STATE])],
        total_diff=5,
        total_inflight_diff=2,
    )
    assert encode_broker_consume_state(state) == BROKER_TEXT
    assert decode_broker_consume_state(BROKER_TEXT) == state


def test_resets_are_written_for_java_and_go_or_for_cpp() -> None:
    assert encode_queue_offsets({Q1: 101, Q0: 100}) == RESET_TEXT
    assert encode_queue_offset_list({Q0: 100}) == RESET_LIST
    assert decode_queue_offsets(RESET_TEXT) == {Q1: 101, Q0: 100}
    assert decode_queue_offsets(RESET_LIST) == {Q0: 100}
    assert decode_queue_offsets(b"{}") == {}


def test_corrections_have_bare_keys() -> None:
    assert encode_correction({0: 9}) == b'{"correctionOffsets":{0:9}}'


@pytest.mark.parametrize(
    "body",
    [b"[]", b'{"offsetTable":7}', b'{"consumeTps":[]}', b'{"offsetTable":{{"topic":1}:{}}}'],
)
def test_progress_that_is_none_is_refused(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_consume_state(body)


@pytest.mark.parametrize("body", [b'{"offsetTable":[1]}', b'{"offsetTable":{"x":1}}', b"{"])
def test_a_reset_that_is_none_is_refused(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_queue_offsets(body)
