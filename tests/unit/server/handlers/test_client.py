from __future__ import annotations

import asyncio

import msgspec
import pytest

from rocketpost.broker.filter.filters import FilterRules
from rocketpost.broker.group.membership import EXPIRY_MS
from rocketpost.codec.codes import RequestCode as Code
from rocketpost.codec.codes import ResponseCode
from rocketpost.codec.command import Command
from rocketpost.model.group import GroupConfig
from rocketpost.server.handlers import client as handlers
from rocketpost.testing.virtual_time import in_virtual_time
from rocketpost.testing.waiting import until

from .fakes import NOTIFY, FakeConnection, json_of
from .world import World


def heartbeat(
    client_id: str = "id-1",
    *,
    group: str = "G",
    producer: str = "P",
    topics: tuple[str, ...] = ("T",),
    **members: object,
) -> bytes:
    consumer = {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": members.pop("model", "CLUSTERING"),
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "subscriptionDataSet": [
            {"topic": topic, "subString": "*", "subVersion": 1} for topic in topics
        ],
        "unitMode": False,
    }
    body = {
        "clientID": client_id,
        "consumerDataSet": [consumer],
        "producerDataSet": [{"groupName": producer}],
    }
    return msgspec.json.encode(body | members)


def told(connection: FakeConnection) -> int:
    """Return how often the connection was told that a group changed, and forget it."""
    assert all(
        code == NOTIFY and fields == {"consumerGroup": "G"} for code, fields in connection.oneways
    )
    count = len(connection.oneways)
    connection.oneways.clear()
    return count


async def join(
    world: World, connection: FakeConnection, body: bytes, version: int = 479
) -> Command:
    return await world.call(Code.HEART_BEAT, body=body, connection=connection, version=version)


async def two_members(world: World) -> tuple[FakeConnection, FakeConnection]:
    """Return the connections of two members of a group, who know of each other."""
    first, second = FakeConnection("10.0.0.3:1"), FakeConnection("10.0.0.4:1")
    await join(world, first, heartbeat("id-1"))
    await join(world, second, heartbeat("id-2"))
    told(first), told(second)
    return first, second


async def leave(world: World, connection: FakeConnection, **groups: str) -> Command:
    fields = {"clientID": "id-1", "producerGroup": ""} | groups
    return await world.call(Code.UNREGISTER_CLIENT, fields, connection=connection)


async def test_the_first_heartbeat_makes_group_and_retry_topic(world: World) -> None:
    response = await join(world, FakeConnection(), heartbeat())
    assert response.code == 0
    assert response.fields == {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"}
    assert world.groups.find("G") is not None
    retry = world.topics.require("%RETRY%G")
    assert (retry.write_queue_nums, retry.perm) == (1, 6)


async def test_every_member_is_notified_of_a_change_once(world: World) -> None:
    first, second = FakeConnection("10.0.0.3:1"), FakeConnection("10.0.0.4:1")
    await join(world, first, heartbeat("id-1"))
    assert told(first) == 1
    await join(world, first, heartbeat("id-1"))
    assert told(first) == 0
    await join(world, second, heartbeat("id-2"))
    assert (told(first), told(second)) == (1, 1)
    world.clients.connection_lost(second)  # type: ignore[arg-type]
    assert (told(first), told(second)) == (1, 0)


async def test_nobody_is_notified_if_notices_are_off(world: World) -> None:
    first = FakeConnection()
    await join(world, first, heartbeat("id-1", model="BROADCASTING"))
    assert told(first) == 0
    world.notifies = False
    await join(world, first, heartbeat("id-1", model="CLUSTERING", topics=("T", "U")))
    assert told(first) == 0
    world.notifies = True
    config = world.groups.require("G")
    world.groups.update(msgspec.structs.replace(config, notify_consumer_ids_changed_enable=False))
    await join(world, first, heartbeat("id-1"))
    assert told(first) == 0


async def test_a_closed_connection_is_not_notified(world: World) -> None:
    first, second = FakeConnection("10.0.0.3:1"), FakeConnection("10.0.0.4:1")
    await join(world, first, heartbeat("id-1"))
    told(first)
    first.is_open = False
    await join(world, second, heartbeat("id-2"))
    assert (told(first), told(second)) == (0, 1)


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b"[1]", heartbeat(""), heartbeat(" "), heartbeat("x" * 1025)],
)
async def test_hostile_heartbeats_change_nothing(world: World, body: bytes) -> None:
    response = await join(world, FakeConnection(), body)
    assert response.code == ResponseCode.INVALID_PARAMETER
    assert not world.membership.consumers
    assert not world.membership.producers
    assert not world.groups.configs


async def test_groups_with_illegal_names_are_skipped(world: World) -> None:
    response = await join(world, FakeConnection(), heartbeat(group="../G", producer="a b"))
    assert response.code == 0
    assert not world.membership.consumers
    assert not world.membership.producers
    assert world.topics.find("%RETRY%../G") is None


async def test_a_group_that_may_not_be_created_is_reported(world: World) -> None:
    world.groups.auto_create = False
    world.groups.update(GroupConfig(group_name="H"))
    twice = msgspec.json.decode(heartbeat())
    twice["consumerDataSet"] += msgspec.json.decode(heartbeat(group="H"))["consumerDataSet"]
    answered = await join(world, FakeConnection(), msgspec.json.encode(twice))
    assert answered.code == 0
    missing = "the group 'G' does not exist on this broker; create it with mqadmin updateSubGroup"
    assert (answered.remark or "").startswith(missing)
    assert list(world.membership.consumers) == ["H"]
    listed = await world.call(Code.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "G"})
    assert listed.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert (listed.remark or "").startswith(missing)


async def test_fingerprints_save_subscriptions(world: World) -> None:
    connection = FakeConnection()
    full = heartbeat(heartbeatFingerprint=7)
    short = heartbeat(topics=(), heartbeatFingerprint=7, withoutSub=True)
    assert (await join(world, connection, short)).fields["IS_SUB_CHANGE"] == "true"
    assert (await join(world, connection, full)).fields["IS_SUB_CHANGE"] == "false"
    assert (await join(world, connection, short)).fields["IS_SUB_CHANGE"] == "false"
    assert world.membership.subscription("G", "T") is not None


async def test_a_client_takes_its_leave(world: World) -> None:
    first, second = await two_members(world)
    assert (await leave(world, first, consumerGroup="G")).code == 0
    assert list(world.membership.consumers["G"].members) == [second]
    await leave(world, first, producerGroup="P")
    assert list(world.membership.producers["P"]) == [second]


@in_virtual_time
async def test_the_offsets_of_who_leaves_may_come_after_its_leave(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = await two_members(world)
    await leave(world, first, consumerGroup="G")
    assert (told(first), told(second)) == (0, 0)
    world.clients.connection_lost(first)  # type: ignore[arg-type]
    assert (told(first), told(second)) == (0, 1)
    # Nothing is left of it: this ends later than a timer of the leave would.
    await asyncio.sleep(handlers.LEAVE_SECONDS)
    assert (told(first), told(second)) == (0, 0)
    assert not caplog.records


@in_virtual_time
async def test_who_leaves_and_stays_connected_is_not_waited_for(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = await two_members(world)
    await leave(world, first, consumerGroup="G")
    await join(world, first, heartbeat("id-1"))
    told(first), told(second)
    await leave(world, first, consumerGroup="G")
    await until(lambda: told(second))
    world.clients.connection_lost(first)  # type: ignore[arg-type]
    assert told(second) == 0
    assert not caplog.records


async def test_silent_clients_are_closed_and_the_others_are_notified(world: World) -> None:
    first, second = FakeConnection("10.0.0.3:1"), FakeConnection("10.0.0.4:1")
    await join(world, first, heartbeat("id-1"))
    world.clock.advance(EXPIRY_MS)
    await join(world, second, heartbeat("id-2"))
    told(first), told(second)
    world.clock.advance(1)
    world.clients.expire()
    assert not first.is_open
    assert second.is_open
    assert (told(first), told(second)) == (0, 1)


async def test_members_are_listed(world: World) -> None:
    fields = {"consumerGroup": "G"}
    assert (await world.call(Code.GET_CONSUMER_LIST_BY_GROUP, fields)).code == 1
    offline = await world.call(Code.GET_CONSUMER_CONNECTION_LIST, fields)
    assert offline.code == ResponseCode.CONSUMER_NOT_ONLINE
    await join(world, FakeConnection("10.0.0.4:1"), heartbeat("id-2"))
    await join(world, FakeConnection("10.0.0.3:1"), heartbeat("id-1"))
    ids = await world.call(Code.GET_CONSUMER_LIST_BY_GROUP, fields)
    assert ids.body == b'{"consumerIdList":["id-1","id-2"]}'
    body = json_of(await world.call(Code.GET_CONSUMER_CONNECTION_LIST, fields))
    assert isinstance(body, dict)
    assert body["connectionSet"][0] == {
        "clientAddr": "10.0.0.4:1",
        "clientId": "id-2",
        "language": "JAVA",
        "version": 479,
    }
    assert body["messageModel"] == "CLUSTERING"
    assert list(body["subscriptionTable"]) == ["T"]


async def test_producers_are_listed(world: World) -> None:
    fields = {"producerGroup": "P"}
    assert (await world.call(Code.GET_PRODUCER_CONNECTION_LIST, fields)).code == 1
    await join(world, FakeConnection("10.0.0.3:1"), heartbeat("id-1"))
    one = json_of(await world.call(Code.GET_PRODUCER_CONNECTION_LIST, fields))
    assert isinstance(one, dict)
    assert [each["clientId"] for each in one["connectionSet"]] == ["id-1"]
    everyone = json_of(await world.call(Code.GET_ALL_PRODUCER_INFO))
    assert isinstance(everyone, dict)
    assert everyone["data"]["P"][0]["remoteIP"] == "/10.0.0.3:1"


async def test_a_filter_is_checked_before_anybody_subscribes(world: World) -> None:
    async def check(kind: str, text: str) -> tuple[int, str]:
        subscription = {"topic": "T", "subString": text, "expressionType": kind}
        body = {"clientId": "id", "group": "G", "subscriptionData": subscription}
        response = await world.call(Code.CHECK_CLIENT_CONFIG, body=msgspec.json.encode(body))
        return response.code, response.remark or ""

    assert await check("TAG", "A") == (0, "")
    assert await check("SQL92", "a > 5") == (0, "")
    code, remark = await check("SQL92", "a >")
    assert code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert "at character 4" in remark
    code, remark = await check("XPATH", "a")
    assert code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    world.filters.rules = FilterRules(enabled=False)
    code, remark = await check("SQL92", "a > 5")
    assert code == ResponseCode.SYSTEM_ERROR
    assert "enablePropertyFilter" in remark


async def test_filters_live_and_die_with_their_group(world: World) -> None:
    connection = FakeConnection("10.0.0.3:1")
    body = heartbeat("id-1")
    consumer = {
        "groupName": "G",
        "subscriptionDataSet": [
            {"topic": "T", "subString": "a > 5", "expressionType": "SQL92", "subVersion": 7}
        ],
    }
    plain = msgspec.json.decode(body) | {"consumerDataSet": [consumer]}
    await join(world, connection, msgspec.json.encode(plain))
    data = world.filters.table.find("T", "G")
    assert data is not None
    assert (data.expression, data.client_version, data.dead_time) == ("a > 5", 7, 0)
    world.clients.connection_lost(connection)  # type: ignore[arg-type]
    data = world.filters.table.find("T", "G")
    assert data is not None
    assert data.dead_time == world.clock.now_ms()


def locking(client_id: str, *queues: tuple[str, int], group: str = "G") -> bytes:
    return msgspec.json.encode(
        {
            "clientId": client_id,
            "consumerGroup": group,
            "mqSet": [
                {"brokerName": "broker-a", "queueId": queue_id, "topic": topic}
                for topic, queue_id in queues
            ],
        }
    )


async def test_locks_are_for_queues_that_exist(world: World) -> None:
    world.add_topic("T", 2)
    body = locking("a", ("T", 0), ("T", 2), ("T", -1), ("U", 0))
    held = json_of(await world.call(Code.LOCK_BATCH_MQ, body=body))
    assert held == {"lockOKMQSet": [{"brokerName": "broker-a", "queueId": 0, "topic": "T"}]}
    other = json_of(await world.call(Code.LOCK_BATCH_MQ, body=locking("b", ("T", 0))))
    assert other == {"lockOKMQSet": []}
    freed = await world.call(Code.UNLOCK_BATCH_MQ, body=locking("a", ("T", 0)))
    assert (freed.code, freed.body) == (0, b"")
    mine = json_of(await world.call(Code.LOCK_BATCH_MQ, body=locking("b", ("T", 0))))
    assert mine == held
    for bad in (b"", locking("a", group="no good")):
        response = await world.call(Code.LOCK_BATCH_MQ, body=bad)
        assert response.code == ResponseCode.INVALID_PARAMETER
