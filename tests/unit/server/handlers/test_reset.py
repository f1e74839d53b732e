from __future__ import annotations

import pytest

from rocketpost.broker.group.membership import Client
from rocketpost.codec.bodies.offset import (
    decode_member_offsets,
    decode_queue_offsets,
    encode_client_offsets,
)
from rocketpost.codec.codes import RequestCode as Code
from rocketpost.codec.codes import ResponseCode
from rocketpost.codec.command import Command
from rocketpost.model.group import parse_tags
from rocketpost.model.route import MessageQueue

from .fakes import TIMED_OUT, FakeConnection, FakeQueue
from .world import World

OFFSET = {"consumerGroup": "G", "topic": "T", "queueId": "0"}
RESET = {"topic": "T", "group": "G", "timestamp": "150", "isForce": "true"}


def mq(queue_id: int, topic: str = "T") -> MessageQueue:
    return MessageQueue("broker-a", queue_id, topic)


def prepare(world: World, *, offsets: tuple[int, ...] = ()) -> None:
    world.add_topic("T")
    world.groups.find_or_create("G")
    world.store.table["T", 0] = FakeQueue("T", [100, 200, 300])
    for queue_id, offset in enumerate(offsets):
        world.offsets.commit("T", "G", queue_id, offset)


def join(
    world: World, client_id: str, *, language: str = "JAVA", version: int = 479
) -> FakeConnection:
    connection = FakeConnection()
    world.membership.join_consumer(
        "G",
        Client(connection, client_id, "10.0.0.3:1", language, version),
        consume_type="CONSUME_PASSIVELY",
        message_model="CLUSTERING",
        consume_from_where="CONSUME_FROM_LAST_OFFSET",
        subscriptions=[parse_tags("T", "*", version=1)],
    )
    return connection


async def test_a_reset_by_time_works_offline_and_beats_late_commits(world: World) -> None:
    world.add_topic("T")
    world.groups.find_or_create("G")
    world.store.table["T", 0] = FakeQueue("T", [100, 200, 300])
    fields = {"topic": "T", "group": "G", "timestamp": "150", "isForce": "true"}
    response = await world.call(Code.INVOKE_BROKER_TO_RESET_OFFSET, fields)
    assert decode_queue_offsets(response.body) == {mq(0): 1, mq(1): 0}
    late = await world.call(Code.UPDATE_CONSUMER_OFFSET, {**OFFSET, "commitOffset": "3"})
    assert (late.code, late.remark) == (0, "offset has been reset, the commit is ignored")
    assert world.offsets.take_reset("T", "G", 0) == 1
    latest = await world.call(Code.INVOKE_BROKER_TO_RESET_OFFSET, fields | {"timestamp": "-1"})
    assert decode_queue_offsets(latest.body)[mq(0)] == 3


async def test_a_reset_of_one_queue_to_an_offset(world: World) -> None:
    world.add_topic("T")
    world.groups.find_or_create("G")
    world.store.table["T", 0] = FakeQueue("T", [100, 200, 300], first=5)
    fields = {"topic": "T", "group": "G", "timestamp": "0", "queueId": "0", "offset": "7"}
    response = await world.call(Code.INVOKE_BROKER_TO_RESET_OFFSET, fields)
    assert decode_queue_offsets(response.body) == {mq(0): 7}
    by_time = await world.call(Code.INVOKE_BROKER_TO_RESET_OFFSET, fields | {"offset": "-1"})
    assert decode_queue_offsets(by_time.body) == {mq(0): 5}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"topic": "U"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"group": "H"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"queueId": "9"}, ResponseCode.INVALID_PARAMETER),
        ({"offset": "4"}, ResponseCode.SYSTEM_ERROR),
        ({"offset": "10"}, ResponseCode.SYSTEM_ERROR),
        ({"timestamp": "yesterday"}, ResponseCode.INVALID_PARAMETER),
    ],
)
async def test_hostile_resets_change_nothing(
    world: World, change: dict[str, str], code: int
) -> None:
    world.add_topic("T")
    world.groups.find_or_create("G")
    world.store.table["T", 0] = FakeQueue("T", [100, 200, 300], first=5)
    fields = {"topic": "T", "group": "G", "timestamp": "0", "queueId": "0"}
    response = await world.call(Code.INVOKE_BROKER_TO_RESET_OFFSET, fields | change)
    assert response.code == code
    assert world.offsets.groups == []


async def test_without_force_a_group_is_only_set_back(world: World) -> None:
    prepare(world, offsets=(2, 0))
    gentle = RESET | {"isForce": "false"}
    ahead = await world.call(Code.INVOKE_BROKER_TO_RESET_OFFSET, gentle | {"timestamp": "-1"})
    assert decode_queue_offsets(ahead.body) == {mq(0): 2, mq(1): 0}
    assert world.offsets.take_reset("T", "G", 0) is None
    back = await world.call(Code.INVOKE_BROKER_TO_RESET_OFFSET, gentle)
    assert decode_queue_offsets(back.body) == {mq(0): 1, mq(1): 0}
    assert world.offsets.row("T", "G") == {0: 1, 1: 0}


async def test_members_are_notified_if_the_broker_leaves_resets_to_them(world: World) -> None:
    prepare(world, offsets=(3,))  # the other queue is empty, nobody ever committed there
    world.server_side_reset = False
    java, cpp = join(world, "java"), join(world, "cpp", language="CPP")
    response = await world.call(Code.INVOKE_BROKER_TO_RESET_OFFSET, RESET | {"isForce": "false"})
    assert decode_queue_offsets(response.body) == {mq(0): 1}
    assert world.offsets.row("T", "G") == {0: 3}  # the members will see to it
    for connection in (java, cpp):
        [(code, fields)] = connection.oneways
        assert code == Code.RESET_CONSUMER_CLIENT_OFFSET
        assert fields | {"timestamp": "150"} == fields
        [body] = connection.oneway_bodies
        assert decode_queue_offsets(body) == {mq(0): 1}
    assert java.oneway_bodies[0].startswith(b'{"offsetTable":{{')
    assert cpp.oneway_bodies[0].startswith(b'{"offsetTable":[{')


async def test_members_that_need_not_move_are_left_alone(world: World) -> None:
    prepare(world, offsets=(0, 0))
    world.server_side_reset = False
    member = join(world, "java")
    response = await world.call(Code.INVOKE_BROKER_TO_RESET_OFFSET, RESET | {"isForce": "false"})
    assert decode_queue_offsets(response.body) == {mq(0): 0, mq(1): 0}
    assert member.oneways == []


async def test_a_member_that_is_lost_meanwhile_does_not_stop_the_notices(world: World) -> None:
    prepare(world, offsets=(3, 0))
    world.server_side_reset = False
    gone, there = join(world, "gone"), join(world, "there")
    gone.is_open = False
    assert (await world.call(Code.INVOKE_BROKER_TO_RESET_OFFSET, RESET)).code == 0
    assert len(there.oneways) == 1


async def test_resets_that_members_cannot_do_are_refused(world: World) -> None:
    prepare(world, offsets=(3, 0))
    world.server_side_reset = False
    code = Code.INVOKE_BROKER_TO_RESET_OFFSET
    assert (await world.call(code, RESET)).code == ResponseCode.CONSUMER_NOT_ONLINE
    world.add_topic("Fresh")
    world.store.table["Fresh", 0] = FakeQueue("Fresh", [100])
    never = await world.call(code, RESET | {"topic": "Fresh"})
    assert never.code == ResponseCode.SYSTEM_ERROR
    assert "has no offset in queue 0" in (never.remark or "")
    join(world, "ancient", version=20)
    old = await world.call(code, RESET)
    assert (old.code, "too old" in (old.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)


async def test_members_tell_their_offsets(world: World) -> None:
    prepare(world)
    code, fields = Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"topic": "T", "group": "G"}
    assert (await world.call(code, fields)).code == ResponseCode.SYSTEM_ERROR
    one, two, mute = (join(world, name) for name in ("one", "two", "mute"))
    one.client_answer = Command(0, body=encode_client_offsets({mq(0): 7}))
    two.client_answer = Command(1, body=b"", remark="not I")
    mute.client_answer = TIMED_OUT
    told = await world.call(code, fields)
    assert decode_member_offsets(told.body) == {"one": {mq(0): 7}}
    assert one.requests == [
        (Code.GET_CONSUMER_STATUS_FROM_CLIENT, {**fields, "clientAddr": ""}, b"")
    ]
    only = await world.call(code, fields | {"clientAddr": "one"})
    assert list(decode_member_offsets(only.body)) == ["one"]
    assert len(two.requests) == 1
    nobody = await world.call(code, fields | {"clientAddr": "three"})
    assert nobody.remark == "no consumer three of the group G is online"
