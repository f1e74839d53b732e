"""Copies that are stored of messages that are sent back."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rocketpost.broker.group.retry import RetryService
from rocketpost.broker.timer.admission import TimedMessages, TimerRules
from rocketpost.broker.topic import TopicTable
from rocketpost.codec.faults import Fault, GroupNotExist, NoPermission, ServerError
from rocketpost.codec.headers.retry import SendBackHeader
from rocketpost.codec.properties import decode_properties, encode_properties
from rocketpost.codec.record import Record, pack_host
from rocketpost.kernel.hashing import string_hash
from rocketpost.model.group import GroupConfig
from rocketpost.model.names import SCHEDULE_TOPIC, TIMER_TOPIC
from rocketpost.model.retry_policy import RetryPolicy
from rocketpost.model.sysflag import TRANSACTION_COMMIT, TRANSACTION_PREPARED
from rocketpost.testing.clock import FakeClock

HOST = pack_host("10.0.0.1", 10911)
BORN = pack_host("10.0.0.9", 4000)
NEW = 479
DAY_MS = 86_400_000
OLD = 120

RECORD = Record(
    size=0, magic=0, body_crc=0, queue_id=3, flag=7, queue_offset=5, position=64, sys_flag=1,
    born_ms=11, born_host_bytes=BORN, store_ms=12, store_host_bytes=HOST, reconsume_times=0,
    prepared_position=0, body=b"body", topic="T",
    properties_bytes=encode_properties({"UNIQ_KEY": "U", "TAGS": "A", "KEYS": "k"}),
)  # fmt: skip


class Groups:
    def __init__(self) -> None:
        self.config = GroupConfig(group_name="g", retry_max_times=2, retry_queue_nums=3)

        self.policy: RetryPolicy | None = None
        self.used: list[str] = []

    def use(self, group: str) -> None:
        self.used.append(group)

    def find_or_create(self, group: str, *, by: str = "") -> GroupConfig | None:
        return self.config if group == "g" else None

    def retry_policy(self, group: str) -> RetryPolicy | None:
        return self.policy


class World:
    def __init__(self, clock: FakeClock) -> None:
        self.groups = Groups()
        self.topics = TopicTable(clock=clock, cluster_name="C", broker_name="b")
        self.record: Record | None = RECORD
        self.timers = TimedMessages(
            clock=clock,
            precision_ms=1000,
            rules=lambda: TimerRules(delay_ms_max=DAY_MS),
            random_below=lambda count: 0,
        )
        self.service = RetryService(
            topics=self.topics,
            groups=self.groups,
            record_at=lambda position: self.record if position == 64 else None,
            store_host=HOST,
            random_below=lambda count: count - 1,
            level_max=18,
            put_off=self.timers.put_off,
        )

    def back(self, *, version: int = NEW, writable: bool = True, **fields: Any) -> Any:
        header = SendBackHeader(**{"offset": 64, "group": "g"} | fields)
        return self.service.draft(header, client_version=version, broker_writable=writable)


@pytest.fixture
def world(clock: FakeClock) -> World:
    return World(clock)


def test_the_copy_keeps_everything_and_counts_the_retry(world: World) -> None:
    draft = world.back()
    assert (draft.topic, draft.queue_id) == (SCHEDULE_TOPIC, 2)
    assert (draft.flag, draft.sys_flag, draft.body) == (7, 1, b"body")
    assert (draft.born_ms, draft.born_host, draft.store_host) == (11, BORN, HOST)
    assert draft.reconsume_times == 1
    assert draft.keys == ("U", "k")
    assert decode_properties(draft.properties) == {
        "UNIQ_KEY": "U",
        "TAGS": "A",
        "KEYS": "k",
        "RETRY_TOPIC": "T",
        "ORIGIN_MESSAGE_ID": RECORD.message_id,
        "WAIT": "false",
        "DELAY": "3",
        "REAL_TOPIC": "%RETRY%g",
        "REAL_QID": "2",
    }
    made = world.topics.find("%RETRY%g")
    assert made is not None
    assert (made.write_queue_nums, made.perm) == (3, 6)


def test_a_message_that_waits_for_its_retry_keeps_its_group(world: World) -> None:
    world.groups.policy = RetryPolicy((700,))
    world.back(delay_level=18)
    world.back()
    assert world.groups.used == ["g", "g"]


def test_the_cause_of_a_failure_is_kept_until_the_next_failure(world: World) -> None:
    draft = world.back(failure_kind="ValueError", failure_text="no \x02 such\nthing" + "x" * 1000)
    properties = decode_properties(draft.properties)
    assert properties["CONSUME_FAILURE"] == "ValueError"
    assert properties["CONSUME_FAILURE_TEXT"].startswith("no such thingxxx")
    assert len(properties["CONSUME_FAILURE_TEXT"]) == 256
    world.record = msgspec.structs.replace(RECORD, properties_bytes=draft.properties)
    assert "CONSUME_FAILURE" not in decode_properties(world.back().properties)
    again = decode_properties(world.back(failure_kind="KeyError", delay_level=-1).properties)
    assert again["CONSUME_FAILURE"] == "KeyError"
    assert "CONSUME_FAILURE_TEXT" not in again


def test_a_cause_that_has_no_room_is_left_out(world: World) -> None:
    full = encode_properties({"UNIQ_KEY": "U", "big": "x" * 32600})
    world.record = msgspec.structs.replace(RECORD, properties_bytes=full)
    dead = world.back(failure_kind="ValueError", failure_text="x" * 256, delay_level=-1)
    properties = decode_properties(dead.properties)
    assert properties["big"] == "x" * 32600
    assert "CONSUME_FAILURE" not in properties


def test_the_first_topic_and_id_stay(world: World) -> None:
    kept = {"RETRY_TOPIC": "First", "ORIGIN_MESSAGE_ID": "ID", "REAL_TOPIC": "x", "REAL_QID": "9"}
    world.record = msgspec.structs.replace(RECORD, properties_bytes=encode_properties(kept))
    properties = decode_properties(world.back().properties)
    assert (properties["RETRY_TOPIC"], properties["ORIGIN_MESSAGE_ID"]) == ("First", "ID")
    assert (properties["REAL_TOPIC"], properties["REAL_QID"]) == ("%RETRY%g", "2")


@pytest.mark.parametrize(
    ("times", "asked", "level"), [(0, 0, 3), (1, 0, 4), (1, 5, 5), (40, 0, 18), (0, 99, 18)]
)
def test_the_delay_grows_or_is_chosen(world: World, times: int, asked: int, level: int) -> None:
    world.record = msgspec.structs.replace(RECORD, reconsume_times=times)
    draft = world.back(delay_level=asked, max_reconsume_times=100)
    assert draft.queue_id == level - 1


@pytest.mark.parametrize(
    ("times", "version", "fields", "dead"),
    [
        (1, NEW, {}, False),
        (2, NEW, {}, True),
        (2, NEW, {"max_reconsume_times": 3}, False),
        (3, NEW, {"max_reconsume_times": 3}, True),
        (2, OLD, {"max_reconsume_times": 3}, True),
        (0, NEW, {"delay_level": -1}, True),
        (0, NEW, {"max_reconsume_times": 0}, True),
    ],
)
def test_a_message_becomes_a_dead_letter_after_its_last_retry(
    world: World, times: int, version: int, fields: dict[str, int], dead: bool
) -> None:
    world.record = msgspec.structs.replace(RECORD, reconsume_times=times)
    draft = world.back(version=version, **fields)
    assert (draft.topic == "%DLQ%g") is dead
    assert draft.reconsume_times == times + 1
    if dead:
        made = world.topics.find("%DLQ%g")
        assert made is not None
        assert (made.read_queue_nums, made.write_queue_nums, made.perm) == (1, 1, 6)
        assert (draft.queue_id, draft.tags_code) == (0, string_hash("A"))
        properties = decode_properties(draft.properties)
        assert (properties["DELAY"], properties["WAIT"]) == ("0", "false")


def test_a_group_that_wants_no_retries_gets_none(world: World) -> None:
    world.groups.config = msgspec.structs.replace(world.groups.config, retry_queue_nums=0)
    assert world.back() is None
    assert world.topics.find("%RETRY%g") is None


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"group": "unknown"}, GroupNotExist),
        ({"writable": False}, NoPermission),
        ({"offset": 65}, ServerError),
    ],
)
def test_refusals(world: World, fields: dict[str, Any], fault: type[Fault]) -> None:
    with pytest.raises(fault):
        world.back(**fields)


def test_a_retry_topic_without_write_permission_refuses_retries(world: World) -> None:
    made = world.topics.create_internal("%RETRY%g", queue_nums=1)
    world.topics.update(msgspec.structs.replace(made, perm=4))
    with pytest.raises(NoPermission):
        world.back()


def test_a_retry_topic_with_fewer_queues_than_the_group_wants(world: World) -> None:
    world.topics.create_internal("%RETRY%g", queue_nums=1)
    assert decode_properties(world.back().properties)["REAL_QID"] == "0"


def test_properties_without_room(world: World) -> None:
    full = encode_properties({"a": "x" * 32_700})
    world.record = msgspec.structs.replace(RECORD, properties_bytes=full)
    with pytest.raises(ServerError, match="stored again"):
        world.back()


def test_a_half_message_is_retried_as_a_plain_one(world: World) -> None:
    world.record = msgspec.structs.replace(RECORD, sys_flag=TRANSACTION_PREPARED)
    assert world.back().sys_flag == 0
    world.record = msgspec.structs.replace(RECORD, sys_flag=TRANSACTION_COMMIT)
    assert world.back().sys_flag == TRANSACTION_COMMIT


def test_the_retry_policy_of_the_group_sets_the_delay(world: World, clock: FakeClock) -> None:
    world.groups.config = GroupConfig(group_name="g", retry_max_times=16)
    world.groups.policy = RetryPolicy((700, 90_000))
    waits = []
    for times in range(3):
        world.record = msgspec.structs.replace(RECORD, reconsume_times=times)
        draft = world.back()
        assert (draft.topic, draft.reconsume_times) == (TIMER_TOPIC, times + 1)
        properties = decode_properties(draft.properties)
        assert (properties["REAL_TOPIC"], properties["RETRY_TOPIC"]) == ("%RETRY%g", "T")
        assert "DELAY" not in properties
        waits.append(int(properties["TIMER_DELIVER_MS"]) - clock.now_ms())
    assert waits == [700, 90_000, 90_000]


def test_a_requested_level_or_the_dlq_overrides_the_policy(world: World) -> None:
    world.groups.policy = RetryPolicy((700,))
    assert world.back(delay_level=5).topic == SCHEDULE_TOPIC
    assert world.back(delay_level=-1).topic == "%DLQ%g"


def test_a_message_that_was_timed_before_gets_a_new_due_time(
    world: World, clock: FakeClock
) -> None:
    world.groups.policy = RetryPolicy((10 * DAY_MS,))
    once = {"UNIQ_KEY": "U", "TIMER_DELAY_SEC": "1", "TIMER_OUT_MS": "5", "TIMER_DELIVER_MS": "6"}
    world.record = msgspec.structs.replace(RECORD, properties_bytes=encode_properties(once))
    properties = decode_properties(world.back().properties)
    assert "TIMER_DELAY_SEC" not in properties
    assert int(properties["TIMER_DELIVER_MS"]) == clock.now_ms() + DAY_MS  # timerMaxDelaySec
