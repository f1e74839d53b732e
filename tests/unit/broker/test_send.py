"""Sends that are accepted, and the records that are stored for them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpost.broker.kinds import DeadLetters, DelayLevels, HalfMessages
from rocketpost.broker.send import SendService
from rocketpost.codec.batch import BatchItem, encode_batch
from rocketpost.codec.faults import (
    GroupNotExist,
    InvalidParameter,
    MessageIllegal,
    NoPermission,
    ServerError,
    TopicNotExist,
)
from rocketpost.codec.headers.message import SendMessage
from rocketpost.codec.properties import (
    PROPERTIES_BYTES_MAX,
    decode_properties,
    encode_properties,
)
from rocketpost.codec.record import pack_host
from rocketpost.kernel.hashing import string_hash
from rocketpost.model.group import GroupConfig
from rocketpost.model.sysflag import BORN_HOST_V6, STORE_HOST_V6
from rocketpost.model.topic import TopicConfig
from rocketpost.testing import FakeClock

V4 = pack_host("10.0.0.2", 4000)
V6 = pack_host("fe80::1", 4000)
ADDED = {"MSG_REGION": "R", "TRACE_ON": "true", "CLUSTER": "C"}


class Topics:
    def __init__(self) -> None:
        self.table: dict[str, TopicConfig] = {}
        self.add("T", 4)
        self.add("SCHEDULE_TOPIC_XXXX", 18)

    def add(self, topic: str, queues: int, **more: Any) -> TopicConfig:
        config = TopicConfig(
            topic_name=topic, read_queue_nums=queues, write_queue_nums=queues, **more
        )
        self.table[topic] = config
        return config

    def find(self, topic: str) -> TopicConfig | None:
        return self.table.get(topic)

    def create_on_send(
        self, topic: str, *, template: str, queue_nums: int, unit_mode: bool, by: str
    ) -> TopicConfig | None:
        return self.add(topic, queue_nums) if template == "TBW102" else None

    def create_internal(self, topic: str, *, queue_nums: int, by: str = "") -> TopicConfig:
        return self.table.get(topic) or self.add(topic, queue_nums)


class Groups:
    def __init__(self) -> None:
        self.used: list[str] = []

    def use(self, group: str) -> None:
        self.used.append(group)

    def find_or_create(self, group: str, *, by: str = "") -> GroupConfig | None:
        return None if group == "unknown" else GroupConfig(group_name=group, retry_max_times=3)


@pytest.fixture
def topics() -> Topics:
    return Topics()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def locked() -> set[str]:
    return set()


@pytest.fixture
def groups() -> Groups:
    return Groups()


@pytest.fixture
def service(topics: Topics, groups: Groups, clock: FakeClock, locked: set[str]) -> SendService:
    return new_service(topics, groups, clock, locked)


def new_service(topics: Topics, groups: Groups, clock: FakeClock, locked: set[str]) -> SendService:
    service = SendService(
        topics=topics,
        groups=groups,
        clock=clock,
        store_host=V4,
        cluster_name="C",
        region="R",
        new_unique_id=lambda: "GENERATED",
        random_below=lambda n: n - 1,
        holds_locks=locked.__contains__,
        kinds=(
            HalfMessages(),
            DeadLetters(),
            DelayLevels(level_max=18),
        ),
    )
    service.configure(message_bytes_max=100, trace_on=True, accept_from_ms=0)
    return service


def header(**more: Any) -> SendMessage:
    values: dict[str, Any] = {
        "producer_group": "P",
        "topic": "T",
        "default_topic": "TBW102",
        "queue_id": 1,
        "properties": "UNIQ_KEY\x01U1\x02TAGS\x01A\x02",
    }
    return SendMessage(**values | more)


def draft(service: SendService, body: bytes = b"body", host: bytes = V4, **more: Any) -> Any:
    return service.draft(header(**more), body, born_host=host, client_version=479)


def test_a_draft_has_the_fields_of_the_send(service: SendService) -> None:
    stored = draft(service, properties="KEYS\x01k1 k2\x02UNIQ_KEY\x01U\x02TAGS\x01A\x02", flag=9)
    assert (stored.topic, stored.queue_id, stored.flag, stored.body) == ("T", 1, 9, b"body")
    assert stored.keys == ("U", "k1", "k2")
    assert stored.tags_code == string_hash("A")
    assert decode_properties(stored.properties) == {
        "KEYS": "k1 k2",
        "UNIQ_KEY": "U",
        "TAGS": "A",
        **ADDED,
    }


@pytest.mark.parametrize(
    ("sent", "stored"),
    [
        ("", {"UNIQ_KEY": "GENERATED"}),
        ("a\x01b", {"a": "b", "UNIQ_KEY": "GENERATED"}),
        ("UNIQ_KEY\x01U\x02a\x01b", {"a": "b", "UNIQ_KEY": "U"}),
        ("UNIQ_KEY\x01U\x02POP_CK\x01x\x02", {"UNIQ_KEY": "U"}),
        ("UNIQ_KEY\x01U\x02CLUSTER\x01old\x02", {"UNIQ_KEY": "U"}),
        ("UNIQ_KEY\x01U\x02nonsense\x02", {"UNIQ_KEY": "U"}),
        ("UNIQ_KEY\x01U\x02v\x01a\x01b\x02", {"UNIQ_KEY": "U", "v": "a\x01b"}),
        ("UNIQ_KEY\x01\x02a\x01b\x02", {"UNIQ_KEY": "GENERATED", "a": "b"}),
        ("xUNIQ_KEY\x01U\x02", {"UNIQ_KEY": "GENERATED", "xUNIQ_KEY": "U"}),
        ("a\x01b\x02UNIQ_KEY\x01U\x02c\x01d\x02", {"UNIQ_KEY": "U", "a": "b", "c": "d"}),
        ("UNIQ_KEY\x01U\x02UNIQ_KEY\x01V\x02", {"UNIQ_KEY": "V"}),
        ("UNIQ_KEY\x01U", {"UNIQ_KEY": "U"}),
    ],
)
def test_properties_are_completed(service: SendService, sent: str, stored: dict[str, str]) -> None:
    for _ in range(2):  # the second time what is plain is remembered
        found = draft(service, properties=sent)
        assert decode_properties(found.properties) == stored | ADDED
        assert found.keys[0] == stored["UNIQ_KEY"]


PAIRS = st.sampled_from(
    [
        *("TAGS\x01a\x02", "KEYS\x01k1 k2\x02", "KEYS\x01\x02", "KEYS\x01 \x02", "MYKEYS\x01k\x02"),
        *(
            "a\x01b\x02",
            "a\x01c\x02",
            "\x02",
            "\x01\x02",
            "x\x02",
            "ü\x01ü\x02",
            "WAIT\x01true\x02",
        ),
        *(
            "UNIQ_KEY\x01U\x02",
            "UNIQ_KEY\x01\x02",
            "PRIORITY\x011\x02",
            "CLUSTER\x01c\x02",
            "end\x01",
        ),
    ]
)


@given(st.lists(PAIRS, max_size=6).map("".join))
def test_cached_properties_are_stored_like_parsed_ones(sent: str) -> None:
    service = new_service(Topics(), Groups(), FakeClock(), set())
    first = draft(service, properties=sent)
    for _ in range(2):
        found = draft(service, properties=sent.replace("k1", "k3").replace("U\x02", "V\x02"))
        fresh = draft(
            new_service(Topics(), Groups(), FakeClock(), set()),
            properties=sent.replace("k1", "k3").replace("U\x02", "V\x02"),
        )
        assert (found.properties, found.tags_code, found.keys) == (
            fresh.properties,
            fresh.tags_code,
            fresh.keys,
        )
    assert draft(service, properties=sent) == first


def test_messages_with_keys_are_cached(service: SendService) -> None:
    for n in range(5):
        found = draft(service, properties=f"KEYS\x01a{n} b\x02UNIQ_KEY\x01U{n}\x02TAGS\x01t\x02")
        assert found.keys == (f"U{n}", f"a{n}", "b")
    assert len(service._plain_rests) == 1


def test_the_cache_of_plain_properties_is_bounded(service: SendService) -> None:
    for n in range(10_000):
        found = draft(service, properties=f"UNIQ_KEY\x01U{n}\x02TAGS\x01{n % 5000}\x02")
        assert found.tags_code == string_hash(str(n % 5000))
    assert len(service._plain_rests) <= 4096


def test_queues(service: SendService) -> None:
    assert draft(service, queue_id=-1).queue_id == 3
    with pytest.raises(InvalidParameter, match="queue 4 of the topic T"):
        draft(service, queue_id=4)


def test_queues_between_the_write_and_read_numbers_are_accepted(
    service: SendService, topics: Topics
) -> None:
    topics.table["T"] = TopicConfig(topic_name="T", read_queue_nums=8, write_queue_nums=2)
    assert draft(service, queue_id=7).queue_id == 7


def test_unknown_topics(service: SendService, topics: Topics) -> None:
    assert draft(service, topic="New").topic == "New"
    assert "New" in topics.table
    with pytest.raises(TopicNotExist, match="mqadmin updateTopic -t Other"):
        draft(service, topic="Other", default_topic="Nope")


@pytest.mark.parametrize("topic", ["", " ", "../../etc", "a/b", "a.b", "ä", "x" * 128, "a\x00b"])
def test_illegal_names_never_reach_the_table(
    service: SendService, topics: Topics, topic: str
) -> None:
    before = set(topics.table)
    with pytest.raises(InvalidParameter):
        draft(service, topic=topic)
    assert set(topics.table) == before


def test_sends_to_system_topics_are_refused(service: SendService) -> None:
    with pytest.raises(NoPermission, match="SCHEDULE"):
        draft(service, topic="SCHEDULE_TOPIC_XXXX")


@pytest.mark.parametrize(
    ("body", "properties", "named"),
    [
        (b"", "", "no body"),
        (b"x" * 101, "", "101 bytes"),
        (b"x", "a\x01" + "b" * PROPERTIES_BYTES_MAX, "properties"),
    ],
)
def test_sizes(service: SendService, body: bytes, properties: str, named: str) -> None:
    with pytest.raises(MessageIllegal, match=named):
        draft(service, body, properties=properties)


def test_a_message_that_only_looks_special_is_plain(service: SendService) -> None:
    assert draft(service, properties="TRAN_MSG\x01false\x02DELAY\x010\x02").topic == "T"


@pytest.mark.parametrize(("asked", "level"), [("3", 3), ("18", 18), ("40", 18)])
def test_a_delayed_message_waits_in_the_queue_of_its_level(
    service: SendService, asked: str, level: int
) -> None:
    stored = draft(
        service, properties=f"UNIQ_KEY\x01U\x02DELAY\x01{asked}\x02TIMER_DELAY_MS\x015\x02"
    )
    assert (stored.topic, stored.queue_id, stored.keys) == (
        "SCHEDULE_TOPIC_XXXX",
        level - 1,
        ("U",),
    )
    assert decode_properties(stored.properties) == {
        "UNIQ_KEY": "U",
        "DELAY": str(level),
        "REAL_TOPIC": "T",
        "REAL_QID": "1",
        **ADDED,
    }


@pytest.mark.parametrize("level", ["soon", "9999999999", "-"])
def test_a_level_that_is_not_a_number_is_refused(service: SendService, level: str) -> None:
    with pytest.raises(MessageIllegal, match="level"):
        draft(service, properties=f"DELAY\x01{level}\x02")


def test_a_delayed_message_needs_room_for_its_destination(service: SendService) -> None:
    room = PROPERTIES_BYTES_MAX - len("DELAY\x013\x02UNIQ_KEY\x01U\x02a\x01\x02") - 60
    text = "DELAY\x013\x02UNIQ_KEY\x01U\x02a\x01" + "b" * room + "\x02"
    with pytest.raises(MessageIllegal, match="properties"):
        draft(service, properties=text)


def test_a_retry_of_a_transactional_message_is_not_a_transaction(service: SendService) -> None:
    text = "UNIQ_KEY\x01U\x02TRAN_MSG\x01true\x02DELAY\x013\x02"
    stored = draft(service, topic="%RETRY%g", queue_id=0, reconsume_times=1, properties=text)
    assert stored.topic == "SCHEDULE_TOPIC_XXXX"
    with pytest.raises(MessageIllegal, match="cannot be delayed"):
        draft(service, properties=f"{text}PGROUP\x01g\x02")


def test_a_dead_letter_is_not_delayed(service: SendService) -> None:
    text = "UNIQ_KEY\x01U\x02DELAY\x013\x02"
    stored = draft(service, topic="%RETRY%g", queue_id=0, reconsume_times=4, properties=text)
    assert (stored.topic, stored.queue_id) == ("%DLQ%g", 0)
    assert decode_properties(stored.properties)["DELAY"] == "-1"


def test_ipv6_hosts_are_flagged(service: SendService) -> None:
    assert draft(service, host=V6).sys_flag == BORN_HOST_V6
    # A client must not make readers misjudge the layout of a record.
    assert draft(service, sys_flag=BORN_HOST_V6 | STORE_HOST_V6).sys_flag == 0


def test_multi_tag_topics(service: SendService, topics: Topics) -> None:
    topics.add("M", 1, topic_filter_type="MULTI_TAG")
    assert draft(service, topic="M", queue_id=0).sys_flag == 2


def test_retries(service: SendService, locked: set[str]) -> None:
    assert draft(service, topic="%RETRY%G", queue_id=0, reconsume_times=3).topic == "%RETRY%G"
    assert draft(service, topic="%RETRY%G", queue_id=0, reconsume_times=4).topic == "%DLQ%G"
    more = draft(service, topic="%RETRY%G", queue_id=0, reconsume_times=4, max_reconsume_times=9)
    assert more.topic == "%RETRY%G"
    locked.add("G")
    assert draft(service, topic="%RETRY%G", queue_id=0).topic == "%DLQ%G"
    with pytest.raises(GroupNotExist, match="unknown"):
        draft(service, topic="%RETRY%unknown", queue_id=0)


def test_a_retry_that_waits_keeps_its_group(service: SendService, groups: Groups) -> None:
    draft(service, topic="%RETRY%G", queue_id=0)
    draft(service, properties="DELAY\x013\x02")
    with pytest.raises(MessageIllegal, match="level"):
        draft(service, topic="%RETRY%G", queue_id=0, properties="DELAY\x01soon\x02")
    assert groups.used == []
    draft(service, topic="%RETRY%G", queue_id=0, properties="DELAY\x013\x02")
    assert groups.used == ["G"]


def test_a_retry_of_a_deleted_group_is_refused(service: SendService, topics: Topics) -> None:
    topics.add("%RETRY%unknown", 1)
    with pytest.raises(GroupNotExist):
        draft(service, topic="%RETRY%unknown", queue_id=0)


def test_sends_may_be_closed_for_a_while(service: SendService, clock: FakeClock) -> None:
    opens = clock.now_ms() + 1000
    service.configure(message_bytes_max=100, trace_on=False, accept_from_ms=opens)
    with pytest.raises(ServerError, match="not accept"):
        draft(service)
    clock.advance(ms=1000)
    assert b"TRACE_ON\x01false" in draft(service).properties


def item(body: bytes = b"b", **properties: str) -> BatchItem:
    return BatchItem(flag=0, body=memoryview(body), properties=encode_properties(properties))


def batch(service: SendService, items: list[BatchItem], **more: Any) -> Any:
    more.setdefault("properties", "")
    return service.draft_batch(header(batch=True, **more), encode_batch(items), born_host=V4)


def test_a_batch_becomes_its_messages(service: SendService) -> None:
    drafts = batch(service, [item(b"1", UNIQ_KEY="U1", KEYS="k"), item(b"2", TAGS="A")])
    assert [bytes(d.body) for d in drafts] == [b"1", b"2"]
    assert drafts[0].keys == ("U1", "k")
    assert drafts[1].keys == ("GENERATED",)
    assert drafts[1].tags_code == string_hash("A")
    assert decode_properties(drafts[0].properties) == {
        "UNIQ_KEY": "U1",
        "KEYS": "k",
        **ADDED,
    }


def test_properties_of_the_batch_go_to_each_message_except_its_key(service: SendService) -> None:
    shared = "UNIQ_KEY\x01BATCH\x02WAIT\x01true\x02a\x01shared\x02"
    first, second = batch(service, [item(UNIQ_KEY="U1", a="own"), item()], properties=shared)
    assert decode_properties(first.properties) == {"UNIQ_KEY": "U1", "a": "own"} | ADDED
    assert decode_properties(second.properties)["a"] == "shared"
    assert second.keys == ("GENERATED",)


def test_batches_that_are_refused_as_a_whole(service: SendService) -> None:
    with pytest.raises(MessageIllegal, match="retry"):
        batch(service, [item()], topic="%RETRY%G", queue_id=0)
    with pytest.raises(MessageIllegal, match="message 1 of the batch is delayed"):
        batch(service, [item(), item(DELAY="1")])
    with pytest.raises(MessageIllegal, match="message 1 of the batch is refused"):
        batch(service, [item(), item(b"")])
    with pytest.raises(MessageIllegal, match="no body"):
        batch(service, [])
    with pytest.raises(MessageIllegal, match="stray bytes"):
        service.draft_batch(header(batch=True), b"\x00\x00\x00\x09rest", born_host=V4)


def test_the_number_of_messages_in_a_batch_is_bounded(
    service: SendService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rocketpost.broker.send.BATCH_COUNT_MAX", 3)
    assert len(batch(service, [item()] * 3)) == 3
    with pytest.raises(MessageIllegal, match="more than 3 messages; send several batches"):
        batch(service, [item()] * 4)


def test_an_ordered_topic_is_closed_with_its_broker(service: SendService, topics: Topics) -> None:
    topics.add("Ordered", 4, order=True)
    service.configure(message_bytes_max=100, trace_on=True, accept_from_ms=0, broker_writable=False)
    with pytest.raises(NoPermission, match="ordered topic Ordered"):
        draft(service, topic="Ordered")
    assert draft(service).topic == "T"


PLAIN = "UNIQ_KEY\x01U\x02"
TYPES = {
    "NORMAL": PLAIN,
    "FIFO": PLAIN + "__SHARDINGKEY\x01k\x02",
    "DELAY": PLAIN + "DELAY\x012\x02",
    "TIMED": PLAIN + "TIMER_DELAY_SEC\x019\x02",
    "TRANSACTION": PLAIN + "TRAN_MSG\x01true\x02PGROUP\x01P\x02",
}


@pytest.mark.parametrize(
    ("kind", "taken"),
    [
        ("NORMAL", {"NORMAL"}),
        ("FIFO", {"NORMAL", "FIFO"}),
        ("DELAY", {"DELAY", "TIMED"}),
        ("TRANSACTION", {"TRANSACTION"}),
        ("PRIORITY", set(TYPES)),
        ("MIXED", set(TYPES)),
        ("UNSPECIFIED", set(TYPES)),
    ],
)
def test_a_typed_topic_accepts_only_messages_of_its_type(
    service: SendService, topics: Topics, kind: str, taken: set[str]
) -> None:
    topics.add("Typed", 4, attributes={"message.type": kind})
    for name, properties in TYPES.items():
        if name in taken:
            draft(service, topic="Typed", properties=properties)
            continue
        with pytest.raises(MessageIllegal, match=f"message.type={kind}"):
            draft(service, topic="Typed", properties=properties)
        # What is passed on was checked where it was sent first.
        draft(service, topic="Typed", properties=properties + "TRANSFER_FLAG\x01true\x02")


def test_a_level_of_0_means_no_delay(service: SendService, topics: Topics) -> None:
    topics.add("Typed", 4, attributes={"message.type": "FIFO"})
    assert draft(service, topic="Typed", properties=PLAIN + "DELAY\x010\x02").topic == "Typed"


def test_a_typed_topic_accepts_only_batches_of_its_type(
    service: SendService, topics: Topics
) -> None:
    topics.add("Later", 4, attributes={"message.type": "DELAY"})
    with pytest.raises(MessageIllegal, match="accepts DELAY messages"):
        batch(service, [item()], topic="Later")
    topics.add("Plain", 4, attributes={"message.type": "NORMAL"})
    assert len(batch(service, [item(), item()], topic="Plain")) == 2
    with pytest.raises(MessageIllegal, match="this one is FIFO"):
        batch(service, [item(), item(__SHARDINGKEY="k")], topic="Plain")


def test_types_need_not_be_checked(service: SendService, topics: Topics) -> None:
    topics.add("Typed", 4, attributes={"message.type": "FIFO"})
    service.configure(message_bytes_max=100, trace_on=True, accept_from_ms=0, checks_types=False)
    assert draft(service, topic="Typed", properties=TYPES["DELAY"]).topic == "SCHEDULE_TOPIC_XXXX"


LEVELS = {"message.type": "PRIORITY"}


def test_a_priority_chooses_the_queue(service: SendService, topics: Topics) -> None:
    topics.add("Levels", 4, attributes=LEVELS)
    text = "UNIQ_KEY\x01U\x02_SYS_MSG_PRIORITY_\x01{}\x02"
    queues = [
        draft(service, topic="Levels", properties=text.format(level)).queue_id
        for level in (0, 2, 3, 7)
    ]
    assert queues == [0, 2, 3, 3]
    assert draft(service, topic="Levels").queue_id == 0
    assert draft(service, topic="Levels").queue_id == 0  # also when its kind is remembered
    assert draft(service, properties=text.format(2)).queue_id == 2
    with pytest.raises(MessageIllegal, match="not a whole number"):
        draft(service, topic="Levels", properties=text.format("x"))


def test_a_delayed_message_is_delivered_at_its_level(service: SendService, topics: Topics) -> None:
    topics.add("Levels", 4, attributes=LEVELS)
    text = "UNIQ_KEY\x01U\x02_SYS_MSG_PRIORITY_\x013\x02DELAY\x012\x02"
    waiting = draft(service, topic="Levels", properties=text)
    assert (waiting.topic, waiting.queue_id) == ("SCHEDULE_TOPIC_XXXX", 1)
    assert decode_properties(waiting.properties)["REAL_QID"] == "3"


def test_a_batch_has_the_level_of_its_first_message(service: SendService, topics: Topics) -> None:
    topics.add("Levels", 4, attributes=LEVELS)
    high = item(_SYS_MSG_PRIORITY_="2")
    assert {each.queue_id for each in batch(service, [high, high], topic="Levels")} == {2}
    assert {each.queue_id for each in batch(service, [item()], topic="Levels")} == {0}
    ordered = item(__SHARDINGKEY="k", _SYS_MSG_PRIORITY_="2")
    assert {each.queue_id for each in batch(service, [ordered], topic="Levels")} == {0}
    assert {each.queue_id for each in batch(service, [high])} == {1}
