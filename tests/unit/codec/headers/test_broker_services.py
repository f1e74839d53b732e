from __future__ import annotations

import pytest

from rocketpost.codec.command import Command, to_fields
from rocketpost.codec.faults import InvalidParameter
from rocketpost.codec.headers.admin import QueryQueue, StatsRequest
from rocketpost.codec.headers.client import ConsumeDirectly, HeartbeatResponse, Unregister
from rocketpost.codec.headers.group import DeleteGroup, ForbidGroup
from rocketpost.codec.headers.offset import (
    CloneOffset,
    ConsumeStats,
    OffsetResponse,
    QueryOffset,
    ResetOffset,
    SearchOffset,
)
from rocketpost.codec.headers.topic import CreateTopic


def request(**fields: str) -> Command:
    return Command(1, text_fields=fields)


def test_a_topic_is_asked_for_in_javas_words() -> None:
    header = request(
        topic="T", defaultTopic="TBW102", readQueueNums="4", writeQueueNums="8", perm="6",
        topicFilterType="SINGLE_TAG", topicSysFlag="0", order="True", attributes="+a=b", lo="x",
    ).read(CreateTopic)  # fmt: skip
    assert (header.read_queue_nums, header.write_queue_nums, header.order) == (4, 8, True)
    assert header.attributes == "+a=b"
    assert request(topic="T").read(CreateTopic) == CreateTopic(topic="T")  # the rest stays


@pytest.mark.parametrize(
    "fields", [{}, {"perm": "6"}, {"topic": "T", "readQueueNums": "many", "perm": "6"}]
)
def test_missing_and_malformed_fields_are_refused(fields: dict[str, str]) -> None:
    with pytest.raises(InvalidParameter):
        request(**fields).read(CreateTopic)


def test_a_search_looks_down_unless_it_says_upper() -> None:
    fields = {"topic": "T", "queueId": "0", "timestamp": "5"}
    assert not request(**fields).read(SearchOffset).upper
    assert not request(**fields, boundaryType="odd").read(SearchOffset).upper
    assert request(**fields, boundaryType="upper").read(SearchOffset).upper


def test_topics_of_consume_stats_come_from_both_fields() -> None:
    assert request(consumerGroup="G").read(ConsumeStats).topics == []
    header = request(consumerGroup="G", topic="T", topicList="A; B;").read(ConsumeStats)
    assert header.topics == ["T", "A", "B"]


def test_a_reset_uses_javas_odd_name() -> None:
    header = request(topic="T", group="G", timestamp="-1", isForce="true").read(ResetOffset)
    assert (header.is_force, header.queue_id, header.offset) == (True, -1, None)
    assert to_fields(header)["isForce"] == "true"


def test_absent_fields_have_javas_defaults() -> None:
    fields = {"consumerGroup": "G", "topic": "T", "queueId": "0"}
    assert request(**fields).read(QueryOffset).set_zero_if_not_found
    assert not request(**fields, setZeroIfNotFound="false").read(QueryOffset).set_zero_if_not_found
    assert request(groupName="G").read(DeleteGroup).clean_offset is False
    assert request(group="G", topic="T").read(ForbidGroup).readable is None
    assert request(srcGroup="G", destGroup="H").read(CloneOffset).topic == ""
    assert request(topic="T", queueId="1").read(QueryQueue).count == 10
    assert request(statsName="A", statsKey="B").read(StatsRequest).stats_key == "B"


def test_clients_are_named_in_two_ways() -> None:
    header = request(clientID="c", producerGroup="", consumerGroup="G").read(Unregister)
    assert (header.client_id, header.producer_group, header.consumer_group) == ("c", "", "G")
    assert request(consumerGroup="G", clientId="c").read(ConsumeDirectly).client_id == "c"


def test_responses_are_texts() -> None:
    assert to_fields(OffsetResponse(offset=-1)) == {"offset": "-1"}
    assert to_fields(HeartbeatResponse()) == {
        "IS_SUPPORT_HEART_BEAT_V2": "true",
        "IS_SUB_CHANGE": "true",
    }
