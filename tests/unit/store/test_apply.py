"""Live appends and records read back from the log have the same effects."""

from __future__ import annotations

import itertools

import pytest

from rocketpost.codec.properties import encode_properties
from rocketpost.kernel.hashing import string_hash
from rocketpost.kernel.record_scan import scan_records
from rocketpost.model import sysflag
from rocketpost.model.delay_levels import parse_delay_levels
from rocketpost.model.names import SCHEDULE_TOPIC
from rocketpost.store.apply import ApplyRules, is_possible, schedule_code
from rocketpost.store.deleted_topics import DeletedTopics
from rocketpost.store.files import RealFiles

from .conftest import Opener, draft

STATES = (
    sysflag.TRANSACTION_NONE,
    sysflag.TRANSACTION_PREPARED,
    sysflag.TRANSACTION_COMMIT,
    sysflag.TRANSACTION_ROLLBACK,
)
CASES = list(itertools.product(STATES, ("TopicA", SCHEDULE_TOPIC), ("", "3", "99", "x")))


@pytest.mark.parametrize(("state", "topic", "level"), CASES)
def test_a_draft_and_its_record_have_the_same_effects(
    opener: Opener, state: int, topic: str, level: str
) -> None:
    pairs = {"TAGS": "a", "UNIQ_KEY": "U", "KEYS": "k1 k2"}
    if level:
        pairs["DELAY"] = level
    store = opener()
    appended = store.append(
        draft(
            topic=topic,
            properties=encode_properties(pairs),
            keys=("U", "k1", "k2"),
            tags_code=string_hash("a"),
            sys_flag=state,
        )
    )
    store.commit()
    data = store.view(0, store.end_position)
    assert data is not None
    [entry], _, _ = scan_records(data, 0, 0, count_max=2)
    rules = ApplyRules(
        delays_ms=parse_delay_levels(store.config.delay_levels),
        deleted_topics=DeletedTopics(RealFiles(), "/nowhere"),
    )
    effects = rules.effects_of(entry, data, 0)
    assert effects.is_in_queue == (appended.queue is not None)
    assert effects.is_in_queue == (store.queue(topic, 0) is not None)
    assert not effects.is_deleted
    assert effects.keys == appended.keys
    if effects.is_in_queue:
        assert effects.tags_code == appended.tags_code
        assert (effects.tags_code > store.store_ms) == (
            topic == SCHEDULE_TOPIC and level in ("3", "99")
        )


def test_records_before_a_deletion_are_deleted() -> None:
    deleted_topics = DeletedTopics(RealFiles(), "/nowhere")
    deleted_topics.add("TopicA", 500, {}, serial=1)
    rules = ApplyRules(delays_ms=(), deleted_topics=deleted_topics)
    for position, is_deleted in ((499, True), (500, False)):
        entry = (position, 100, "TopicA", 0, 0, 0, 1, 0, ())
        assert rules.effects_of(entry, b"", 0).is_deleted == is_deleted


def test_names_that_are_no_directory_and_huge_offsets_are_impossible() -> None:
    assert is_possible((0, 100, "TopicA", 0, 0, 0, 1, 0, ()))
    for topic, queue_id, offset in (
        ("..", 0, 0),
        ("a/b", 0, 0),
        ("TopicA", -1, 0),
        ("TopicA", 0, -1),
        ("TopicA", 0, 2**58),
    ):
        assert not is_possible((0, 100, topic, queue_id, offset, 0, 1, 0, ()))


def test_a_level_beyond_the_last_is_the_last() -> None:
    properties = encode_properties({"DELAY": "9"})
    assert schedule_code(properties, 7, 1_000, (10, 20)) == 1_020
    assert schedule_code(properties, 7, 1_000, ()) == 2_000
    assert schedule_code(b"", 7, 1_000, (10, 20)) == 7
