from __future__ import annotations

from rocketpost.broker.query import Behind, queue_number_warning
from rocketpost.model.topic import TopicConfig


def topic(read: int, write: int) -> TopicConfig:
    return TopicConfig(topic_name="T", read_queue_nums=read, write_queue_nums=write)


def test_the_safe_ways_are_silent() -> None:
    assert queue_number_warning(None, topic(8, 8), []) is None
    assert queue_number_warning(topic(8, 8), topic(16, 16), []) is None
    assert queue_number_warning(topic(8, 8), topic(8, 4), []) is None
    assert queue_number_warning(topic(8, 4), topic(4, 4), []) is None


def test_queues_that_nobody_reads_are_named() -> None:
    warning = queue_number_warning(None, topic(4, 8), [])
    assert warning is not None
    assert "queues 4 to 7 take messages that no consumer is given" in warning
    assert "raise readQueueNums to 8" in warning


def test_groups_that_are_behind_are_named_with_the_largest_count() -> None:
    behind = [Behind(4, "G", 5), Behind(5, "G", 1), Behind(5, "H", 3)]
    warning = queue_number_warning(topic(8, 8), topic(4, 4), behind)
    assert warning is not None
    assert "queues 4, 5 still hold up to 6 messages that G, H did not consume" in warning
    assert "after readQueueNums is 8 again" in warning
