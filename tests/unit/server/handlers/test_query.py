from __future__ import annotations

import pytest

from rocketpost.broker.group.membership import Client
from rocketpost.codec.codes import RequestCode as Code
from rocketpost.codec.codes import ResponseCode
from rocketpost.model.group import Subscription, parse_tags
from rocketpost.model.ids import Position
from rocketpost.server.handlers import query as query_module

from .fakes import FakeQueue, json_of
from .world import World

KEY = {"topic": "T", "key": "K", "maxNum": "10", "beginTimestamp": "5", "endTimestamp": "9"}


async def test_a_message_is_seen_by_its_position(world: World) -> None:
    record = world.store.put_record(1000)
    response = await world.call(Code.VIEW_MESSAGE_BY_ID, {"offset": "1000"})
    assert (response.code, response.body) == (0, record)
    for offset in ("999", "-1", "99999999999999"):
        missing = await world.call(Code.VIEW_MESSAGE_BY_ID, {"offset": offset})
        assert missing.code == ResponseCode.SYSTEM_ERROR
    bad = await world.call(Code.VIEW_MESSAGE_BY_ID, {"offset": "first"})
    assert bad.code == ResponseCode.INVALID_PARAMETER


async def test_messages_are_found_by_key(world: World) -> None:
    records = [world.store.put_record(position) for position in (1000, 2000)]
    world.store.put_record(3000, topic="Other")
    world.store.found = [Position(each) for each in (4000, 3000, 2000, 1000)]
    response = await world.call(Code.QUERY_MESSAGE, KEY)
    assert response.body == records[1] + records[0]
    assert response.fields == {
        "indexLastUpdateTimestamp": "123",
        "indexLastUpdatePhyoffset": "456",
    }
    assert world.store.asked == [{"topic": "T", "key": "K", "max": 10, "begin": 5, "end": 9}]


@pytest.mark.parametrize(
    ("change", "count"),
    [({"_UNIQUE_KEY_QUERY": "true"}, 32), ({"maxNum": "100000"}, 64), ({"maxNum": "-1"}, 0)],
)
async def test_the_number_of_messages_is_bounded(
    world: World, change: dict[str, str], count: int
) -> None:
    response = await world.call(Code.QUERY_MESSAGE, KEY | change)
    assert response.code == ResponseCode.QUERY_NOT_FOUND
    assert world.store.asked[0]["max"] == count


async def test_the_bytes_of_an_answer_are_bounded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = world.store.put_record(2000)
    world.store.put_record(1000)
    world.store.found = [Position(2000), Position(1000)]
    monkeypatch.setattr(query_module, "BODY_BYTES_MAX", len(newest) + 1)
    assert (await world.call(Code.QUERY_MESSAGE, KEY)).body == newest


@pytest.mark.parametrize("key", ["", "x" * 40_000])
async def test_a_key_must_be_a_word(world: World, key: str) -> None:
    response = await world.call(Code.QUERY_MESSAGE, KEY | {"key": key})
    assert response.code == ResponseCode.INVALID_PARAMETER


def subscribe(world: World, subscription: Subscription) -> None:
    world.membership.join_consumer(
        "G",
        Client("connection", "id", "10.0.0.3:1", "JAVA", 479),
        consume_type="CONSUME_PASSIVELY",
        message_model="CLUSTERING",
        consume_from_where="CONSUME_FROM_LAST_OFFSET",
        subscriptions=[subscription],
    )


async def test_entries_of_a_queue_with_a_groups_verdict(world: World) -> None:
    world.add_topic("T")
    world.store.table["T", 0] = FakeQueue("T", [1, 2, 3, 4], first=5)
    one = Subscription(topic="T", sub_string="odd", code_set=frozenset({1}))
    subscribe(world, one)
    fields = {"topic": "T", "queueId": "0", "index": "0", "count": "2", "consumerGroup": "G"}
    body = json_of(await world.call(Code.QUERY_CONSUME_QUEUE, fields))
    assert isinstance(body, dict)
    assert (body["minQueueIndex"], body["maxQueueIndex"]) == (5, 9)
    assert body["queueData"] == [
        {"eval": True, "physicOffset": 5000, "physicSize": 100, "tagsCode": 1},
        {"eval": False, "physicOffset": 6000, "physicSize": 100, "tagsCode": 0},
    ]
    assert body["subscriptionData"]["subString"] == "odd"


async def test_entries_from_the_end_without_a_group(world: World) -> None:
    world.add_topic("T")
    world.store.table["T", 0] = FakeQueue("T", [1, 2, 3, 4], first=5)
    fields = {"topic": "T", "queueId": "0", "index": "-1"}
    body = json_of(await world.call(Code.QUERY_CONSUME_QUEUE, fields))
    assert isinstance(body, dict)
    assert [entry["physicOffset"] for entry in body["queueData"]] == [8000]
    assert not body["queueData"][0]["eval"]  # nobody's filter was asked
    assert "filterData" not in body
    offline = json_of(await world.call(Code.QUERY_CONSUME_QUEUE, fields | {"consumerGroup": "G"}))
    assert isinstance(offline, dict)
    assert offline["filterData"] == "G@T is not online!"
    subscribe(world, parse_tags("T", "*", version=1))
    everything = json_of(
        await world.call(Code.QUERY_CONSUME_QUEUE, fields | {"consumerGroup": "G"})
    )
    assert isinstance(everything, dict)
    assert everything["queueData"][0]["eval"]
    assert everything["filterData"] == "null"  # what Java prints of a filter by tags


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"topic": "U"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queueId": "1"}, ResponseCode.SYSTEM_ERROR),
        ({"count": "0"}, ResponseCode.INVALID_PARAMETER),
        ({"count": "1000000"}, ResponseCode.INVALID_PARAMETER),
    ],
)
async def test_entries_that_cannot_be_shown(
    world: World, change: dict[str, str], code: int
) -> None:
    world.add_topic("T")
    world.store.table["T", 0] = FakeQueue("T", [1])
    fields = {"topic": "T", "queueId": "0"} | change
    assert (await world.call(Code.QUERY_CONSUME_QUEUE, fields)).code == code
