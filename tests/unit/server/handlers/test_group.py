from __future__ import annotations

import msgspec
import pytest

from rocketpost.broker.group import table as group_table
from rocketpost.codec.bodies.group import encode_group_configs
from rocketpost.codec.codes import RequestCode as Code
from rocketpost.codec.codes import ResponseCode
from rocketpost.model.group import GroupConfig

from .fakes import json_of
from .world import World


async def test_a_group_is_created_and_shown(world: World) -> None:
    body = b'{"groupName":"G","retryMaxTimes":3}'
    response = await world.call(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    assert response.code == 0
    assert world.saves.count == 1
    shown = json_of(await world.call(Code.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "G"}))
    assert shown == msgspec.to_builtins(GroupConfig(group_name="G", retry_max_times=3))
    table = json_of(await world.call(Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))
    assert isinstance(table, dict)
    assert table["subscriptionGroupTable"] == {"G": shown}


async def test_values_that_a_request_leaves_out_stay_unchanged(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    code = Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    await world.call(code, body=b'{"groupName":"G","consumeEnable":false,"retryQueueNums":4}')
    assert "group created: group=G by=10.0.0.3:40000 consumeEnable=false retryQueueNums=4" in (
        caplog.text
    )
    await world.call(code, body=b'{"groupName":"G","retryMaxTimes":3}')
    assert world.groups.find("G") == GroupConfig(
        group_name="G", consume_enable=False, retry_queue_nums=4, retry_max_times=3
    )
    assert "group changed: group=G by=10.0.0.3:40000 retryMaxTimes=16->3\n" in caplog.text
    listed = b'{"groupConfigList":[{"groupName":"G","retryMaxTimes":5}]}'
    await world.call(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, body=listed)
    assert world.groups.require("G").retry_queue_nums == 4
    await world.call(Code.DELETE_SUBSCRIPTIONGROUP, {"groupName": "G"})
    assert "group deleted: group=G by=10.0.0.3:40000 consumeEnable=false" in caplog.text


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b'{"groupName":"../G"}', b'{"groupName":"G","retryQueueNums":99999999}'],
)
async def test_hostile_groups_change_nothing(world: World, body: bytes) -> None:
    response = await world.call(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    assert response.code == ResponseCode.INVALID_PARAMETER
    assert not world.groups.configs


async def test_a_list_of_groups_is_made_whole_or_not_at_all(world: World) -> None:
    code = Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
    good = encode_group_configs([GroupConfig(group_name="A"), GroupConfig(group_name="B")])
    assert (await world.call(code, body=good)).code == 0
    for names in (["C", "C"], ["C", "no good"]):
        bad = encode_group_configs([GroupConfig(group_name=name) for name in names])
        assert (await world.call(code, body=bad)).code == ResponseCode.INVALID_PARAMETER
    assert set(world.groups.configs) == {"A", "B"}


async def test_a_list_with_more_groups_than_there_is_room_for_creates_none(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_table, "GROUP_COUNT_MAX", len(world.groups.configs) + 1)
    body = encode_group_configs([GroupConfig(group_name="A"), GroupConfig(group_name="B")])
    response = await world.call(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, body=body)
    assert response.code == ResponseCode.SYSTEM_ERROR
    assert not world.groups.find("A")


async def test_an_unknown_group_is_refused_when_it_may_not_be_created(world: World) -> None:
    world.groups.auto_create = False
    response = await world.call(Code.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "G"})
    assert response.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


async def test_deleting_a_group_keeps_its_offsets_unless_asked(world: World) -> None:
    world.groups.find_or_create("G")
    world.offsets.commit("T", "G", 0, 1)
    world.stats.count_get("T", "G", 1, 1)
    assert (await world.call(Code.DELETE_SUBSCRIPTIONGROUP, {"groupName": "G"})).code == 0
    assert world.groups.find("G") is None
    assert world.offsets.topics_of("G") == ["T"]
    fields = {"groupName": "G", "cleanOffset": "true"}
    assert (await world.call(Code.DELETE_SUBSCRIPTIONGROUP, fields)).code == 0
    assert world.offsets.topics_of("G") == []
    assert world.stats.item("GROUP_GET_NUMS", "T@G") is None
    refused = await world.call(Code.DELETE_SUBSCRIPTIONGROUP, {"groupName": "TOOLS_CONSUMER"})
    assert refused.code == ResponseCode.INVALID_PARAMETER


async def test_topics_of_a_group(world: World) -> None:
    world.offsets.commit("T", "G", 0, 1)
    response = await world.call(Code.QUERY_TOPICS_BY_CONSUMER, {"group": "G"})
    assert response.body == b'{"brokerAddr":"10.0.0.1:10911","topicList":["T"]}'


async def test_the_subscription_of_a_group_that_is_offline(world: World) -> None:
    fields = {"group": "G", "topic": "T"}
    response = await world.call(Code.QUERY_SUBSCRIPTION_BY_CONSUMER, fields)
    assert response.body == b'{"group":"G","topic":"T"}'


async def test_reading_is_forbidden_and_allowed(world: World) -> None:
    code, fields = Code.UPDATE_AND_GET_GROUP_FORBIDDEN, {"group": "G", "topic": "T"}
    assert (await world.call(code, fields)).code == ResponseCode.TOPIC_NOT_EXIST
    world.add_topic("T")
    response = await world.call(code, fields | {"readable": "false"})
    assert response.body == b'{"group":"G","readable":false,"topic":"T"}'
    assert not world.groups.may_read("G", "T")
    assert world.saves.count == 1
    asked = await world.call(code, fields)
    assert asked.body == response.body
    assert world.saves.count == 1
