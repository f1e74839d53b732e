from __future__ import annotations

import asyncio

import msgspec
import pytest

from rocketpost.broker import topic as topic_table
from rocketpost.codec.bodies.topic import TopicQueueState, decode_topic_state, encode_topic_configs
from rocketpost.codec.codes import RequestCode as Code
from rocketpost.codec.codes import ResponseCode
from rocketpost.errors import StoreFull
from rocketpost.model.route import MessageQueue
from rocketpost.model.topic import TopicConfig

from .fakes import FakeQueue, json_of
from .world import World


def create(topic: str = "Orders", **changes: str) -> dict[str, str]:
    return {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": "4",
        "writeQueueNums": "4",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    } | changes


async def test_a_topic_is_acknowledged_when_it_is_on_disk(world: World) -> None:
    fields = create(attributes="+message.type=FIFO")
    response = await world.call(Code.UPDATE_AND_CREATE_TOPIC, fields)
    assert (response.code, response.remark) == (0, None)
    assert world.saves.count == 1
    config = world.topics.require("Orders")
    assert (config.read_queue_nums, config.attributes) == (4, {"message.type": "FIFO"})


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"topic": "../../etc/passwd"}, ResponseCode.INVALID_PARAMETER),
        ({"topic": ""}, ResponseCode.INVALID_PARAMETER),
        ({"topic": "SELF_TEST_TOPIC"}, ResponseCode.INVALID_PARAMETER),
        ({"readQueueNums": "many"}, ResponseCode.INVALID_PARAMETER),
        ({"readQueueNums": "0"}, ResponseCode.INVALID_PARAMETER),
        ({"writeQueueNums": "999999999999"}, ResponseCode.INVALID_PARAMETER),
        ({"perm": "64"}, ResponseCode.INVALID_PARAMETER),
        ({"attributes": "+nonsense=1"}, ResponseCode.SYSTEM_ERROR),
    ],
)
async def test_hostile_topics_change_nothing(
    world: World, changes: dict[str, str], code: int
) -> None:
    before = dict(world.topics.configs)
    response = await world.call(Code.UPDATE_AND_CREATE_TOPIC, create(**changes))
    assert response.code == code
    assert response.remark
    assert world.topics.configs == before
    assert world.saves.count == 0


async def test_shrinking_in_order_is_done_and_out_of_order_is_refused(world: World) -> None:
    await world.call(Code.UPDATE_AND_CREATE_TOPIC, create())
    world.store.table["Orders", 3] = FakeQueue("Orders", [1, 2, 3])
    world.offsets.commit("Orders", "G", 3, 1)
    lower = await world.call(Code.UPDATE_AND_CREATE_TOPIC, create(writeQueueNums="2"))
    assert (lower.code, lower.remark) == (0, None)
    small = create(writeQueueNums="2", readQueueNums="2")
    early = await world.call(Code.UPDATE_AND_CREATE_TOPIC, small)
    assert early.code == ResponseCode.ILLEGAL_OPERATION
    assert "messages in queue 3 have not been consumed by G (2)" in (early.remark or "")
    assert "--yes" in (early.remark or "")
    assert world.topics.require("Orders").read_queue_nums == 4
    world.offsets.commit("Orders", "G", 3, 3)
    drained = await world.call(Code.UPDATE_AND_CREATE_TOPIC, small)
    assert (drained.code, drained.remark) == (0, None)


async def test_a_shrink_that_hides_messages_can_be_forced(world: World) -> None:
    await world.call(Code.UPDATE_AND_CREATE_TOPIC, create())
    world.store.table["Orders", 3] = FakeQueue("Orders", [1, 2, 3])
    small = create(writeQueueNums="2", readQueueNums="2")
    refused = await world.call(Code.UPDATE_AND_CREATE_TOPIC, small)
    assert "no group has read the 3 messages in queue 3" in (refused.remark or "")
    body = encode_topic_configs([TopicConfig(topic_name="Orders", read_queue_nums=2)])
    listed = await world.call(Code.UPDATE_AND_CREATE_TOPIC_LIST, body=body)
    assert listed.code == ResponseCode.ILLEGAL_OPERATION
    forced = await world.call(Code.UPDATE_AND_CREATE_TOPIC, small | {"force": "true"})
    assert forced.code == 0
    assert "no group has read the 3 messages" in (forced.remark or "")
    assert world.topics.require("Orders").read_queue_nums == 2


async def test_values_that_a_request_leaves_out_stay_unchanged(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    made = create(
        readQueueNums="16", writeQueueNums="16", perm="4", attributes="+message.type=FIFO"
    )
    await world.call(Code.UPDATE_AND_CREATE_TOPIC, made)
    assert "topic created: topic=Orders by=10.0.0.3:40000" in caplog.text
    before = world.topics.require("Orders")
    fields = {"topic": "Orders", "attributes": "+dedup.seconds=600"}
    assert (await world.call(Code.UPDATE_AND_CREATE_TOPIC, fields)).code == 0
    attributes = {"message.type": "FIFO", "dedup.seconds": "600"}
    assert world.topics.require("Orders") == msgspec.structs.replace(before, attributes=attributes)
    assert "topic changed: topic=Orders by=10.0.0.3:40000 dedup.seconds=unset->600\n" in caplog.text
    body = b'{"topicConfigList":[{"topicName":"Orders","perm":6}]}'
    assert (await world.call(Code.UPDATE_AND_CREATE_TOPIC_LIST, body=body)).code == 0
    assert world.topics.require("Orders").read_queue_nums == 16
    assert "perm=4->6\n" in caplog.text


async def test_more_write_than_read_queues_are_warned(world: World) -> None:
    response = await world.call(Code.UPDATE_AND_CREATE_TOPIC, create(writeQueueNums="6"))
    assert response.code == 0
    assert "nobody would read what is sent to queues 4 to 5" in (response.remark or "")


async def test_a_list_of_topics_is_made_whole_or_not_at_all(world: World) -> None:
    good = [TopicConfig(topic_name="A", write_queue_nums=20), TopicConfig(topic_name="B")]
    response = await world.call(Code.UPDATE_AND_CREATE_TOPIC_LIST, body=encode_topic_configs(good))
    assert response.code == 0
    assert "queues 16 to 19" in (response.remark or "")
    for bad in (
        encode_topic_configs([TopicConfig(topic_name="C"), TopicConfig(topic_name="no.dots")]),
        encode_topic_configs([TopicConfig(topic_name="C"), TopicConfig(topic_name="C")]),
        b"[",
    ):
        response = await world.call(Code.UPDATE_AND_CREATE_TOPIC_LIST, body=bad)
        assert response.code == ResponseCode.INVALID_PARAMETER
    assert world.topics.find("A")
    assert world.topics.find("B")
    assert not world.topics.find("C")


async def test_a_list_with_more_topics_than_there_is_room_for_creates_none(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_table, "TOPIC_COUNT_MAX", len(world.topics.configs) + 1)
    body = encode_topic_configs([TopicConfig(topic_name="A"), TopicConfig(topic_name="B")])
    response = await world.call(Code.UPDATE_AND_CREATE_TOPIC_LIST, body=body)
    assert response.code == ResponseCode.SYSTEM_ERROR
    assert not world.topics.find("A")


async def test_deleting_takes_queues_and_offsets_along(world: World) -> None:
    world.add_topic("T")
    world.store.table["T", 0] = FakeQueue("T", [1])
    world.offsets.commit("T", "G", 0, 1)
    world.stats.count_get("T", "G", 1, 1)
    for _ in range(2):  # the second time there is nothing left, which is as good
        response = await world.call(Code.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
        assert response.code == 0
    assert world.topics.find("T") is None
    assert world.store.queue("T", 0) is None
    assert world.store.deleted == ["T", "T"]
    assert world.offsets.groups_of("T") == []
    assert world.stats.item("GROUP_GET_NUMS", "T@G") is None
    assert world.saves.count == 2


async def test_a_second_attempt_deletes_the_retry_topics_that_the_first_could_not(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    retries = "%RETRY%G_T"
    for topic in ("T", retries):
        world.add_topic(topic)
        world.offsets.commit(topic, "G", 0, 1)
    delete = world.store.delete_queues

    async def refuse_retries(topic: str) -> object:
        if topic == retries:
            raise StoreFull("there is no room")
        return await delete(topic)

    with monkeypatch.context() as patch:
        patch.setattr(world.store, "delete_queues", refuse_retries)
        response = await world.call(Code.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
        assert "no room" in (response.remark or "")
    response = await world.call(Code.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    assert response.code == 0
    assert (world.topics.find("T"), world.topics.find(retries)) == (None, None)
    assert world.offsets.rows == []


@pytest.mark.parametrize("topic", ["TBW102", "../x", "rmq_sys_wheel_timer", ""])
async def test_protected_topics_are_not_deleted(world: World, topic: str) -> None:
    response = await world.call(Code.DELETE_TOPIC_IN_BROKER, {"topic": topic})
    assert response.code == ResponseCode.INVALID_PARAMETER
    assert world.store.deleted == []


async def test_configurations_are_shown(world: World) -> None:
    world.add_topic("T", 2)
    one = json_of(await world.call(Code.GET_TOPIC_CONFIG, {"topic": "T"}))
    assert one == msgspec.to_builtins(world.topics.require("T"))
    missing = await world.call(Code.GET_TOPIC_CONFIG, {"topic": "U"})
    assert missing.code == ResponseCode.TOPIC_NOT_EXIST
    table = json_of(await world.call(Code.GET_ALL_TOPIC_CONFIG))
    assert isinstance(table, dict)
    assert table["topicConfigTable"]["T"] == one
    assert table["topicQueueMappingDetailMap"] == {}
    system = json_of(await world.call(Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER))
    assert isinstance(system, dict)
    assert {"TBW102", "DefaultCluster", "broker-a", "BenchmarkTest"} <= set(system["topicList"])
    assert "T" not in system["topicList"]


async def test_the_state_of_a_topic(world: World) -> None:
    world.add_topic("T", 2)
    world.store.table["T", 1] = FakeQueue("T", [100, 200], first=5)
    response = await world.call(Code.GET_TOPIC_STATS_INFO, {"topic": "T"})
    assert decode_topic_state(response.body).queues == {
        MessageQueue("broker-a", 0, "T"): TopicQueueState(),
        MessageQueue("broker-a", 1, "T"): TopicQueueState(
            min_offset=5, max_offset=7, last_update_timestamp=200
        ),
    }
    missing = await world.call(Code.GET_TOPIC_STATS_INFO, {"topic": "U"})
    assert missing.code == ResponseCode.TOPIC_NOT_EXIST


async def test_readers_of_a_topic(world: World) -> None:
    world.offsets.commit("T", "G", 0, 1)
    response = await world.call(Code.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "T"})
    assert response.body == b'{"groupList":["G"]}'


async def test_deletions_at_the_same_time_share_the_work_on_disk(world: World) -> None:
    for number in range(50):
        world.add_topic(f"T{number}")
    deletions = [
        world.call(Code.DELETE_TOPIC_IN_BROKER, {"topic": f"T{number}"}) for number in range(50)
    ]
    answers = await asyncio.gather(*deletions)
    assert {answer.code for answer in answers} == {0}
    assert 1 <= len(world.store.deleted) <= 3  # those that waited for the first share the second
