from __future__ import annotations

from rocketpost.model.shrinking import Behind, hidden_messages, is_hiding, queues_text
from rocketpost.model.topic import TopicConfig


def topic(read: int, write: int) -> TopicConfig:
    return TopicConfig(topic_name="T", read_queue_nums=read, write_queue_nums=write)


def test_the_safe_ways_are_silent() -> None:
    for before, after in (
        (None, topic(8, 8)),
        (topic(8, 8), topic(16, 16)),
        (topic(8, 8), topic(8, 4)),
        (topic(8, 4), topic(4, 4)),
    ):
        assert hidden_messages(before, after, []) is None
        assert not is_hiding(before, after, [])


def test_queues_that_nobody_reads_are_named() -> None:
    warning = hidden_messages(None, topic(4, 8), [])
    assert warning is not None
    assert "nobody would read what is sent to queues 4 to 7" in warning
    assert "set readQueueNums to 8 or more" in warning


def test_only_a_lower_read_number_takes_something_away() -> None:
    assert not is_hiding(None, topic(4, 8), [])
    assert not is_hiding(topic(4, 4), topic(4, 8), [])
    assert is_hiding(topic(8, 8), topic(4, 8), [])
    assert is_hiding(topic(8, 4), topic(4, 4), [Behind(5, "G", 1)])


def test_groups_that_are_behind_are_named_with_their_counts() -> None:
    behind = [Behind(4, "G", 5), Behind(5, "G", 1), Behind(5, "H", 3)]
    warning = hidden_messages(topic(8, 8), topic(4, 4), behind)
    assert warning is not None
    assert "messages in queues 4 to 5 have not been consumed by G (6), H (3)" in warning
    assert "lower writeQueueNums first" in warning


def test_a_topic_that_no_group_has_read_is_reported_with_its_messages() -> None:
    warning = hidden_messages(topic(8, 8), topic(4, 4), [Behind(4, "", 5)])
    assert warning is not None
    assert "no group has read the 5 messages in queue 4" in warning


def test_many_groups_are_counted() -> None:
    behind = [Behind(4, f"G{number:02}", 1) for number in range(12)]
    warning = hidden_messages(topic(8, 8), topic(4, 4), behind)
    assert warning is not None
    assert "G09 (1) and 2 more" in warning


def test_queues_in_a_row_are_a_range() -> None:
    assert queues_text([3]) == "queue 3"
    assert queues_text([7, 1, 2, 5]) == "queues 1 to 2, 5, 7"
