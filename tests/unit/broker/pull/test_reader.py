"""The messages that a pull returns, by offset, tags and limits."""

from __future__ import annotations

import struct
from collections.abc import Set as AbstractSet

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpost.broker.pull.reader import ColdRecords, PullLimits, PullResult, QueueReader
from rocketpost.codec.codes import ResponseCode
from rocketpost.kernel.queue_scan import gather_records
from rocketpost.model.ids import Position, QueueOffset

SIZE = 10


class Queue:
    """Entries of records of ten bytes each."""

    def __init__(self, positions: list[int], tags: list[int], first: int = 0) -> None:
        self._units = b"".join(
            struct.pack(">qiq", position, SIZE, code)
            for position, code in zip(positions, tags, strict=True)
        )
        self.first = QueueOffset(first)
        self.end = QueueOffset(len(positions))

    def read(self, offset: QueueOffset, count_max: int) -> bytes:
        return self._units[offset * 20 : (offset + count_max) * 20]


class Log:
    def __init__(self) -> None:
        self.data = bytes(range(256)) * 100
        self.queues: dict[tuple[str, int], Queue] = {}
        self.gone_below = 0
        self.views = 0
        self.is_trusted = False
        self.cold_below = 0

    @property
    def end_position(self) -> Position:
        return Position(len(self.data))

    def queue(self, topic: str, queue_id: int) -> Queue | None:
        return self.queues.get((topic, queue_id))

    def view(self, position: Position, size: int) -> memoryview | None:
        self.views += 1
        if position < self.gone_below:
            return None
        return memoryview(self.data)[position : position + size]

    def gather(
        self, queue: object, offset: int, units: bytes, wanted: AbstractSet[int],
        *, count_max: int, bytes_max: int,
    ) -> tuple[bytes, int, int] | None:  # fmt: skip
        if not self.is_trusted:
            return None
        view = memoryview(self.data)
        return gather_records(units, wanted, count_max, bytes_max, view, 0, len(self.data))

    def cold_spans(
        self, queue: object, offset: int, units: list[tuple[int, int, int]]
    ) -> list[tuple[int, int]]:
        return [(position, size) for _, position, size in units if position < self.cold_below]

    def select_sound(
        self, topic: str, queue_id: int, offset: int, units: list[tuple[int, int, int]],
        *, is_urgent: bool = False,
    ) -> list[tuple[int, int, int]]:  # fmt: skip
        return [unit for unit in units if unit[1] >= self.gone_below] if is_urgent else units


@pytest.fixture
def log() -> Log:
    return new_log()


def new_log() -> Log:
    log = Log()
    log.queues["T", 0] = Queue([n * SIZE for n in range(100)], [n % 3 for n in range(100)], first=5)
    return log


def service(log: Log, **limits: int) -> QueueReader:
    return QueueReader(records=log, access=log, limits=PullLimits(memory_bytes=10**9, **limits))


def pull(service: QueueReader, offset: int, count: int = 32, tags: frozenset[int] = frozenset()):  # type: ignore[no-untyped-def]
    return service.read("T", 0, offset, count_max=count, tags=tags)


@given(
    offset=st.integers(5, 99),
    count=st.integers(1, 40),
    tags=st.frozensets(st.integers(0, 4), max_size=2),
    bytes_in_memory=st.integers(1, 500),
)
def test_trusted_records_are_joined_and_otherwise_read_alike(
    offset: int, count: int, tags: frozenset[int], bytes_in_memory: int
) -> None:
    log = new_log()
    looked_at = pull(service(log, bytes_in_memory=bytes_in_memory), offset, count, tags)
    log.is_trusted = True
    joined = pull(service(log, bytes_in_memory=bytes_in_memory), offset, count, tags)
    assert len(joined.views) <= 1
    assert b"".join(joined.views) == b"".join(looked_at.views)
    assert joined._replace(views=()) == looked_at._replace(views=())


def test_records_that_are_not_in_memory_are_named_if_the_caller_can_wait(log: Log) -> None:
    log.cold_below = 7 * SIZE
    reader = service(log)
    deferred = reader.read("T", 0, 5, count_max=4, tags=frozenset(), defers_cold=True)
    assert deferred == ColdRecords([(5 * SIZE, SIZE), (6 * SIZE, SIZE)])
    assert log.views == 0
    assert pull(reader, 5, 4).message_count == 4
    assert isinstance(
        reader.read("T", 0, 7, count_max=4, tags=frozenset(), defers_cold=True), PullResult
    )


def test_adjacent_records_are_one_view(log: Log) -> None:
    found = pull(service(log), 5, 10)
    assert (found.code, found.message_count, found.size, found.next_offset) == (0, 10, 100, 15)
    assert (found.first, found.end) == (5, 100)
    assert log.views == 1
    assert bytes(found.views[0]) == log.data[50:150]


def test_tags_filter_and_the_offset_moves_past_scanned_entries(log: Log) -> None:
    found = pull(service(log), 6, 4, frozenset({1}))
    assert found.message_count == 4
    assert found.next_offset == 19  # 7, 10, 13, 16 match; 19 is the next that does
    assert [bytes(view) for view in found.views] == [
        log.data[n * 10 : n * 10 + 10] for n in (7, 10, 13, 16)
    ]


def test_nothing_matches(log: Log) -> None:
    found = pull(service(log), 5, 4, frozenset({77}))
    assert (found.code, found.status) == (20, "NO_MATCHED_MESSAGE")
    assert found.next_offset == 100


@pytest.mark.parametrize(
    ("offset", "code", "status", "next_offset"),
    [
        (100, ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", 100),
        (101, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", 100),
        (4, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", 5),
        (-1, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", 5),
    ],
)
def test_outside_the_queue(log: Log, offset: int, code: int, status: str, next_offset: int) -> None:
    found = pull(service(log), offset)
    assert (found.code, found.status, found.next_offset) == (code, status, next_offset)


@pytest.mark.parametrize(("offset", "code"), [(0, 19), (7, 21)])
def test_queues_that_hold_nothing(log: Log, offset: int, code: int) -> None:
    log.queues["E", 0] = Queue([], [])
    empty = service(log).read("E", 0, offset, count_max=1, tags=frozenset())
    never = service(log).read("N", 0, offset, count_max=1, tags=frozenset())
    assert (empty.code, empty.status) == (code, "NO_MESSAGE_IN_QUEUE")
    assert (never.code, never.status) == (code, "NO_MATCHED_LOGIC_QUEUE")


def test_limits(log: Log) -> None:
    assert pull(service(log), 5, 0).message_count == 1
    assert pull(service(log), 5, 500).message_count == 32
    assert pull(service(log, bytes_in_memory=35), 5).message_count == 3
    assert pull(service(log, bytes_in_memory=1), 5).message_count == 1
    assert pull(service(log, batch_max=7), 5).message_count == 7


@pytest.mark.parametrize(
    ("wanted", "count"), [(35, 3), (30, 3), (29, 2), (1, 1), (10**9, 20), (0, 20), (-1, 20)]
)
def test_a_request_for_fewer_bytes_is_honoured_within_the_limits(
    log: Log, wanted: int, count: int
) -> None:
    limited = service(log, bytes_in_memory=200)
    found = limited.read("T", 0, 5, count_max=32, tags=frozenset(), bytes_max=wanted)
    assert (found.message_count, found.next_offset) == (count, 5 + count)


def test_a_request_for_fewer_bytes_is_honoured_with_a_matcher(log: Log) -> None:
    log.data = bytes(n // SIZE % 10 * SIZE for n in range(1000))
    found = service(log).read(
        "T", 0, 5, count_max=32, tags=frozenset(), matcher=Digits(7), bytes_max=2 * SIZE
    )
    assert (found.message_count, found.next_offset) == (2, 27)


def test_fewer_from_disk(log: Log) -> None:
    cold = QueueReader(records=log, access=log, limits=PullLimits(memory_bytes=0))
    assert pull(cold, 5).message_count == 8


def test_records_deleted_during_the_read_are_skipped(log: Log) -> None:
    log.gone_below = 10**6
    found = pull(service(log), 5)
    assert (found.code, found.status, found.next_offset) == (20, "MESSAGE_WAS_REMOVING", 37)


def test_an_index_gap(log: Log) -> None:
    log.queues["T", 0].end = QueueOffset(120)
    found = pull(service(log), 110)
    assert (found.code, found.status) == (19, "OFFSET_FOUND_NULL")


class Digits:
    """Wants records whose first byte ends in a digit; every one costs the same."""

    def __init__(self, last: int, work: int = 1) -> None:
        self.last = last
        self.work = work
        self.weight = 16

    def matches(self, record: memoryview) -> tuple[bool, int]:
        return record[0] // SIZE % 10 == self.last, self.work


def judged(service: QueueReader, offset: int, matcher: Digits, count: int = 32):  # type: ignore[no-untyped-def]
    return service.read("T", 0, offset, count_max=count, tags=frozenset(), matcher=matcher)


def test_a_matcher_filters_and_the_offset_moves_past_matched_entries(log: Log) -> None:
    log.data = bytes(n // SIZE % 10 * SIZE for n in range(1000))
    found = judged(service(log), 5, Digits(7), 3)
    assert (found.message_count, found.next_offset) == (3, 28)
    assert [bytes(view) for view in found.views] == [bytes([70]) * SIZE] * 3
    found = judged(service(log), 5, Digits(11))
    assert (found.code, found.status) == (20, "NO_MATCHED_MESSAGE")
    assert found.next_offset == 100


def test_matching_stops_when_it_costs_too_much(log: Log) -> None:
    found = judged(service(log), 5, Digits(11, work=60_000))
    assert (found.status, found.next_offset) == ("NO_MATCHED_MESSAGE", 7)
    found = judged(service(log), 5, Digits(11, work=10**9))
    assert found.next_offset == 6


def test_matching_records_on_disk_stops_earlier(log: Log) -> None:
    on_disk = QueueReader(records=log, access=log, limits=PullLimits(memory_bytes=0))
    assert judged(on_disk, 5, Digits(11, work=2_000)).next_offset == 12


def test_a_matcher_respects_the_limits(log: Log) -> None:
    log.data = bytes(1000)
    found = judged(service(log, bytes_in_memory=25), 5, Digits(0))
    assert (found.message_count, found.next_offset) == (2, 7)
    found = judged(service(log, bytes_in_memory=5), 5, Digits(0))
    assert (found.message_count, found.next_offset) == (1, 6)


def test_missing_records_are_skipped(log: Log) -> None:
    log.gone_below = 100 * SIZE
    found = judged(service(log), 5, Digits(7))
    assert (found.status, found.next_offset) == ("MESSAGE_WAS_REMOVING", 37)
