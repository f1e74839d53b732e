from __future__ import annotations

import msgspec
import pytest

from rocketpost.codec.bodies.client import (
    ConnectionData,
    ConsumerConnections,
    ConsumerData,
    ConsumerIds,
    Heartbeat,
    LockResponse,
    ProducerData,
    ProducerInfo,
    ProducerTableBody,
    decode_client_config_check,
    decode_heartbeat,
    decode_lock_request,
    encode_heartbeat,
)
from rocketpost.errors import RemoteProtocolError
from rocketpost.model.group import parse_tags
from rocketpost.model.route import MessageQueue

# The text of the Java class, run with fastjson 1.2.83.
JAVA = (
    b'{"clientID":"10.0.0.3@4711#123","consumerDataSet":[{"consumeFromWhere":'
    b'"CONSUME_FROM_LAST_OFFSET","consumeType":"CONSUME_PASSIVELY","groupName":"C",'
    b'"messageModel":"CLUSTERING","subscriptionDataSet":[{"classFilterMode":false,'
    b'"codeSet":[2598919,2598920],"expressionType":"TAG","subString":"TagA || TagB",'
    b'"subVersion":1700000000000,"tagsSet":["TagA","TagB"],"topic":"TopicA"}],"unitMode":false}],'
    b'"heartbeatFingerprint":0,"producerDataSet":[{"groupName":"P"}],"withoutSub":false}'
)


def test_javas_heartbeat() -> None:
    assert decode_heartbeat(JAVA) == Heartbeat(
        client_id="10.0.0.3@4711#123",
        consumer_data_set=[
            ConsumerData(
                group_name="C",
                subscription_data_set=[parse_tags("TopicA", "TagA || TagB", version=1700000000000)],
            )
        ],
        producer_data_set=[ProducerData(group_name="P")],
    )


def test_a_heartbeat_of_ours_has_javas_members_in_javas_order() -> None:
    ours = msgspec.json.decode(encode_heartbeat(decode_heartbeat(JAVA)))
    java = msgspec.json.decode(JAVA)
    for heartbeat in (ours, java):
        subscription = heartbeat["consumerDataSet"][0]["subscriptionDataSet"][0]
        subscription["codeSet"].sort()
        subscription["tagsSet"].sort()
    assert msgspec.json.encode(ours) == msgspec.json.encode(java)


def test_cpp_writes_ordinals_and_leaves_sets_out() -> None:
    heartbeat = decode_heartbeat(
        b'{"clientID":"c","consumerDataSet":[{"groupName":"C","consumeType":0,"messageModel":0,'
        b'"consumeFromWhere":4,"subscriptionDataSet":[{"topic":"T","subString":"A",'
        b'"subVersion":"17"}]}]}'
    )
    (consumer,) = heartbeat.consumer_data_set
    assert heartbeat.producer_data_set == []
    assert consumer.consume_type == "CONSUME_ACTIVELY"
    assert consumer.message_model == "BROADCASTING"
    assert consumer.consume_from_where == "CONSUME_FROM_FIRST_OFFSET"
    assert consumer.subscription_data_set == [parse_tags("T", "A", version=17)]


def test_go_quotes_codes_and_spells_enums_its_own_way() -> None:
    heartbeat = decode_heartbeat(
        b'{"clientID":"c","producerDataSet":null,"consumerDataSet":[{"groupName":"C",'
        b'"consumeType":"CONSUME_PASSIVELY","messageModel":"Clustering","consumeFromWhere":'
        b'"odd","subscriptionDataSet":[{"topic":"T","subString":"*","codeSet":["42"],"tagsSet":null,'
        b'"expressionType":"","classFilterMode":false}]}]}'
    )
    (consumer,) = heartbeat.consumer_data_set
    assert consumer.message_model == "CLUSTERING"
    assert consumer.consume_from_where == "CONSUME_FROM_LAST_OFFSET"
    assert consumer.subscription_data_set[0].takes_all


def test_other_expressions_are_kept_as_they_are() -> None:
    check = decode_client_config_check(
        b'{"clientId":"c","group":"G","namespace":null,"subscriptionData":{"topic":"T",'
        b'"subString":"a > 1","expressionType":"SQL92","subVersion":3}}'
    )
    assert (check.client_id, check.group, check.namespace) == ("c", "G", "")
    assert not check.subscription_data.is_tag
    assert check.subscription_data.sub_string == "a > 1"


def test_a_class_filter_is_remembered() -> None:
    check = decode_client_config_check(
        b'{"subscriptionData":{"topic":"T","subString":"x","classFilterMode":true}}'
    )
    assert check.subscription_data.class_filter_mode


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"null",
        b'{"clientID":7,"consumerDataSet":{}}',
        b'{"clientID":"c","consumerDataSet":[{}]}',
        b'{"clientID":"c","consumerDataSet":[{"groupName":"C","subscriptionDataSet":[{}]}]}',
        b'{"clientID":"c","producerDataSet":["P"]}',
    ],
)
def test_a_heartbeat_that_is_none_is_refused(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_heartbeat(body)


@pytest.mark.parametrize("body", [b"{}", b"[]", b'{"subscriptionData":7}', b'{"group":[]}'])
def test_a_check_that_is_none_is_refused(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_client_config_check(body)


def test_locks() -> None:
    request = decode_lock_request(
        b'{"clientId":"c","consumerGroup":"C","mqSet":[{"brokerName":"b","queueId":1,"topic":"T"}],'
        b'"onlyThisBroker":false}'
    )
    assert request.mq_set == [MessageQueue("b", 1, "T")]
    assert msgspec.json.encode(LockResponse(request.mq_set)) == (
        b'{"lockOKMQSet":[{"brokerName":"b","queueId":1,"topic":"T"}]}'
    )


def test_answers_are_javas_texts() -> None:
    assert msgspec.json.encode(ConsumerIds(["id1"])) == b'{"consumerIdList":["id1"]}'
    connection = ConnectionData(
        client_addr="10.0.0.3:40000", client_id="id", language="JAVA", version=479
    )
    assert msgspec.json.encode(ConsumerConnections(connection_set=[connection])) == (
        b'{"connectionSet":[{"clientAddr":"10.0.0.3:40000","clientId":"id","language":"JAVA",'
        b'"version":479}],"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET","consumeType":'
        b'"CONSUME_PASSIVELY","messageModel":"CLUSTERING","subscriptionTable":{}}'
    )
    info = ProducerInfo(
        client_id="id", language="JAVA", last_update_timestamp=1, remote_ip="10.0.0.3", version=479
    )
    assert msgspec.json.encode(ProducerTableBody({"P": [info]})) == (
        b'{"data":{"P":[{"clientId":"id","language":"JAVA","lastUpdateTimestamp":1,'
        b'"remoteIP":"10.0.0.3","version":479}]}}'
    )
