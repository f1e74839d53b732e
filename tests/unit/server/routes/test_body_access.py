"""Access rules that read bodies: each topic and group that a body names needs its right."""

from __future__ import annotations

import json

import pytest

from rocketpost.codec.command import Command
from rocketpost.codec.headers.offset import ConsumeStats, CorrectionOffset
from rocketpost.errors import Fault
from rocketpost.server.routes import body_access
from rocketpost.server.routes.access import CREATE, GET, SUB, UPDATE, Access, Action, ResourceKind

TOPIC, GROUP = ResourceKind.TOPIC, ResourceKind.GROUP


def needs(
    access: Access, body: object = None, header: object = None
) -> list[tuple[ResourceKind, str, tuple[Action, ...]]]:
    command = Command(body=b"" if body is None else json.dumps(body).encode())
    return [tuple(need) for need in access.needs(command, header)]


def consumer(group: str, *topics: str) -> dict[str, object]:
    return {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "subscriptionDataSet": [{"topic": topic, "subString": "*"} for topic in topics],
        "unitMode": False,
    }


def test_a_heartbeat_needs_the_right_to_every_subscription_of_every_consumer() -> None:
    body = {
        "clientID": "c",
        "producerDataSet": [{"groupName": "P"}],
        "consumerDataSet": [consumer("G", "T", "%RETRY%G"), consumer("H", "T")],
    }
    assert needs(body_access.HEARTBEAT, body) == [
        (GROUP, "G", (SUB,)),
        (TOPIC, "T", (SUB,)),
        (GROUP, "H", (SUB,)),
    ]


def test_locks_need_the_group_and_the_topic_of_each_queue() -> None:
    queues = [{"topic": topic, "brokerName": "b", "queueId": 0} for topic in ("T", "U")]
    body = {"consumerGroup": "G", "clientId": "c", "mqSet": queues}
    assert needs(body_access.LOCKS, body) == [
        (GROUP, "G", (SUB,)),
        (TOPIC, "T", (SUB,)),
        (TOPIC, "U", (SUB,)),
    ]


def test_questions_of_consumers_need_topic_and_group() -> None:
    both = [(TOPIC, "T", (SUB,)), (GROUP, "G", (SUB,))]
    check = {"clientId": "c", "group": "G", "subscriptionData": {"topic": "T", "subString": "*"}}
    assert needs(body_access.CLIENT_CONFIG, check) == both
    asked = {"topic": "T", "consumerGroup": "G", "clientId": "c", "messageModel": "CLUSTERING"}
    assert needs(body_access.ASSIGNMENT, asked) == both


def test_the_mode_of_a_group_is_a_change_of_the_group() -> None:
    body = {"topic": "T", "consumerGroup": "G", "mode": "POP", "popShareQueueNum": 0}
    assert needs(body_access.REQUEST_MODE, body) == [
        (TOPIC, "T", (SUB,)),
        (GROUP, "G", (UPDATE,)),
    ]


def test_every_acknowledgement_of_a_batch_is_judged() -> None:
    acks = [
        {"c": group, "t": topic, "r": "0", "so": 0, "q": 0, "rq": 0, "pt": 0, "it": 0, "b": ""}
        for topic, group in (("T", "G"), ("U", "G"))
    ]
    assert needs(body_access.BATCH_ACK, {"brokerName": "b", "acks": acks}) == [
        (TOPIC, "T", (SUB,)),
        (GROUP, "G", (SUB,)),
        (TOPIC, "U", (SUB,)),
    ]


def test_every_topic_and_group_that_is_created_is_judged() -> None:
    topics = {"topicConfigList": [{"topicName": "T"}, {"topicName": "U"}]}
    created = [(TOPIC, "T", (CREATE,)), (TOPIC, "U", (CREATE,))]
    assert needs(body_access.CREATED_TOPICS, topics) == created
    assert needs(body_access.CREATED_GROUP, {"groupName": "G"}) == [(GROUP, "G", (CREATE,))]
    groups = {"groupConfigList": [{"groupName": "G"}, {"groupName": "H"}]}
    assert [need[1] for need in needs(body_access.CREATED_GROUPS, groups)] == ["G", "H"]


def test_several_names_in_one_field_are_judged_one_by_one() -> None:
    stats = ConsumeStats(consumer_group="G", topic="T", topic_list="U; V;")
    assert needs(body_access.LISTED_TOPICS, header=stats) == [
        (TOPIC, "T", (GET,)),
        (TOPIC, "U", (GET,)),
        (TOPIC, "V", (GET,)),
    ]
    correction = CorrectionOffset(topic="T", compare_group="G", filter_groups="H, ,J")
    assert needs(body_access.LEFT_OUT_GROUPS, header=correction) == [
        (GROUP, "H", (GET,)),
        (GROUP, "J", (GET,)),
    ]


@pytest.mark.parametrize(
    "access",
    [
        body_access.HEARTBEAT,
        body_access.LOCKS,
        body_access.CLIENT_CONFIG,
        body_access.ASSIGNMENT,
        body_access.REQUEST_MODE,
        body_access.BATCH_ACK,
        body_access.CREATED_TOPICS,
        body_access.CREATED_GROUP,
        body_access.CREATED_GROUPS,
    ],
    ids=lambda access: access.rules[0].text,
)
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff\xfe"])
def test_a_body_that_cannot_be_read_is_refused_and_never_allowed(
    access: Access, body: bytes
) -> None:
    with pytest.raises(Fault):
        access.needs(Command(body=body), None)
