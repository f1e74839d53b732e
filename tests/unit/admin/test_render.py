"""Texts that Apache's mqadmin 5.3.3 printed are the expectation wherever one is written out."""

from __future__ import annotations

import json

import pytest

from rocketpost.admin.render import (
    Column,
    Table,
    fastjson_text,
    group_text,
    json_text,
    map_text,
    parse_time,
    plain_value,
    queue_text,
    settings_text,
    time_or,
    time_text,
    time_text_ms,
    topic_text,
)
from rocketpost.model.group import GroupConfig
from rocketpost.model.route import BrokerData, MessageQueue
from rocketpost.model.topic import TopicConfig

TABLE = Table(
    "%-6s  %4s",
    [Column("#Name", "name"), Column("#N", "count", lambda n: f"{n:.1f}")],
)


def test_a_table_aligns_headings_with_rows() -> None:
    assert TABLE.text([("a", 1), ("bcd", 22)]) == "#Name     #N\na        1.0\nbcd     22.0"


def test_a_table_without_rows_is_its_headings() -> None:
    assert TABLE.text([]) == "#Name     #N"


def test_a_wide_value_moves_the_rest_to_the_right_and_is_never_cut() -> None:
    assert TABLE.line(("abcdefgh", 1)) == "abcdefgh   1.0"


def test_rows_for_programs_keep_their_values() -> None:
    assert TABLE.objects([("a", 1)]) == [{"name": "a", "count": 1}]


def test_a_layout_must_fit_its_columns() -> None:
    with pytest.raises(AssertionError):
        Table("%s %s", [Column("#A", "a")])


@pytest.mark.usefixtures("utc")
def test_times_are_local_with_or_without_milliseconds() -> None:
    assert time_text(1_794_784_528_335) == "2026-11-15 23:15:28"
    assert time_text_ms(1_794_784_528_005) == "2026-11-15 23:15:28,005"
    assert time_or(0, "N/A") == "N/A"
    assert time_or(-1, "") == ""
    assert time_or(1_794_784_528_335, "", millis=True) == "2026-11-15 23:15:28,335"


@pytest.mark.usefixtures("utc")
@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("now", 77),
        ("currentTimeMillis", 77),
        ("0", 0),
        ("-1", -1),
        ("1794784528182", 1_794_784_528_182),
        ("2026-11-15#23:15:28:182", 1_794_784_528_182),
        ("2026-11-15#23:15:28", 1_794_784_528_000),
        ("2026-11-15", 1_794_700_800_000),
    ],
)
def test_times_are_read_in_every_form_of_the_original(text: str, ms: int) -> None:
    assert parse_time(text, now_ms=77) == ms


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01", "12:00", "--1"])
def test_invalid_times_are_refused_with_the_valid_forms(text: str) -> None:
    with pytest.raises(ValueError, match="yyyy-MM-dd"):
        parse_time(text, now_ms=0)


def test_a_topic_looks_as_in_java() -> None:
    config = TopicConfig(topic_name="Demo", read_queue_nums=4, write_queue_nums=4)
    assert topic_text(config) == (
        "TopicConfig [topicName=Demo, readQueueNums=4, writeQueueNums=4, perm=RW-, "
        "topicFilterType=SINGLE_TAG, topicSysFlag=0, order=false, attributes={}]"
    )
    attributes = TopicConfig(topic_name="A", perm=4, attributes={"+message.type": "FIFO"})
    assert "perm=R--" in topic_text(attributes)
    assert topic_text(attributes).endswith("attributes={+message.type=FIFO}]")


def test_a_group_looks_as_in_java() -> None:
    config = GroupConfig(
        group_name="made", consume_from_min_enable=False, consume_broadcast_enable=False
    )
    assert group_text(config) == (
        "SubscriptionGroupConfig{groupName=made, consumeEnable=true, consumeFromMinEnable=false, "
        "consumeBroadcastEnable=false, consumeMessageOrderly=false, retryQueueNums=1, "
        "retryMaxTimes=16, groupRetryPolicy=GroupRetryPolicy{type=CUSTOMIZED, "
        "exponentialRetryPolicy=null, customizedRetryPolicy=null}, brokerId=0, "
        "whichBrokerWhenConsumeSlowly=1, notifyConsumerIdsChangedEnable=true, groupSysFlag=0, "
        "consumeTimeoutMinute=15, subscriptionDataSet=null, attributes={}}"
    )


def test_a_queue_and_a_map_look_as_in_java() -> None:
    queue = MessageQueue("broker-a", 1, "Demo")
    assert queue_text(queue) == "MessageQueue [topic=Demo, brokerName=broker-a, queueId=1]"
    assert map_text({"a": 1, "b": "x"}) == "{a=1, b=x}"


def test_settings_are_sorted_below_the_server() -> None:
    text = settings_text("127.0.0.1:34141", {"b": "2", "a": "1"})
    assert text == f"============127.0.0.1:34141============\n{'a':<50}=  1\n{'b':<50}=  2"


def test_json_of_a_route_is_laid_out_as_the_original_does() -> None:
    route = {
        "brokerDatas": [{"brokerAddrs": {0: "127.0.0.1:1", 1: "b:2"}, "brokerName": "broker-a"}],
        "filterServerTable": {},
        "tagsSet": ["A", "B"],
        "on": True,
    }
    expected = (
        '{\n\t"brokerDatas":[\n\t\t{\n\t\t\t"brokerAddrs":{0:"127.0.0.1:1",1:"b:2"\n\t\t\t},'
        '\n\t\t\t"brokerName":"broker-a"\n\t\t}\n\t],\n\t"filterServerTable":{},'
        '\n\t"tagsSet":["A","B"],\n\t"on":true\n}'
    )
    assert fastjson_text(route) == expected


def test_json_for_programs_is_standard_and_reads_back() -> None:
    broker = BrokerData(broker_addrs={0: "h:1"}, broker_name="ä")
    text = json_text([broker])
    assert json.loads(text) == [
        {"brokerAddrs": {"0": "h:1"}, "brokerName": "ä", "cluster": "", "enableActingMaster": False}
    ]


def test_texts_that_spell_numbers_become_numbers() -> None:
    for text, value in (("7", 7), ("-1", -1), ("0.15", 0.15), ("true", True), ("false", False)):
        assert plain_value(text) == value
        assert type(plain_value(text)) is type(value)
    for text in ("", "007", "1 2", "broker-a", "1.2.3", "nan", "127.0.0.1:10911"):
        assert plain_value(text) == text
