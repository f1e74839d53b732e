"""Delayed messages: where they wait, when they are due, what is delivered."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketpost.broker.delay import service as delay
from rocketpost.broker.delay.progress import DelayProgress
from rocketpost.broker.delay.service import DelayService, DueBatch, delayed_draft, level_of
from rocketpost.broker.delivery import Wait
from rocketpost.codec.properties import PROPERTIES_BYTES_MAX, decode_properties, encode_properties
from rocketpost.codec.record import Record, pack_host
from rocketpost.errors import LocalProtocolError, StoreError
from rocketpost.kernel.hashing import string_hash
from rocketpost.model.ids import Position
from rocketpost.model.names import SCHEDULE_TOPIC
from rocketpost.model.topic import TopicConfig
from rocketpost.store.config import StoreConfig
from rocketpost.store.draft import Draft
from rocketpost.store.message_store import MessageStore

BORN = pack_host("10.0.0.9", 4000)
HOST = pack_host("10.0.0.1", 10911)
START_MS = 1_700_000_000_000
DELAYS_MS = (1000, 5000)


class Clock:
    """A clock that may be set back."""

    def __init__(self) -> None:
        self.ms = START_MS

    def now_ms(self) -> int:
        return self.ms


class Topics:
    def __init__(self) -> None:
        self.table = {"T": TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=4)}

    def find(self, topic: str) -> TopicConfig | None:
        return self.table.get(topic)

    def create_internal(self, topic: str, *, queue_nums: int) -> TopicConfig:
        config = TopicConfig(
            topic_name=topic, read_queue_nums=queue_nums, write_queue_nums=queue_nums
        )
        return self.table.setdefault(topic, config)


class Groups:
    def find(self, group: str) -> object | None:
        return group if group == "g" else None


class World:
    """A store and its delay levels, without the server that drives them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = Clock()
        self.topics = Topics()
        self.sent = 0
        self.saved = b""
        self.open()

    def open(self) -> None:
        config = StoreConfig(
            root=str(self.root),
            segment_bytes=64 * 1024,
            queue_file_bytes=2000,
            message_bytes_max=8192,
            index_slot_count=64,
            index_entry_count=4096,
            delay_levels="1s 5s",
        )
        self.store = MessageStore.open_blocking(
            config, clock=self.clock, on_durable=lambda position: None
        )
        self.progress = DelayProgress(clock=self.clock)
        self.progress.durable = lambda: self.store.confirmed_position
        if self.saved:
            self.progress.load(self.saved)
        self.service = DelayService(
            store=self.store,
            topics=self.topics,
            groups=Groups(),
            clock=self.clock,
            progress=self.progress,
            delays_ms=DELAYS_MS,
            store_host=HOST,
        )

    def save(self) -> None:
        assert self.progress.revision >= 0
        self.saved = self.progress.to_json()

    def crash(self) -> None:
        self.store._flusher.close_blocking()
        self.store._checkpointer.close_blocking()
        self.store._parts.release_blocking()

    def close(self) -> None:
        self.store.close_blocking()

    def draft(self, **more: str) -> Draft:
        self.sent += 1
        properties = {"UNIQ_KEY": f"U{self.sent}", "TAGS": "A"} | more
        return Draft(
            "T",
            2,
            7,
            0,
            self.clock.ms - 3,
            BORN,
            HOST,
            1,
            0,
            b"body",
            encode_properties(properties),
        )

    def send(self, level: int = 1, **more: str) -> str:
        """Store a delayed message; returns its key."""
        draft = delayed_draft(self.draft(**more), level, level_max=2)
        self.store.append(draft)
        self.store.confirm(self.store.commit())
        return decode_properties(draft.properties)["UNIQ_KEY"]

    def deliver(self, level: int = 1) -> list[str]:
        """Deliver what is due in a level; returns the keys."""
        keys = []
        while isinstance(step := self.service.next(level), DueBatch):
            position = Position(0)
            for draft in step.drafts:
                position = self.store.append(draft).end
                keys.append(draft.keys[0])
            self.store.confirm(self.store.commit())
            self.progress.advance(level, step.next_offset, position=position)
        return keys

    def resume(self) -> int:
        passed = 0
        for level in (1, 2):
            while self.service.skip_delivered(level):
                passed += 1
        return passed

    def records(self, topic: str, queue_id: int) -> list[Record]:
        queue = self.store.queue(topic, queue_id)
        assert queue is not None
        found = []
        for offset in range(queue.first, queue.end):
            entry = queue.entry(offset)
            assert entry is not None
            record = self.store.record_at(entry[0])
            assert record is not None
            found.append(record)
        return found


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "store")
    yield world
    world.close()


@pytest.mark.parametrize(
    ("text", "level"),
    [(None, 0), ("", 0), ("0", 0), ("-1", 0), ("3", 3), ("99", 99), ("x", None), ("1.5", None),
     ("-", None), ("²", None), ("9" * 5000, None)],
)  # fmt: skip
def test_levels_of_the_property(text: str | None, level: int | None) -> None:
    assert level_of(text) == level


def test_a_delayed_message_names_its_destination(world: World) -> None:
    waiting = delayed_draft(world.draft(TIMER_DELAY_MS="5"), 9, level_max=2)
    assert (waiting.topic, waiting.queue_id) == (SCHEDULE_TOPIC, 1)
    properties = decode_properties(waiting.properties)
    assert properties["REAL_TOPIC"] == "T"
    assert properties["REAL_QID"] == "2"
    assert properties["DELAY"] == "2"
    assert "TIMER_DELAY_MS" not in properties


def test_the_destination_must_fit_into_the_properties(world: World) -> None:
    draft = world.draft()
    draft.properties = encode_properties({"a": "x" * (PROPERTIES_BYTES_MAX - 10)})
    with pytest.raises(LocalProtocolError):
        delayed_draft(draft, 1, level_max=2)


def test_the_queue_entry_holds_the_due_time(world: World) -> None:
    world.send(2)
    queue = world.store.queue(SCHEDULE_TOPIC, 1)
    assert queue is not None
    entry = queue.entry(0)
    assert entry is not None
    assert entry[2] == START_MS + 5000


def test_nothing_is_delivered_early(world: World) -> None:
    assert world.service.next(1) == Wait(None)
    key = world.send()
    assert world.service.next(1) == Wait(1000)
    world.clock.ms += 999
    assert world.service.next(1) == Wait(1)
    world.clock.ms += 1
    assert world.deliver() == [key]
    assert world.service.next(1) == Wait(None)


def test_no_store_time_is_early(world: World) -> None:
    key = world.send()
    world.clock.ms += 999
    world.store.append(world.draft())  # all that is stored with this one has its store time
    world.clock.ms += 10
    assert world.service.next(1) == Wait(1)
    world.store.confirm(world.store.commit())
    assert world.deliver() == [key]
    assert world.records("T", 2)[-1].store_ms == START_MS + 1009


def test_a_delivered_message_is_a_copy_of_the_original(world: World) -> None:
    world.send(KEYS="k1 k2")
    world.clock.ms += 1500
    world.deliver()
    [waiting] = world.records(SCHEDULE_TOPIC, 0)
    [record] = world.records("T", 2)
    assert record.store_ms == START_MS + 1500
    assert (record.born_ms, record.born_host_bytes) == (START_MS - 3, BORN)
    assert (record.flag, record.reconsume_times, bytes(record.body)) == (7, 1, b"body")
    # RocketMQ leaves all three of them, and consumers get to see them.
    assert record.properties == waiting.properties
    assert {"DELAY", "REAL_TOPIC", "REAL_QID"} < record.properties.keys()
    queue = world.store.queue("T", 2)
    assert queue is not None
    assert queue.entry(0) == (record.position, record.size, string_hash("A"))
    for word in ("U1", "k1", "k2"):
        assert world.store.find(
            "T", word, count_max=9, begin_ms=0, end_ms=2**62
        ) == [record.position]  # fmt: skip


def test_levels_are_independent(world: World) -> None:
    slow, quick = world.send(2), world.send(1)
    world.clock.ms += 1000
    assert (world.deliver(1), world.deliver(2)) == ([quick], [])
    world.clock.ms += 4000
    assert (world.deliver(1), world.deliver(2)) == ([], [slow])


def test_many_are_delivered_in_order_and_in_bounded_steps(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delay, "BATCH_COUNT_MAX", 4)
    keys = [world.send() for _ in range(10)]
    world.clock.ms += 1000
    step = world.service.next(1)
    assert isinstance(step, DueBatch)
    assert (len(step.drafts), step.offsets, step.next_offset) == (4, [0, 1, 2, 3], 4)
    monkeypatch.setattr(delay, "BATCH_BYTES_MAX", 1)
    step = world.service.next(1)
    assert isinstance(step, DueBatch)
    assert len(step.drafts) == 1
    assert world.deliver() == keys


def test_a_clock_set_forward_makes_messages_due(world: World) -> None:
    key = world.send(2)
    world.clock.ms += 3_600_000
    assert world.deliver(2) == [key]


def test_after_a_clock_was_set_back_nothing_waits_longer_than_its_delay(world: World) -> None:
    keys = [world.send(2) for _ in range(3)]
    world.clock.ms -= 3_600_000
    assert world.service.next(2) == Wait(5000)
    world.clock.ms += 4999
    assert world.service.next(2) == Wait(1)
    later = world.send(2)
    world.clock.ms += 1
    assert world.deliver(2) == keys
    assert world.service.next(2) == Wait(4999)
    world.clock.ms += 4999
    assert world.deliver(2) == [later]


def test_a_clock_set_back_twice(world: World) -> None:
    key = world.send(2)
    world.clock.ms -= 3_600_000
    assert world.service.next(2) == Wait(5000)
    world.clock.ms -= 3_600_000
    assert world.service.next(2) == Wait(5000)
    world.clock.ms += 5000
    assert world.deliver(2) == [key]


def test_an_entry_without_a_time_waits_by_its_store_time(world: World) -> None:
    draft = delayed_draft(world.draft(), 1, level_max=2)
    properties = decode_properties(draft.properties)
    del properties["DELAY"]
    draft.properties, draft.tags_code = encode_properties(properties), 77
    world.store.append(draft)
    world.store.confirm(world.store.commit())
    assert world.service.next(1) == Wait(1000)
    world.clock.ms += 1000
    assert world.deliver() == ["U1"]


def test_a_message_for_a_missing_topic_waits_a_minute_and_is_discarded(world: World) -> None:
    world.send()
    world.send()
    other = delayed_draft(world.draft(), 1, level_max=2)
    other.properties = other.properties.replace(b"REAL_TOPIC\x01T", b"REAL_TOPIC\x01V")
    world.store.append(other)
    world.store.confirm(world.store.commit())
    world.topics.table["V"] = world.topics.table.pop("T")
    world.clock.ms += 1000
    assert world.service.next(1) == Wait(1000)
    world.clock.ms += 59_999
    assert world.service.next(1) == Wait(1000)
    world.clock.ms += 1
    # Both go at once, and the level goes on.
    assert world.deliver() == ["U3"]


def test_a_missing_topic_that_comes_back_gets_its_messages(world: World) -> None:
    key = world.send()
    config = world.topics.table.pop("T")
    world.clock.ms += 1000
    assert world.service.next(1) == Wait(1000)
    world.topics.table["T"] = config
    assert world.deliver() == [key]


def test_the_wait_for_a_missing_topic_survives_a_clock_set_back(world: World) -> None:
    world.send()
    del world.topics.table["T"]
    world.clock.ms += 10_000
    assert world.service.next(1) == Wait(1000)
    world.clock.ms -= 9000
    assert world.service.next(1) == Wait(1000)
    world.clock.ms += 60_000
    assert world.deliver() == []
    assert world.progress.next_offset(1) == 1


@pytest.mark.parametrize(("group", "made"), [("g", True), ("unknown", False)])
def test_a_missing_retry_topic_is_created_again(world: World, group: str, made: bool) -> None:
    draft = world.draft()
    draft.topic, draft.queue_id = f"%RETRY%{group}", 0
    world.store.append(delayed_draft(draft, 1, level_max=2))
    world.store.confirm(world.store.commit())
    world.clock.ms += 1000
    assert world.deliver() == (["U1"] if made else [])
    assert (f"%RETRY%{group}" in world.topics.table) is made


@pytest.mark.parametrize(
    ("name", "value"), [("REAL_TOPIC", ""), ("REAL_QID", "x"), ("REAL_TOPIC", SCHEDULE_TOPIC)]
)
def test_a_message_without_destination_is_skipped(world: World, name: str, value: str) -> None:
    draft = delayed_draft(world.draft(), 1, level_max=2)
    properties = decode_properties(draft.properties) | {name: value}
    draft.properties = encode_properties(properties)
    world.store.append(draft)
    world.store.confirm(world.store.commit())
    key = world.send()
    world.clock.ms += 1000
    assert world.deliver() == [key]


def test_a_message_for_a_removed_queue_goes_to_an_existing_one(world: World) -> None:
    world.send()
    world.topics.table["T"] = TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=2)
    world.clock.ms += 1000
    world.deliver()
    assert len(world.records("T", 0)) == 1


def test_progress_is_corrected_into_the_queue(world: World) -> None:
    world.saved = b'{"offsetTable":{1:40,2:-3}}'
    world.close()
    world.open()
    key = world.send()
    world.clock.ms += 1000
    assert world.deliver() == []
    assert world.service.state(1) == (1, 1)
    queue = world.store.queue(SCHEDULE_TOPIC, 0)
    assert queue is not None
    later = world.send()
    world.clock.ms += 1000
    assert world.deliver() == [later]
    assert key != later


def test_only_progress_that_is_on_disk_is_saved(world: World) -> None:
    durable = Position(0)
    world.progress.durable = lambda: durable
    world.send()
    world.clock.ms += 1000
    world.deliver()
    before = world.progress.revision
    assert world.progress.next_offset(1) == 1
    assert b'offsetTable":{}' in world.progress.to_json()
    durable = world.store.end_position
    assert world.progress.revision > before
    assert b'offsetTable":{1:1}' in world.progress.to_json()


def test_a_damaged_table_is_refused(world: World) -> None:
    with pytest.raises(StoreError):
        world.progress.load(b"nonsense")


def test_copies_counted_before_a_crash_count_for_no_other_message(world: World) -> None:
    born_ms = world.clock.ms - 3

    def send_twin() -> None:
        draft = delayed_draft(world.draft(UNIQ_KEY="twin"), 1, level_max=2)
        draft.born_ms = born_ms
        world.store.append(draft)
        world.store.confirm(world.store.commit())

    send_twin()
    world.clock.ms += DELAYS_MS[0]
    send_twin()  # stored before the first is delivered, equal in all but its place
    assert world.deliver() == ["twin"]
    world.save()
    world.clock.ms += DELAYS_MS[0]
    world.crash()
    world.open()
    assert world.resume() == 0
    assert world.deliver() == ["twin"]


def test_after_a_crash_nothing_is_delivered_twice(world: World) -> None:
    keys = [world.send() for _ in range(5)]
    world.clock.ms += 1000
    world.save()
    assert world.deliver() == keys
    late = world.send()
    world.clock.ms += 1000
    world.crash()
    world.open()
    assert world.resume() == 5
    assert world.deliver() == [late]


def test_a_copy_counts_for_one_message_only(world: World) -> None:
    draft = delayed_draft(world.draft(), 1, level_max=2)
    for _ in range(2):  # a client that sent the same again after a time-out
        world.store.append(draft)
        world.store.confirm(world.store.commit())
    world.clock.ms += 1000
    step = world.service.next(1)
    assert isinstance(step, DueBatch)
    world.store.append(step.drafts[0])
    world.store.confirm(world.store.commit())
    world.crash()
    world.open()
    assert world.resume() == 1
    assert world.deliver() == ["U1"]


def test_a_retried_message_is_not_taken_for_its_earlier_copy(world: World) -> None:
    world.send()
    world.clock.ms += 1000
    world.deliver()
    again = world.draft(UNIQ_KEY="U1")
    again.reconsume_times = 2
    world.store.append(delayed_draft(again, 1, level_max=2))
    world.store.confirm(world.store.commit())
    world.clock.ms += 1000
    world.save()
    world.crash()
    world.open()
    assert world.resume() == 0
    assert world.deliver() == ["U1"]


steps = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(1, 2)),
        st.tuples(st.just("pass"), st.integers(1, 4000)),
        st.tuples(st.sampled_from(["deliver", "save", "crash", "restart"]), st.integers(1, 2)),
    ),
    max_size=30,
)


@settings(max_examples=40, deadline=None)
@given(steps=steps)
def test_all_are_delivered_once_in_order_and_never_early(steps: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        world = World(Path(directory) / "store")
        sent: dict[int, list[str]] = {1: [], 2: []}
        delivered: dict[int, list[str]] = {1: [], 2: []}
        due: dict[str, int] = {}
        for what, number in [*steps, ("pass", 5000), ("deliver", 1), ("deliver", 2)]:
            if what == "send":
                key = world.send(number)
                sent[number].append(key)
                due[key] = world.clock.ms + DELAYS_MS[number - 1]
            elif what == "pass":
                world.clock.ms += number
            elif what == "deliver":
                for key in world.deliver(number):
                    assert world.clock.ms >= due[key]
                    delivered[number].append(key)
            elif what == "save":
                world.save()
            else:
                if what == "crash":
                    world.crash()
                else:
                    world.save()
                    world.close()
                world.open()
                world.resume()
        world.close()
        assert delivered == sent
