"""Duplicates: which sends are, what they are answered, and what is refused."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from rocketpost.broker.dedup.producers import ProducerLimits, ProducerTable
from rocketpost.broker.dedup.service import NOWHERE, DedupService
from rocketpost.broker.dedup.unique_keys import KeyWindow
from rocketpost.codec.faults import InvalidParameter, MessageIllegal
from rocketpost.codec.properties import PROPERTIES_BYTES_MAX, decode_properties, encode_properties
from rocketpost.codec.record import Record, pack_host
from rocketpost.model.ids import Position, QueueOffset
from rocketpost.model.names import HALF_TOPIC, TIMER_TOPIC
from rocketpost.model.properties import PRODUCER_SEQUENCE, REAL_QUEUE_ID
from rocketpost.model.stamp import Stamp
from rocketpost.model.topic import TopicConfig
from rocketpost.store.draft import Appended, Draft
from rocketpost.testing.clock import FakeClock

HOST = pack_host("127.0.0.1", 10911)
FIRST = Stamp("p", 0, 1)
NOW = FakeClock().now_ms()


class Header(NamedTuple):
    sequence: str | None = None
    topic: str = "T"
    queue_id: int = 0


class Log:
    """Records by key, as an index finds them."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    @property
    def written_position(self) -> Position:
        return Position(1000 * len(self.records))

    def find(
        self, topic: str, key: str, *, count_max: int, begin_ms: int, end_ms: int
    ) -> list[Position]:
        return [
            Position(record.position)
            for record in self.records
            if record.topic == topic and record.properties["UNIQ_KEY"] == key
        ]

    def record_at(self, position: int) -> Record | None:
        return next((each for each in self.records if each.position == position), None)

    def add(self, draft: Draft, *, queue_offset: int = 5) -> None:
        self.records.append(
            Record(
                size=99,
                magic=0,
                body_crc=0,
                queue_id=draft.queue_id,
                flag=0,
                queue_offset=queue_offset,
                position=1000 * (len(self.records) + 1),
                sys_flag=0,
                born_ms=0,
                born_host_bytes=HOST,
                store_ms=7,
                store_host_bytes=HOST,
                reconsume_times=draft.reconsume_times,
                prepared_position=0,
                body=draft.body,
                topic=draft.topic,
                properties_bytes=draft.properties,
            )
        )


def draft(key: str = "k", *, topic: str = "T", reconsume_times: int = 0, **more: str) -> Draft:
    properties = encode_properties({"UNIQ_KEY": key, **more})
    return Draft(topic, 0, 0, 0, 0, HOST, HOST, reconsume_times, 0, b"x", properties, 0, (key,))


def place(position: int) -> Appended:
    return Appended(Position(position), 10, QueueOffset(position), NOW, "T", 0, 0, ("k",), None)


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def service(clock: FakeClock, log: Log) -> DedupService:
    keys = KeyWindow(clock=clock)
    keys.watch("T", TopicConfig(topic_name="T", attributes={"dedup.seconds": "10"}))
    keys.watch("%RETRY%g", TopicConfig(topic_name="T", attributes={"dedup.seconds": "10"}))
    return DedupService(producers=ProducerTable(ProducerLimits()), keys=keys, records=log)


def store(service: DedupService, header: Header, *drafts: Draft, at: int = 100) -> list[Appended]:
    """Send; return the places that are answered."""
    admitted = service.admit(header, drafts)
    new = [place(at + n) for n, each in enumerate(admitted) if each.is_new]
    places = service.take(admitted, new)
    service.commit()
    return places


def test_a_numbered_message_is_stored_once_with_its_number(service: DedupService) -> None:
    header, first = Header(FIRST.to_field()), draft()
    assert store(service, header, first) == [place(100)]
    assert decode_properties(first.properties)[PRODUCER_SEQUENCE] == FIRST.to_property()
    assert store(service, header, draft(), at=200) == [place(100)]
    assert service.producers.duplicates == 1


def test_a_batch_has_consecutive_numbers_and_may_be_stored_in_part(service: DedupService) -> None:
    store(service, Header(FIRST.to_field()), draft("a"), draft("b"))
    again = [draft("b"), draft("c")]
    assert store(service, Header(FIRST.plus(1).to_field()), *again, at=200) == [
        place(101),
        place(201),
    ]


def test_a_message_that_could_not_be_written_is_not_a_duplicate(service: DedupService) -> None:
    header = Header(FIRST.to_field())
    service.take(service.admit(header, [draft()]), [place(100)])
    service.undo()
    assert service.admit(header, [draft()])[0].is_new


def test_the_place_of_an_old_original_is_found_by_its_key(service: DedupService, log: Log) -> None:
    original = draft()
    store(service, Header(FIRST.to_field()), original)
    service.producers._places.clear()
    log.add(draft())  # the same key, sent without a number
    log.add(original, queue_offset=8)
    [found] = store(service, Header(FIRST.to_field()), draft())
    assert (found.position, found.queue_offset, found.store_ms) == (2000, 8, 7)


def test_an_original_that_waits_for_its_time_has_the_queue_it_was_sent_to(
    service: DedupService, log: Log
) -> None:
    store(service, Header(FIRST.to_field(), queue_id=3), draft())
    service.producers._places.clear()
    waiting = draft(
        topic=TIMER_TOPIC, **{REAL_QUEUE_ID: "3", PRODUCER_SEQUENCE: FIRST.to_property()}
    )
    log.add(waiting)
    [found] = store(service, Header(FIRST.to_field(), queue_id=3), draft())
    assert (found.topic, found.queue_id, found.queue_offset) == ("T", 3, 5)


def test_a_duplicate_is_not_stored_even_if_its_original_cannot_be_found(
    service: DedupService, log: Log
) -> None:
    store(service, Header(FIRST.to_field()), draft())
    service.producers._places.clear()
    log.add(draft(**{PRODUCER_SEQUENCE: "nonsense"}))
    copy = draft(reconsume_times=1, **{PRODUCER_SEQUENCE: FIRST.to_property()})
    log.add(copy)
    [found] = store(service, Header(FIRST.to_field(), queue_id=-1), draft())
    assert (found.queue_offset, found.queue_id) == (NOWHERE, 0)
    assert found.end == log.written_position  # durable when everything is


@pytest.mark.parametrize(
    ("sequence", "sent", "error", "reason"),
    [
        ("nonsense", draft(), InvalidParameter, "sequence is not valid"),
        (FIRST.to_field(), draft(topic=HALF_TOPIC), MessageIllegal, "transactional"),
        (FIRST.to_field(), draft(reconsume_times=1), MessageIllegal, "retried"),
        (FIRST.to_field(), draft(topic="%RETRY%g"), MessageIllegal, "retried"),
        (
            FIRST.to_field(),
            draft(PAD="x" * (PROPERTIES_BYTES_MAX - 30)),
            MessageIllegal,
            "take more than",
        ),
    ],
)
def test_messages_that_cannot_have_a_sequence_are_refused(
    service: DedupService, sequence: str, sent: Draft, error: type[Exception], reason: str
) -> None:
    with pytest.raises(error, match=reason):
        service.admit(Header(sequence), [sent])


def test_a_key_is_stored_once_where_the_topic_asks_for_it(
    service: DedupService, clock: FakeClock
) -> None:
    assert store(service, Header(), draft("a"), draft("b"), draft("a")) == [
        place(100),
        place(101),
        place(100),
    ]
    assert store(service, Header(), draft("b"), at=200) == [place(101)]
    assert service.keys.duplicates == 2
    clock.advance(10_001)
    assert store(service, Header(), draft("b"), at=300) == [place(300)]


@pytest.mark.parametrize(
    ("topic", "reconsume_times"), [("U", 0), ("%RETRY%g", 0), ("%DLQ%g", 0), ("T", 1)]
)
def test_messages_in_other_topics_and_retries_may_share_a_key(
    service: DedupService, topic: str, reconsume_times: int
) -> None:
    header = Header(topic=topic)
    sent = [draft(topic=topic, reconsume_times=reconsume_times) for _ in range(2)]
    assert store(service, header, sent[0]) == [place(100)]
    assert store(service, header, sent[1], at=200) == [place(200)]
