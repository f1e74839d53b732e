"""The key index from outside: what it finds, and what it says nothing of."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest

from rocketpost.codec.record import Record
from rocketpost.spark.log import key_lookup
from rocketpost.spark.log.end import find_layout, list_segments
from rocketpost.spark.log.files import OnCorrupt
from rocketpost.spark.log.key_lookup import look_up, read_sizes
from rocketpost.store.layout import Layout

from ..made_records import record
from ..stores import write_index, write_log

FIRST, SECOND = "20231114221320123", "20231114221320124"


@pytest.fixture
def stored(tmp_path: Path) -> list[Record]:
    return write_log(
        tmp_path,
        [
            record(
                topic="AB"[at % 2],
                queue_offset=at,
                properties_bytes=f"UNIQ_KEY\x01U{at}\x02KEYS\x01k{at % 7} all\x02".encode(),
            )
            for at in range(60)
        ],
        segment_bytes=4096,
    )


def found(root: Path, topics: str, *keys: str) -> list[int]:
    return look_up(Layout(str(root)), topics, keys, first=0, end=1 << 20).positions.tolist()


def places(some: list[Record], topics: str, at: int) -> list[int]:
    return [r.position for r in some if r.topic in topics and r.queue_offset % 7 == at]


@pytest.mark.parametrize("slots", [1, 3, 50, 1000])
def test_keys_are_found_whatever_the_number_of_slots(
    tmp_path: Path, stored: list[Record], slots: int
) -> None:
    write_index(tmp_path, stored, slots=slots)
    assert set(found(tmp_path, "AB", "k3")) >= set(places(stored, "AB", 3))
    assert set(found(tmp_path, "A", "k3", "U8")) >= {*places(stored, "A", 3), stored[8].position}
    assert found(tmp_path, "A", "none") == []


def test_all_files_are_searched(tmp_path: Path, stored: list[Record]) -> None:
    write_index(tmp_path, stored[:25], name=FIRST)
    write_index(tmp_path, stored[25:], name=SECOND)
    assert found(tmp_path, "AB", "k2") == places(stored, "AB", 2)


def unknown(root: Path, end: int) -> list[tuple[int, int]]:
    return look_up(Layout(str(root)), "A", ["k"], first=0, end=end).unknown


def test_ranges_that_the_index_does_not_cover(tmp_path: Path, stored: list[Record]) -> None:
    end = stored[-1].position + stored[-1].size
    assert unknown(tmp_path, end) == [(0, end)]
    write_index(tmp_path, stored[20:40], name=SECOND)
    assert unknown(tmp_path, end) == [
        (0, stored[20].position),
        (stored[39].position + 1, end),
    ]
    write_index(tmp_path, stored[:10], name=FIRST)
    assert unknown(tmp_path, end) == [
        (stored[9].position + 1, stored[20].position),
        (stored[39].position + 1, end),
    ]


def test_records_left_to_a_scan_are_not_found_twice(tmp_path: Path, stored: list[Record]) -> None:
    """A broker adds an entry before it notes how far the file goes."""
    write_index(tmp_path, stored, name=FIRST)
    end = stored[-1].position + stored[-1].size
    with (tmp_path / "index" / FIRST).open("r+b") as file:
        file.seek(24)
        file.write(struct.pack(">q", stored[29].position))
    hits = look_up(Layout(str(tmp_path)), "AB", ["all"], first=0, end=end)
    assert hits.unknown == [(stored[29].position + 1, end)]
    assert hits.positions.tolist() == [each.position for each in stored[:30]]


def test_entries_that_may_not_be_on_disk_are_not_trusted(
    tmp_path: Path, stored: list[Record]
) -> None:
    write_index(tmp_path, stored, name=FIRST)
    data = struct.pack(">17s3xi", FIRST.encode(), 1 + 3 * 10)  # three keys each
    (tmp_path / "index-progress").write_bytes(data + struct.pack(">I", zlib.crc32(data)))
    end = stored[-1].position + stored[-1].size
    assert unknown(tmp_path, end) == [(stored[9].position + 1, end)]
    assert found(tmp_path, "AB", "k2") == [p for p in places(stored, "AB", 2) if p < 2000][:2]


def test_a_file_that_is_torn_is_not_used(tmp_path: Path, stored: list[Record]) -> None:
    path = write_index(tmp_path, stored, slots=50)
    data = bytearray(path.read_bytes())
    entries_at = 40 + 50 * 4
    for number in range(100, 181):
        data[entries_at + number * 20 : entries_at + number * 20 + 20] = bytes(20)
    path.write_bytes(data)
    end = stored[-1].position + stored[-1].size
    assert unknown(tmp_path, end) == [(0, end)]
    path.write_bytes(b"short")
    assert unknown(tmp_path, end) == [(0, end)]


def test_positions_without_a_record_are_left_out(tmp_path: Path, stored: list[Record]) -> None:
    every = tuple(list_segments(find_layout(str(tmp_path))))
    wanted = [stored[0].position, stored[3].position + 1, stored[40].position]

    found_ = read_sizes(np.array(wanted, np.int64), every, OnCorrupt.FAIL)
    assert found_.positions.tolist() == [wanted[0], wanted[2]]
    assert found_.sizes.tolist() == [stored[0].size, stored[40].size]
    Path(every[0].path).unlink()
    assert read_sizes(np.array(wanted, np.int64), every, OnCorrupt.FAIL).positions.tolist() == [
        wanted[2]
    ]


def test_the_default_number_of_slots_is_rocketmqs() -> None:
    assert key_lookup.SLOTS == 5_000_000
