from __future__ import annotations

from collections.abc import Hashable

import pytest

from rocketpost.broker.group.membership import Client
from rocketpost.codec.bodies.offset import (
    QueueProgress,
    decode_broker_consume_state,
    decode_consume_state,
)
from rocketpost.codec.codes import RequestCode as Code
from rocketpost.codec.codes import ResponseCode
from rocketpost.model.group import parse_tags
from rocketpost.model.ids import Position
from rocketpost.model.route import MessageQueue

from .fakes import FakeConnection, FakeQueue, json_of
from .world import World

QUEUE = {"topic": "T", "queueId": "0"}
OFFSET = {"consumerGroup": "G", **QUEUE}


def mq(queue_id: int, topic: str = "T") -> MessageQueue:
    return MessageQueue("broker-a", queue_id, topic)


def subscribe(world: World, group: str, *topics: str, connection: Hashable = "connection") -> None:
    world.membership.join_consumer(
        group,
        Client(connection, "id", "10.0.0.3:1", "JAVA", 479),
        consume_type="CONSUME_PASSIVELY",
        message_model="CLUSTERING",
        consume_from_where="CONSUME_FROM_LAST_OFFSET",
        subscriptions=[parse_tags(topic, "*", version=1) for topic in topics],
    )


async def test_a_commit_is_found_again(world: World) -> None:
    world.add_topic("T")
    world.store.table["T", 0] = FakeQueue("T", range(5))
    response = await world.call(Code.UPDATE_CONSUMER_OFFSET, {**OFFSET, "commitOffset": "5"})
    assert (response.code, response.remark) == (0, None)
    response = await world.call(Code.QUERY_CONSUMER_OFFSET, OFFSET)
    assert (response.code, response.fields) == (0, {"offset": "5"})


async def test_members_do_not_wait_for_the_disk_and_administrators_do(world: World) -> None:
    world.add_topic("T")
    connection = FakeConnection()
    subscribe(world, "G", "T", connection=connection)
    world.store.table["T", 0] = FakeQueue("T", range(5))
    commit = {**OFFSET, "commitOffset": "1"}
    await world.call(Code.UPDATE_CONSUMER_OFFSET, commit, connection=connection)
    assert world.saves.count == 0
    await world.call(Code.UPDATE_CONSUMER_OFFSET, commit | {"commitOffset": "2"})
    assert world.saves.count == 1


async def test_waiting_consumers_are_notified_of_offsets_that_go_back(world: World) -> None:
    world.add_topic("T")
    world.store.table["T", 0] = FakeQueue("T", range(5))
    for offset, told in ((3, 1), (4, 1), (4, 1), (1, 2)):  # the first one counts as well
        await world.call(Code.UPDATE_CONSUMER_OFFSET, {**OFFSET, "commitOffset": str(offset)})
        assert world.back == [("T", 0)] * told
    world.back.clear()
    for queue_id, (ours, theirs) in enumerate([(4, 5), (5, 4), (4, 4), (3, None), (None, 3)]):
        if ours is not None:
            world.offsets.commit("T", "Ours", queue_id, ours)
        if theirs is not None:
            world.offsets.commit("T", "Theirs", queue_id, theirs)
    fields = {"srcGroup": "Theirs", "destGroup": "Ours", "topic": "T"}
    await world.call(Code.CLONE_GROUP_OFFSET, fields)
    assert sorted(world.back) == [("T", 1), ("T", 3), ("T", 4)]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"topic": "Unknown"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"topic": "../x"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"consumerGroup": "a@b"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"queueId": "-1"}, ResponseCode.INVALID_PARAMETER),
        ({"queueId": "99999999"}, ResponseCode.INVALID_PARAMETER),
        ({"commitOffset": "-1"}, ResponseCode.INVALID_PARAMETER),
        ({"commitOffset": "9223372036854775807"}, ResponseCode.INVALID_PARAMETER),
        ({"commitOffset": "9223372036854775808"}, ResponseCode.INVALID_PARAMETER),
        ({"commitOffset": "6"}, ResponseCode.INVALID_PARAMETER),
        ({"commitOffset": "1", "queueId": "1"}, ResponseCode.INVALID_PARAMETER),
        ({"commitOffset": ""}, ResponseCode.INVALID_PARAMETER),
    ],
)
async def test_hostile_commits_change_nothing(
    world: World, change: dict[str, str], code: int
) -> None:
    world.add_topic("T")
    world.store.table["T", 0] = FakeQueue("T", range(5))
    fields = {**OFFSET, "commitOffset": "5"} | change
    response = await world.call(Code.UPDATE_CONSUMER_OFFSET, fields)
    assert response.code == code
    assert world.offsets.groups == []


async def test_nobody_can_set_the_offsets_of_the_broker_itself(world: World) -> None:
    """Messages that are pending before them would be forgotten at the next start."""
    half, group = "RMQ_SYS_TRANS_HALF_TOPIC", "CID_RMQ_SYS_TRANS"
    world.groups.add_builtin()
    world.offsets.commit("RMQ_SYS_TRANS_HALF_TOPIC", "G", 0, 9)
    fields = {"consumerGroup": group, "topic": half, "queueId": "0", "commitOffset": "5"}
    response = await world.call(Code.UPDATE_CONSUMER_OFFSET, fields)
    assert response.code == ResponseCode.NO_PERMISSION
    fields = {"srcGroup": "G", "destGroup": group, "topic": half, "offline": "true"}
    await world.call(Code.CLONE_GROUP_OFFSET, fields)
    fields = {"topic": half, "group": group, "timestamp": "0", "isForce": "true"}
    response = await world.call(Code.INVOKE_BROKER_TO_RESET_OFFSET, fields)
    assert response.code == ResponseCode.NO_PERMISSION
    assert world.offsets.groups == ["G"]


async def test_a_group_without_offset_starts_a_young_queue_at_zero(world: World) -> None:
    code = Code.QUERY_CONSUMER_OFFSET
    world.store.table["T", 0] = FakeQueue("T", [1, 2])
    assert (await world.call(code, OFFSET)).fields == {"offset": "0"}
    no_zero = {**OFFSET, "setZeroIfNotFound": "false"}
    assert (await world.call(code, no_zero)).code == ResponseCode.QUERY_NOT_FOUND
    world.store.end_position = Position(5001)  # now its first message counts as on disk
    assert (await world.call(code, OFFSET)).code == ResponseCode.QUERY_NOT_FOUND
    world.store.table["T", 0] = FakeQueue("T", [1, 2], first=3)
    assert (await world.call(code, OFFSET)).code == ResponseCode.QUERY_NOT_FOUND


async def test_a_group_without_offset_starts_a_queue_that_never_had_a_message_at_zero(
    world: World,
) -> None:
    """Told to choose, its client would ask for the end, and skip what was stored in between."""
    code = Code.QUERY_CONSUMER_OFFSET
    assert (await world.call(code, OFFSET)).code == ResponseCode.QUERY_NOT_FOUND  # no such topic
    world.add_topic("T")
    assert (await world.call(code, OFFSET)).fields == {"offset": "0"}
    beyond = {**OFFSET, "queueId": "99"}
    assert (await world.call(code, beyond)).code == ResponseCode.QUERY_NOT_FOUND
    no_zero = {**OFFSET, "setZeroIfNotFound": "false"}
    assert (await world.call(code, no_zero)).code == ResponseCode.QUERY_NOT_FOUND
    world.store.table["T", 0] = FakeQueue("T", [])  # its first message is not visible yet
    world.store.end_position = Position(5001)
    assert (await world.call(code, OFFSET)).fields == {"offset": "0"}
    world.store.table["T", 0] = FakeQueue("T", [], first=3)  # all its messages have expired
    assert (await world.call(code, OFFSET)).code == ResponseCode.QUERY_NOT_FOUND


async def test_offsets_of_a_queue(world: World) -> None:
    world.store.table["T", 0] = FakeQueue("T", [100, 200, 300], first=5)
    cases: list[tuple[Code, dict[str, str], dict[str, str]]] = [
        (Code.GET_MAX_OFFSET, QUEUE, {"offset": "8"}),
        (Code.GET_MAX_OFFSET, {**QUEUE, "committed": "false"}, {"offset": "9"}),
        (Code.GET_MIN_OFFSET, QUEUE, {"offset": "5"}),
        (Code.GET_EARLIEST_MSG_STORETIME, QUEUE, {"timestamp": "100"}),
        (Code.SEARCH_OFFSET_BY_TIMESTAMP, {**QUEUE, "timestamp": "150"}, {"offset": "6"}),
        (
            Code.SEARCH_OFFSET_BY_TIMESTAMP,
            {**QUEUE, "timestamp": "150", "boundaryType": "UPPER"},
            {"offset": "5"},
        ),
    ]
    for code, fields, answer in cases:
        assert (await world.call(code, fields)).fields == answer
        absent = await world.call(code, fields | {"topic": "../x"})
        expected = "-1" if code == Code.GET_EARLIEST_MSG_STORETIME else "0"
        assert list(absent.fields.values()) == [expected]


async def test_progress_of_a_group(world: World) -> None:
    world.add_topic("T")
    world.add_topic("U", 1)
    world.store.table["T", 0] = FakeQueue("T", [100, 200, 300])
    world.offsets.commit("T", "G", 0, 2)
    world.offsets.note_pull("T", "G", 0, 3)
    world.offsets.commit("U", "G", 0, 1)
    world.offsets.commit("Gone", "G", 0, 1)
    whole = await world.call(Code.GET_CONSUME_STATS, {"consumerGroup": "G"})
    assert decode_consume_state(whole.body).queues == {
        mq(0): QueueProgress(broker_offset=3, consumer_offset=2, pull_offset=3, last_timestamp=200),
        mq(1): QueueProgress(),
        mq(0, "U"): QueueProgress(consumer_offset=1, pull_offset=1),
    }
    part = await world.call(Code.GET_CONSUME_STATS, {"consumerGroup": "G", "topicList": "U;"})
    assert list(decode_consume_state(part.body).queues) == [mq(0, "U")]
    subscribe(world, "G", "T")
    online = await world.call(Code.GET_CONSUME_STATS, {"consumerGroup": "G"})
    assert list(decode_consume_state(online.body).queues) == [mq(0), mq(1)]


async def test_progress_of_all_groups(world: World) -> None:
    world.add_topic("T", 1)
    world.add_topic("O", 1, order=True)
    world.store.table["T", 0] = FakeQueue("T", [100, 200, 300])
    for topic, group, offset in (("T", "G", 1), ("O", "G", 0), ("T", "H", 3), ("Gone", "H", 3)):
        world.offsets.commit(topic, group, 0, offset)
    world.offsets.note_pull("T", "G", 0, 2)
    response = await world.call(Code.GET_BROKER_CONSUME_STATS, {"isOrder": "false"})
    state = decode_broker_consume_state(response.body)
    assert [(group, len(states)) for group, states in state.groups] == [("G", 2), ("H", 1)]
    assert (state.total_diff, state.total_inflight_diff) == (2, 1)
    response = await world.call(Code.GET_BROKER_CONSUME_STATS, {"isOrder": "true"})
    state = decode_broker_consume_state(response.body)
    assert [(group, len(states)) for group, states in state.groups] == [("G", 1), ("H", 0)]


async def test_time_spans(world: World) -> None:
    world.add_topic("T")
    now_ms = world.clock.now_ms()
    world.store.table["T", 0] = FakeQueue("T", [now_ms - 900, now_ms - 500, now_ms - 100])
    fields = {"topic": "T", "group": "G"}
    world.offsets.commit("T", "G", 0, 2)
    body = json_of(await world.call(Code.QUERY_CONSUME_TIME_SPAN, fields))
    assert body == {
        "consumeTimeSpanSet": [
            {
                "consumeTimeStamp": now_ms - 500,
                "delayTime": 100,
                "maxTimeStamp": now_ms - 100,
                "messageQueue": {"brokerName": "broker-a", "queueId": 0, "topic": "T"},
                "minTimeStamp": now_ms - 900,
            }
        ]
    }
    world.offsets.commit("T", "G", 0, 3)
    body = json_of(await world.call(Code.QUERY_CONSUME_TIME_SPAN, fields))
    assert isinstance(body, dict)
    assert body["consumeTimeSpanSet"][0]["delayTime"] == 0
    missing = await world.call(Code.QUERY_CONSUME_TIME_SPAN, fields | {"topic": "U"})
    assert missing.code == ResponseCode.TOPIC_NOT_EXIST


async def test_offsets_are_cloned(world: World) -> None:
    world.add_topic("T")
    world.add_topic("U")
    for topic in ("T", "U", "Gone"):
        world.offsets.commit(topic, "G", 0, 5)
    subscribe(world, "G", "T")
    fields = {"srcGroup": "G", "destGroup": "H"}
    assert (await world.call(Code.CLONE_GROUP_OFFSET, fields)).code == 0
    assert world.offsets.topics_of("H") == ["T"]
    assert (await world.call(Code.CLONE_GROUP_OFFSET, fields | {"offline": "true"})).code == 0
    assert world.offsets.topics_of("H") == ["T", "U"]
    one = fields | {"topic": "T", "destGroup": "I"}
    assert (await world.call(Code.CLONE_GROUP_OFFSET, one)).code == 0
    assert world.offsets.topics_of("I") == ["T"]
    for change in ({"srcGroup": "a b"}, {"destGroup": "a b"}):
        assert (await world.call(Code.CLONE_GROUP_OFFSET, fields | change)).code != 0


async def test_corrections(world: World) -> None:
    for group, offset in (("A", 5), ("B", 9), ("C", 1), ("Mine", 4)):
        world.offsets.commit("T", group, 0, offset)
        world.offsets.commit("T", group, 1, 10 - offset)
    fields = {"topic": "T", "compareGroup": "Mine", "filterGroups": "C,Mine"}
    response = await world.call(Code.QUERY_CORRECTION_OFFSET, fields)
    assert response.body == b'{"correctionOffsets":{0:9223372036854775807,1:1}}'


async def test_all_offsets(world: World) -> None:
    world.offsets.commit("T", "G", 0, 5)
    response = await world.call(Code.GET_ALL_CONSUMER_OFFSET)
    assert response.body.endswith(b'"offsetTable":{"T@G":{0:5}}}')
