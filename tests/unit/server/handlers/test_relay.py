"""Requests that the broker passes on to a client."""

from __future__ import annotations

import pytest

from rocketpost.codec.codes import RequestCode as Code
from rocketpost.codec.codes import ResponseCode
from rocketpost.codec.command import Command
from rocketpost.codec.record import message_id, pack_host
from rocketpost.errors import ConnectionLost
from rocketpost.server.handlers.relay import RELAYS_MAX

from .fakes import TIMED_OUT, FakeConnection
from .test_client import heartbeat, join
from .world import World


async def test_questions_are_passed_on_to_a_client(world: World) -> None:
    client = FakeConnection()
    await join(world, client, heartbeat("id-1"))
    client.client_answer = Command(0, text_fields={"a": "b"}, body=b"{{}:1}", remark="fine")
    fields = {"consumerGroup": "G", "clientId": "id-1", "jstackEnable": "true"}
    response = await world.call(Code.GET_CONSUMER_RUNNING_INFO, fields)
    assert (response.code, response.fields, response.body) == (0, {"a": "b"}, b"{{}:1}")
    assert response.remark == "fine"
    assert client.requests == [(Code.GET_CONSUMER_RUNNING_INFO, fields, b"")]


async def test_clients_that_cannot_be_asked(world: World) -> None:
    fields = {"consumerGroup": "G", "clientId": "id-1"}
    code = Code.GET_CONSUMER_RUNNING_INFO
    assert (await world.call(code, fields)).code == ResponseCode.SYSTEM_ERROR
    client = FakeConnection()
    await join(world, client, heartbeat("id-1"))
    client.client_answer = TIMED_OUT
    assert (await world.call(code, fields)).code == ResponseCode.CONSUME_MSG_TIMEOUT
    client.client_answer = ConnectionLost("gone")
    assert (await world.call(code, fields)).code == ResponseCode.SYSTEM_ERROR
    old = FakeConnection()
    await join(world, old, heartbeat("id-old"), version=61)
    refused = await world.call(code, fields | {"clientId": "id-old"})
    assert (refused.code, old.requests) == (ResponseCode.SYSTEM_ERROR, [])


async def test_a_stored_message_is_consumed_by_a_chosen_client(world: World) -> None:
    client = FakeConnection()
    await join(world, client, heartbeat("id-1"))
    world.add_topic("T", topic_sys_flag=1)
    record = world.store.put_record(1000, topic="T")
    identity = message_id(pack_host("10.0.0.1", 10911), 1000)
    fields = {"consumerGroup": "G", "clientId": "id-1", "msgId": identity}
    response = await world.call(Code.CONSUME_MESSAGE_DIRECTLY, fields)
    assert response.body == b'{"from":"client"}'
    ((code, sent, body),) = client.requests
    assert (code, body) == (Code.CONSUME_MESSAGE_DIRECTLY, record)
    assert sent == fields | {
        "brokerName": "broker-a",
        "topic": "T",
        "topicSysFlag": "1",
        "groupSysFlag": "0",
    }


@pytest.mark.parametrize(
    ("identity", "code"),
    [
        ("nonsense", ResponseCode.INVALID_PARAMETER),
        (message_id(pack_host("10.0.0.1", 10911), 7), ResponseCode.SYSTEM_ERROR),
        ("0A00000100002A9FFFFFFFFFFFFFFFFF", ResponseCode.SYSTEM_ERROR),
    ],
)
async def test_a_message_that_is_not_there_is_not_passed_on(
    world: World, identity: str, code: int
) -> None:
    client = FakeConnection()
    await join(world, client, heartbeat("id-1"))
    fields = {"consumerGroup": "G", "clientId": "id-1", "msgId": identity}
    response = await world.call(Code.CONSUME_MESSAGE_DIRECTLY, fields)
    assert response.code == code
    assert client.requests == []


async def test_a_client_that_answers_nothing_is_asked_no_more(world: World) -> None:
    silent = FakeConnection()
    await join(world, silent, heartbeat("id-1"))
    silent.unanswered_count = RELAYS_MAX
    answer = await world.call(
        Code.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "G", "clientId": "id-1"}
    )
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert silent.requests == []
