from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpost.broker.group.offsets import COMMITS_A_VERSION, NO_OFFSET, OffsetTable
from rocketpost.errors import StoreError
from rocketpost.testing.clock import FakeClock


def test_a_commit_can_be_queried_and_may_move_back(clock: FakeClock) -> None:
    table = OffsetTable(clock=clock)
    assert table.query("T", "G", 0) == NO_OFFSET
    assert table.commit("T", "G", 0, 7)
    assert table.commit("T", "G", 1, 3)
    assert table.query("T", "G", 0) == 7
    assert table.query("T", "G", 2) == NO_OFFSET
    table.commit("T", "G", 0, 2)
    assert table.row("T", "G") == {0: 2, 1: 3}
    assert table.row("T", "H") == {}


def test_an_equal_commit_changes_nothing(clock: FakeClock) -> None:
    table = OffsetTable(clock=clock)
    table.commit("T", "G", 0, 7)
    revision = table.revision
    table.commit("T", "G", 0, 7)
    assert table.revision == revision


def test_the_version_moves_with_every_five_hundredth_commit(clock: FakeClock) -> None:
    table = OffsetTable(clock=clock)
    for offset in range(COMMITS_A_VERSION - 1):
        table.commit("T", "G", 0, offset)
    assert table.version.counter == 0
    table.commit("T", "G", 0, 9999)
    assert table.version.counter == 1


def test_a_reset_wins_over_commits_until_it_is_taken(clock: FakeClock) -> None:
    table = OffsetTable(clock=clock)
    table.commit("T", "G", 0, 100)
    assert table.take_reset("T", "G", 0) is None
    table.reset("T", "G", 0, 5)
    assert not table.commit("T", "G", 0, 101)
    assert table.commit("T", "G", 1, 1)
    assert table.query("T", "G", 0) == 5
    assert table.take_reset("T", "G", 1) is None
    assert table.take_reset("T", "G", 0) == 5
    assert table.take_reset("T", "G", 0) is None
    assert table.commit("T", "G", 0, 6)


def test_a_reset_that_waits_is_saved_until_it_is_taken(clock: FakeClock) -> None:
    table = OffsetTable(clock=clock)
    table.reset("T", "G", 0, 5)
    table.reset("T", "G", 2, 7)
    again = OffsetTable(clock=clock)
    again.load(table.to_json())
    assert not again.commit("T", "G", 0, 101)
    revision = again.revision
    assert again.take_reset("T", "G", 0) == 5
    assert again.revision > revision
    third = OffsetTable(clock=clock)
    third.load(again.to_json())
    assert third.take_reset("T", "G", 0) is None
    assert third.take_reset("T", "G", 2) == 7
    assert b"pending" not in third.to_json()
    assert b"pending" not in table.body()


def test_a_saved_reset_that_does_not_fit_the_offsets_is_left_out(clock: FakeClock) -> None:
    table = OffsetTable(clock=clock)
    table.load(b'{"offsetTable":{"T@G":{0:5}},"pendingResetTable":{"T@G":{0:4,1:1},"T@H":{0:1}}}')
    assert table.take_reset("T", "G", 0) is None
    assert table.take_reset("T", "G", 1) is None
    assert table.take_reset("T", "H", 0) is None


def test_names_of_topics_and_groups(clock: FakeClock) -> None:
    table = OffsetTable(clock=clock)
    table.commit("T", "G", 0, 1)
    table.commit("U", "G", 0, 1)
    table.commit("T", "H", 0, 1)
    assert table.topics_of("G") == ["T", "U"]
    assert table.groups_of("T") == ["G", "H"]
    assert table.groups == ["G", "H"]


def test_pulled_offsets_are_separate_and_not_saved(clock: FakeClock) -> None:
    table = OffsetTable(clock=clock)
    table.note_pull("T", "G", 0, 9)
    table.note_pull("T", "G", 0, 10)
    assert table.pulled_offset("T", "G", 0) == 10
    assert table.pulled_offset("T", "G", 1) == NO_OFFSET
    assert table.revision == 0
    assert b"T@G" not in table.to_json()


def test_a_clone_is_independent(clock: FakeClock) -> None:
    table = OffsetTable(clock=clock)
    table.commit("T", "G", 0, 5)
    table.clone("G", "H", "T")
    table.clone("nobody", "H", "T")
    table.commit("T", "G", 0, 6)
    assert table.query("T", "H", 0) == 5


def test_a_clone_replaces_a_reset_that_no_consumer_has_seen(clock: FakeClock) -> None:
    table = OffsetTable(clock=clock)
    table.commit("T", "G", 0, 5)
    table.reset("T", "H", 0, 1)
    table.reset("T", "other", 0, 2)
    table.clone("G", "H", "T")
    assert table.take_reset("T", "H", 0) is None
    assert table.query("T", "H", 0) == 5
    assert table.take_reset("T", "other", 0) == 2


def test_forgetting_a_topic_or_group_forgets_all_its_offsets(clock: FakeClock) -> None:
    table = OffsetTable(clock=clock)
    for topic, group in (("T", "G"), ("T", "H"), ("U", "G")):
        table.reset(topic, group, 0, 5)
        table.note_pull(topic, group, 0, 5)
    table.note_pull("T", "watcher", 0, 1)
    table.forget_topic("T")
    assert table.groups == ["G"]
    assert table.pulled_offset("T", "G", 0) == table.pulled_offset("T", "watcher", 0) == NO_OFFSET
    assert table.take_reset("T", "G", 0) is None
    assert table.pulled_offset("U", "G", 0) == 5
    table.note_pull("V", "G", 0, 1)
    table.forget_group("G")
    assert table.groups == []
    assert table.pulled_offset("V", "G", 0) == NO_OFFSET
    assert table.take_reset("U", "G", 0) is None


def test_the_body_has_the_format_of_rocketmq(clock: FakeClock) -> None:
    table = OffsetTable(clock=clock)
    table.commit("TopicA", "GroupA", 0, 5)
    table.commit("TopicA", "GroupA", 1, 6)
    assert table.body() == (
        b'{"dataVersion":{"counter":0,"stateVersion":0,"timestamp":0},'
        b'"offsetTable":{"TopicA@GroupA":{0:5,1:6}}}'
    )


def test_a_row_is_encoded_again_only_after_it_changed(clock: FakeClock) -> None:
    table = OffsetTable(clock=clock)
    table.commit("T", "G", 0, 5)
    first = table.body()
    assert table.body() == first
    table.commit("T", "G", 0, 6)
    assert b"{0:6}" in table.body()


@given(
    rows=st.dictionaries(
        st.tuples(st.sampled_from(["T", "%RETRY%G", "ns%T"]), st.sampled_from(["G", "H"])),
        st.dictionaries(st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1), min_size=1),
    )
)
def test_the_file_is_read_back(rows: dict[tuple[str, str], dict[int, int]]) -> None:
    clock = FakeClock()
    table, other = OffsetTable(clock=clock), OffsetTable(clock=clock)
    for (topic, group), offsets in rows.items():
        for queue_id, offset in offsets.items():
            table.commit(topic, group, queue_id, offset)
    other.load(table.to_json())
    assert {key: other.row(*key) for key in rows} == rows


def test_java_files_with_quoted_keys_and_derived_members_are_read(clock: FakeClock) -> None:
    table = OffsetTable(clock=clock)
    table.load(
        b'{"dataVersion":{"counter":3,"stateVersion":0,"timestamp":9},"groupTopicMap":{"G":["T"]},'
        b'\n\t"offsetTable":{"T@G":{"0":12, 1:13},"../x@G":{0:1},"T@G@x":{0:1},"T@H":{0:-5,-1:2}}}'
    )
    assert table.row("T", "G") == {0: 12, 1: 13}
    assert table.row("T", "H") == {}
    assert table.groups == ["G", "H"]
    assert table.version.counter == 3


@pytest.mark.parametrize("text", [b"", b"[]", b'{"offsetTable":{"T@G":{"x":1}}}'])
def test_a_file_that_is_not_an_offset_table_is_refused(clock: FakeClock, text: bytes) -> None:
    with pytest.raises(StoreError, match="consumerOffset"):
        OffsetTable(clock=clock).load(text)
