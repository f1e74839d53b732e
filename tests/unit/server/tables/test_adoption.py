"""Topics that a crash made the table forget are known again, deleted ones stay deleted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketpost.broker.topic import TopicTable
from rocketpost.codec.properties import encode_properties
from rocketpost.codec.record import pack_host
from rocketpost.model.names import HALF_TOPIC, SCHEDULE_TOPIC
from rocketpost.model.topic import TopicConfig
from rocketpost.server.tables.adoption import UNSAVED_MS_MAX, adopt_topics
from rocketpost.store.config import StoreConfig
from rocketpost.store.draft import Draft
from rocketpost.store.message_store import MessageStore
from rocketpost.testing.clock import FakeClock

HOST = pack_host("10.0.0.1", 10911)


class World:
    def __init__(self, root: Path) -> None:
        self.clock = FakeClock()
        config = StoreConfig(
            root=str(root), segment_bytes=64 * 1024, queue_file_bytes=2000, message_bytes_max=8192,
            index_slot_count=64, index_entry_count=4096,
        )  # fmt: skip
        self.store = MessageStore.open_blocking(
            config, clock=self.clock, on_durable=lambda position: None
        )

    def put(self, topic: str, queue_id: int = 0, **properties: str) -> None:
        encoded = encode_properties({"UNIQ_KEY": "k", **properties})
        self.store.append(
            Draft(topic, queue_id, 0, 0, 5, HOST, HOST, 0, 0, b"x", encoded, 0, ("k",))
        )
        self.store.confirm(self.store.commit())

    def adopted(self, *known: TopicConfig, saved_ms: int = 0) -> dict[str, int]:
        topics = TopicTable(clock=self.clock, cluster_name="C", broker_name="b")
        for config in known:
            topics.update(config)
        adopt_topics(self.store, topics, queue_nums=4, saved_ms=saved_ms)
        return {
            name: config.write_queue_nums
            for name, config in topics.configs.items()
            if name not in (HALF_TOPIC, SCHEDULE_TOPIC)
        }


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "store")
    yield world
    world.store.close_blocking()


def test_topics_with_queues_are_known_again(world: World) -> None:
    world.put("T", 1)
    world.put("T", 6)
    world.put("U")
    world.put("%RETRY%g")
    assert world.adopted(saved_ms=world.clock.now_ms() + 1) == {"T": 7, "U": 4, "%RETRY%g": 1}


def test_a_retry_topic_has_all_its_queues_again_and_another_those_that_users_want(
    world: World,
) -> None:
    for topic in ("%RETRY%g_T", "%RETRY%h_T", "T"):
        world.put(topic, 6)
    narrow = TopicConfig(topic_name="%RETRY%g_T", read_queue_nums=1, write_queue_nums=1)
    wide = TopicConfig(topic_name="%RETRY%h_T", read_queue_nums=9, write_queue_nums=9)
    shrunk = TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=2)
    counts = world.adopted(narrow, wide, shrunk)
    assert counts == {"%RETRY%g_T": 7, "%RETRY%h_T": 9, "T": 2}


def test_a_retry_topic_that_was_made_smaller_stays_so(world: World) -> None:
    world.put("%RETRY%g", 3)
    world.clock.advance(10)
    changed_ms = world.clock.now_ms()
    world.put("%RETRY%h", 3)
    smaller = [
        TopicConfig(topic_name=topic, read_queue_nums=4, write_queue_nums=1)
        for topic in ("%RETRY%g", "%RETRY%h")
    ]
    assert world.adopted(*smaller, saved_ms=changed_ms) == {"%RETRY%g": 1, "%RETRY%h": 4}


def test_topics_that_something_waits_for_are_known_again(world: World) -> None:
    world.put(HALF_TOPIC, REAL_TOPIC="Committed", REAL_QID="5")
    world.put(SCHEDULE_TOPIC, 2, REAL_TOPIC="Delayed", REAL_QID="0", DELAY="3")
    world.put(SCHEDULE_TOPIC, 3, REAL_TOPIC="%RETRY%g", REAL_QID="0", DELAY="4")
    world.put(HALF_TOPIC, REAL_TOPIC="Wrong", REAL_QID="none")
    world.put(HALF_TOPIC)
    assert world.adopted() == {"Committed": 6, "Delayed": 4, "%RETRY%g": 1}


def test_a_topic_that_was_deleted_meanwhile_stays_deleted(world: World) -> None:
    world.put(HALF_TOPIC, REAL_TOPIC="Deleted", REAL_QID="0")
    world.clock.advance(10)
    deleted_ms = world.clock.now_ms()
    world.clock.advance(10)
    world.put(HALF_TOPIC, REAL_TOPIC="New", REAL_QID="0")
    assert world.adopted(saved_ms=deleted_ms) == {"New": 4}


def test_old_messages_are_not_read_for_the_adoption(world: World) -> None:
    world.put(HALF_TOPIC, REAL_TOPIC="Old", REAL_QID="0")
    world.clock.advance(UNSAVED_MS_MAX + 1)
    world.put(HALF_TOPIC, REAL_TOPIC="New", REAL_QID="0")
    assert world.adopted() == {"New": 4}
