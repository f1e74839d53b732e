from __future__ import annotations

from rocketpost.model.changes import apply, differences, members_text, value_text
from rocketpost.model.group import GroupChange, GroupConfig
from rocketpost.model.topic import TopicChange, TopicConfig


def test_a_change_has_the_members_of_what_it_changes() -> None:
    assert set(TopicChange.__struct_fields__) == set(TopicConfig.__struct_fields__)
    assert set(GroupChange.__struct_fields__) == set(GroupConfig.__struct_fields__)


def test_members_that_are_not_given_stay() -> None:
    before = TopicConfig(topic_name="T", read_queue_nums=16, order=True, perm=4)
    after = apply(TopicChange(topic_name="T", perm=6, order=False), before)
    assert after == TopicConfig(topic_name="T", read_queue_nums=16, order=False, perm=6)


def test_differences_are_named_as_on_the_wire_and_attributes_one_by_one() -> None:
    before = TopicConfig(topic_name="T", attributes={"a": "1", "b": "2"})
    after = TopicConfig(topic_name="T", read_queue_nums=8, attributes={"b": "3", "c": "4"})
    texts = sorted(map(str, differences(before, after)))
    assert texts == ["a=1->unset", "b=2->3", "c=unset->4", "readQueueNums=16->8"]
    assert differences(before, before) == []


def test_members_are_written_as_in_files() -> None:
    text = members_text(TopicConfig(order=True, attributes={"a": "1"}))
    assert text.startswith('attributes={"a":"1"} order=true perm=6 readQueueNums=16')
    assert "topicName" not in text
    assert value_text({"type": "CUSTOMIZED"}) == '{"type":"CUSTOMIZED"}'
