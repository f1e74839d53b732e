from __future__ import annotations

import pytest

from rocketpost.codec.bodies.assignment import (
    Assignment,
    Assignments,
    QueryAssignment,
    RequestMode,
    RequestModeTable,
    decode_assignments,
    decode_query,
    decode_request_mode,
    decode_request_modes,
)
from rocketpost.codec.lenient_json import encode
from rocketpost.errors import RemoteProtocolError
from rocketpost.model.route import MessageQueue


def test_a_question_as_java_writes_it() -> None:
    body = (
        b'{"clientId":"id","consumerGroup":"C","messageModel":"CLUSTERING",'
        b'"strategyName":"AVG","topic":"TopicA"}'
    )
    asked = decode_query(body)
    assert asked == QueryAssignment(client_id="id", consumer_group="C", topic="TopicA")
    assert encode(asked) == body


def test_no_answer_and_nothing_are_two_answers() -> None:
    assert encode(Assignments()) == b"{}"
    assert encode(Assignments(message_queue_assignments=[])) == b'{"messageQueueAssignments":[]}'
    assert decode_assignments(b'{"messageQueueAssignments":null}') == Assignments()
    one = Assignments(
        message_queue_assignments=[
            Assignment(message_queue=MessageQueue("b", -1, "T"), mode="POP"),
        ]
    )
    text = (
        b'{"messageQueueAssignments":[{"messageQueue":'
        b'{"brokerName":"b","queueId":-1,"topic":"T"},"mode":"POP"}]}'
    )
    assert encode(one) == text
    assert decode_assignments(text) == one


def test_a_mode_as_java_writes_it() -> None:
    body = b'{"consumerGroup":"C","mode":"POP","popShareQueueNum":8,"topic":"TopicA"}'
    mode = decode_request_mode(body)
    assert mode == RequestMode(
        consumer_group="C", mode="POP", pop_share_queue_num=8, topic="TopicA"
    )
    assert encode(mode) == body
    table = RequestModeTable({"TopicA": {"C": mode}})
    assert decode_request_modes(encode(table)) == table


def test_modes_may_be_ordinals_and_unknown_ones_are_seen() -> None:
    assert decode_request_mode(b'{"topic":"T","consumerGroup":"g","mode":1}').mode == "POP"
    assert decode_request_mode(b'{"topic":"T","consumerGroup":"g","mode":"push"}').mode == ""
    assert decode_request_mode(b'{"topic":"T","consumerGroup":"g"}').mode == "PULL"


@pytest.mark.parametrize("body", [b"", b"[]", b'{"topic":1e99}', b'{"consumerGroup":"g"}'])
def test_invalid_requests_are_refused(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_request_mode(body)
    with pytest.raises(RemoteProtocolError):
        decode_query(body)


@pytest.mark.parametrize("body", [b"[]", b'{"messageRequestModeMap":{"T":[]}}'])
def test_a_table_that_is_none_is_refused(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_request_modes(body)
