from __future__ import annotations

import msgspec
import pytest

from rocketpost.codec.bodies.topic import (
    TopicList,
    TopicQueueState,
    TopicState,
    TopicTableBody,
    decode_object,
    decode_topic_changes,
    decode_topic_list,
    decode_topic_state,
    decode_topic_table,
    encode_topic_configs,
    encode_topic_state,
    encode_topic_table,
)
from rocketpost.errors import RemoteProtocolError
from rocketpost.model.changes import apply
from rocketpost.model.route import MessageQueue
from rocketpost.model.topic import DataVersion, TopicChange, TopicConfig

CONFIG = TopicConfig(topic_name="TopicA", read_queue_nums=4, write_queue_nums=4)
CONFIG_TEXT = (
    b'{"attributes":{},"order":false,"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG",'
    b'"topicName":"TopicA","topicSysFlag":0,"writeQueueNums":4}'
)
STATE_TEXT = (
    b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"TopicA"}:'
    b'{"lastUpdateTimestamp":0,"maxOffset":3,"minOffset":0}},"topicPutTps":0.0}'
)
STATE = TopicState(
    queues={MessageQueue("broker-a", 0, "TopicA"): TopicQueueState(max_offset=3)}, put_tps=0.0
)


def test_the_topic_table_is_javas_text() -> None:
    body = TopicTableBody(
        data_version=DataVersion(1, 0, 1700000000000), topic_config_table={"TopicA": CONFIG}
    )
    version = b'{"counter":1,"stateVersion":0,"timestamp":1700000000000}'
    assert encode_topic_table(body, mappings=False) == (
        b'{"dataVersion":%b,"topicConfigTable":{"TopicA":%b}}' % (version, CONFIG_TEXT)
    )
    whole = msgspec.json.decode(encode_topic_table(body))
    assert whole["topicQueueMappingDetailMap"] == whole["topicQueueMappingInfoMap"] == {}
    assert whole["mappingDataVersion"]["counter"] == 0
    assert decode_topic_table(encode_topic_table(body)) == body


def test_lists_of_topics_go_there_and_back() -> None:
    assert encode_topic_configs([CONFIG]) == b'{"topicConfigList":[%b]}' % CONFIG_TEXT
    [change] = decode_topic_changes(encode_topic_configs([CONFIG]))
    assert apply(change, TopicConfig()) == CONFIG
    assert decode_topic_changes(b'{"topicConfigList":null}') == []
    [partial] = decode_topic_changes(b'{"topicConfigList":[{"topicName":"T","perm":4}]}')
    assert partial == TopicChange(topic_name="T", perm=4)
    assert msgspec.json.encode(TopicList(topic_list=["A"])) == b'{"topicList":["A"]}'
    assert decode_topic_list(b'{"brokerAddr":"a:1","topicList":["A"]}') == TopicList(
        broker_addr="a:1", topic_list=["A"]
    )


def test_the_state_of_queues_has_object_keys() -> None:
    assert encode_topic_state(STATE) == STATE_TEXT
    assert decode_topic_state(STATE_TEXT) == STATE
    assert decode_topic_state(b"{}") == TopicState(queues={})


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b'{"offsetTable":[]}',
        b'{"offsetTable":{"not a queue":{}}}',
        b'{"offsetTable":{{"queueId":0}:{}}}',
        b'{"topicPutTps":"fast"}',
    ],
)
def test_a_state_that_is_none_is_refused(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_topic_state(body)
    with pytest.raises(RemoteProtocolError):
        decode_object(b"7")
