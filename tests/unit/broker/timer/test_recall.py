"""Recalls: which are taken, and why others are not."""

from __future__ import annotations

import pytest

from rocketpost.broker.timer.admission import TimerRules
from rocketpost.broker.timer.recall import RecallService
from rocketpost.codec.faults import IllegalOperation
from rocketpost.codec.properties import decode_properties, encode_properties
from rocketpost.codec.recall_handle import RecallHandle
from rocketpost.codec.record import Record, decode_record, encode_record, pack_host
from rocketpost.model.ids import Position
from rocketpost.model.names import TIMER_TOPIC
from rocketpost.store.queue.consume_queue import ConsumeQueue
from rocketpost.testing.clock import FakeClock

NOW = 1_700_000_000_000
DUE = NOW + 5000
HOST = pack_host("127.0.0.1", 10911)


class Store:
    """A store with a few records, found by key."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def add(self, topic: str, **properties: str) -> None:
        record = Record(
            size=0, magic=0, body_crc=0, queue_id=0, flag=0, queue_offset=0,
            position=len(self.records), sys_flag=0, born_ms=0, born_host_bytes=HOST, store_ms=0,
            store_host_bytes=HOST, reconsume_times=0, prepared_position=0, body=b"b", topic=topic,
            properties_bytes=encode_properties(properties),
        )  # fmt: skip
        self.records.append(decode_record(b"".join(map(bytes, encode_record(record)))))

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        return None

    def record_at(self, position: int) -> Record | None:
        return self.records[position]

    def find(
        self, topic: str, key: str, *, count_max: int, begin_ms: int, end_ms: int
    ) -> list[Position]:
        return [
            Position(at)
            for at, record in enumerate(self.records)
            if record.properties["UNIQ_KEY"] == key
        ]


@pytest.fixture
def store() -> Store:
    store = Store()
    store.add(TIMER_TOPIC, UNIQ_KEY="U", REAL_TOPIC="T", REAL_QID="0")
    return store


def service(store: Store, *, is_indexed: bool = True) -> RecallService:
    return RecallService(
        store=store,
        clock=FakeClock(NOW),
        rules=lambda: TimerRules(delay_ms_max=10_000),
        broker_name="b",
        store_host=HOST,
        precision_ms=1000,
        is_indexed=is_indexed,
    )


def test_a_recall_waits_in_the_slot_of_its_message(store: Store) -> None:
    handle = RecallHandle("T", "b", DUE, "U").encode()
    recall = service(store).recall("T", handle, born_host=HOST)
    assert (recall.key, recall.message_id) == ("T+U", "U")
    properties = decode_properties(recall.draft.properties)
    assert (recall.draft.topic, recall.draft.body) == (TIMER_TOPIC, b"0")
    assert properties["TIMER_DEL_UNIQKEY"] == "T+U"
    assert properties["TIMER_OUT_MS"] == str(DUE - 1000)
    assert properties["TAGS"] == "_RECALL_TAG_"


def test_rocketmqs_handle_names_the_same_slot(store: Store) -> None:
    handle = RecallHandle("T", "b", DUE - 1000 + 1, "U").encode()
    recall = service(store).recall("T", handle, born_host=HOST)
    assert decode_properties(recall.draft.properties)["TIMER_OUT_MS"] == str(DUE - 1000)


@pytest.mark.parametrize(
    ("handle", "reason"),
    [
        (RecallHandle("Other", "b", DUE, "U"), "topic Other"),
        (RecallHandle("T", "c", DUE, "U"), "broker c"),
        (RecallHandle("T", "b", NOW, "U"), "too late"),
        (RecallHandle("T", "b", NOW + 10_001, "U"), "timerMaxDelaySec"),
        (RecallHandle("T", "b", DUE, "V"), "no message V"),
    ],
)
def test_messages_that_cannot_be_recalled_are_refused(
    store: Store, handle: RecallHandle, reason: str
) -> None:
    with pytest.raises(IllegalOperation, match=reason):
        service(store).recall("T", handle.encode(), born_host=HOST)


def test_an_invalid_handle_is_refused(store: Store) -> None:
    with pytest.raises(IllegalOperation, match="handle"):
        service(store).recall("T", "???", born_host=HOST)


def test_a_delivered_message_cannot_be_recalled_even_if_the_clock_is_behind(store: Store) -> None:
    store.add("T", UNIQ_KEY="U", REAL_TOPIC="T", REAL_QID="0")
    with pytest.raises(IllegalOperation, match="too late"):
        service(store).recall("T", RecallHandle("T", "b", DUE, "U").encode(), born_host=HOST)


def test_without_an_index_the_handle_is_trusted() -> None:
    handle = RecallHandle("T", "b", DUE, "U").encode()
    assert service(Store(), is_indexed=False).recall("T", handle, born_host=HOST).key == "T+U"
