"""Ranges of queues: what is planned, and what is read of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rocketpost.codec.record import Record, decode_record
from rocketpost.errors import CorruptRecord
from rocketpost.spark.log.end import find_layout, list_segments
from rocketpost.spark.log.files import OnCorrupt, OpenFile
from rocketpost.spark.log.queue_reads import (
    SEEK_BYTES,
    Pending,
    Places,
    QueuePlan,
    QueueRange,
    find_places,
    plan_queue_reads,
    read_places,
    window,
)
from rocketpost.spark.log.store_state import read_state
from rocketpost.spark.source.predicates import NumberBounds, Predicates, TextBounds
from rocketpost.store.layout import Layout

from ..made_records import packed, record
from ..stores import write_log, write_queues


@pytest.fixture
def stored(tmp_path: Path) -> list[Record]:
    some = [
        record(
            topic="TU"[at % 2],
            queue_id=at % 3,
            queue_offset=at // 6,
            body=b"%d" % at,
            properties_bytes=b"TAGS\x01%b\x02" % (b"A" if at % 4 else b"B"),
        )
        for at in range(600)
    ]
    found = write_log(tmp_path, some, segment_bytes=1 << 13)
    write_queues(tmp_path, found)
    return found


def plan(root: Path, asked: Predicates, task_bytes: int = 1 << 30) -> QueuePlan:
    layout = Layout(str(root))
    entries = window(0, 1 << 40, asked)
    state = read_state(layout)
    return plan_queue_reads(layout, state, ["T"], asked, entries, task_bytes=task_bytes)


def read(root: Path, tasks: list[tuple[QueueRange, ...]], asked: Predicates) -> list[int]:
    every = tuple(list_segments(find_layout(str(root))))
    return [
        int(decode_record(chunk.data, int(start)).body)
        for task in tasks
        for range_ in task
        for some in find_places(Layout(str(root)), range_, window(0, 1 << 40, asked), 0)
        for chunk in read_places(some, every, OnCorrupt.FAIL)
        for start in chunk.starts
    ]


@pytest.mark.parametrize("task_bytes", [1, 20_000, 1 << 30])
def test_ranges_cover_a_topic_once(tmp_path: Path, stored: list[Record], task_bytes: int) -> None:
    found = plan(tmp_path, Predicates(), task_bytes)
    assert sorted(read(tmp_path, found.tasks, Predicates())) == list(range(0, 600, 2))
    assert found.pending["T", 0].next_offset == 100
    assert found.pending["T", 2].newest == stored[596].position
    assert (len(found.tasks) == 1) == (task_bytes == 1 << 30)


def test_tags_and_offsets_leave_entries_out(tmp_path: Path, stored: list[Record]) -> None:
    asked = Predicates(tags=TextBounds(frozenset({"B"})), offsets=NumberBounds(10, 19))
    found = plan(tmp_path, asked)
    wanted = [at for at in range(0, 600, 4) if 10 <= at // 6 < 20]
    assert sorted(read(tmp_path, found.tasks, asked)) == wanted
    assert found.cost_bytes < plan(tmp_path, Predicates()).cost_bytes


def test_reading_one_by_one_costs_more_than_reading_gaps(
    tmp_path: Path, stored: list[Record]
) -> None:
    cost = plan(tmp_path, Predicates(queue_ids=NumberBounds(0, 0))).cost_bytes
    spread = stored[-1].position - stored[0].position
    assert spread * 0.9 < cost < spread * 1.1 + 4 * SEEK_BYTES


def test_a_queue_ends_with_its_first_empty_entry(tmp_path: Path, stored: list[Record]) -> None:
    path = tmp_path / "consumequeue/T/0" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[20 * 40 : 20 * 41] = bytes(20)
    path.write_bytes(data)
    assert plan(tmp_path, Predicates()).pending["T", 0] == Pending(40, stored[39 * 6].position)


def test_an_entry_that_points_elsewhere_is_damage(tmp_path: Path, stored: list[Record]) -> None:
    every = tuple(list_segments(find_layout(str(tmp_path))))
    wrong = Places(
        np.array([stored[0].position + 1], np.int64), np.array([100]), np.array([0], np.int64)
    )
    with pytest.raises(CorruptRecord, match="points to position 1 "):
        list(read_places(wrong, every, OnCorrupt.FAIL))
    assert list(read_places(wrong, every, OnCorrupt.SKIP)) == []


def test_records_in_the_bodies_of_others_have_bytes_of_their_own(tmp_path: Path) -> None:
    """Else what the columns of a chunk hold could be more than the chunk, without any bound."""
    inner = record(body=b"i" * 500, position=88, queue_offset=1)
    around = [record(body=packed(inner), queue_offset=0)]
    (outer,) = write_log(tmp_path, around, segment_bytes=4096)
    wanted = Places(
        np.array([0, 88], np.int64),
        np.array([outer.size, len(packed(inner))], np.int64),
        np.array([0, 1], np.int64),
    )
    every = tuple(list_segments(Layout(str(tmp_path))))
    (chunk,) = read_places(wanted, every, OnCorrupt.FAIL)
    first, second = chunk.starts.tolist()
    assert second >= first + outer.size


def test_an_absurd_size_is_not_read(
    tmp_path: Path, stored: list[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    read_bytes = OpenFile.read
    counts = []

    def counted(self: OpenFile, at: int, count: int) -> bytes:
        counts.append(count)
        return read_bytes(self, at, count)

    every = tuple(list_segments(Layout(str(tmp_path))))
    monkeypatch.setattr(OpenFile, "read", counted)
    wrong = Places(
        np.array([each.position for each in stored[:2]], np.int64),
        np.array([stored[0].size, 2**31 - 2], np.int64),
        np.array([0, 0], np.int64),
    )
    (chunk,) = read_places(wrong, every, OnCorrupt.SKIP)
    assert len(chunk) == 1
    assert max(counts) < 1024


def test_a_large_message_is_read(tmp_path: Path) -> None:
    some = [record(body=b"." * size, queue_offset=at) for at, size in enumerate((5, 5 << 20, 6))]
    written = write_log(tmp_path, some, segment_bytes=8 << 20)
    wanted = Places(
        np.array([each.position for each in written], np.int64),
        np.array([each.size for each in written], np.int64),
        np.arange(3),
    )
    every = tuple(list_segments(Layout(str(tmp_path))))
    assert sum(map(len, read_places(wanted, every, OnCorrupt.FAIL))) == 3
