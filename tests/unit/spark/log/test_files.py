"""Segments read from outside: every record once, wherever they are cut, whole ones only."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rocketpost.codec.record import Record, decode_record
from rocketpost.errors import CorruptRecord
from rocketpost.spark.log import files as log_files
from rocketpost.spark.log.end import find_layout, list_segments
from rocketpost.spark.log.files import (
    OnCorrupt,
    Split,
    Stopped,
    bracket_time,
    find_cut_record_size,
    read_chunks,
    read_store_ms,
    share_segments,
    split_segment,
)

from ..made_records import V6, packed, record
from ..stores import write_log

SEGMENT = 4096


def numbered(count: int) -> list[Record]:
    return [
        record(
            queue_offset=at,
            body=b"%d" % at * (at % 40 + 1),
            store_ms=1000 + at,
            born_host_bytes=V6 if at % 3 == 0 else record().born_host_bytes,
        )
        for at in range(count)
    ]


def offsets(some: list[Split], on_corrupt: OnCorrupt = OnCorrupt.FAIL) -> list[int]:
    return [
        decode_record(chunk.data, int(start)).queue_offset
        for split in some
        for chunk in read_chunks(split, on_corrupt)
        for start in chunk.starts
    ]


def cut(root: Path, split_bytes: int) -> list[Split]:
    return [
        part
        for each in list_segments(find_layout(str(root)))
        for part in split_segment(each, split_bytes)
    ]


@pytest.mark.parametrize("split_bytes", [1, 97, 512, SEGMENT - 1, SEGMENT])
def test_every_record_is_read_once_however_segments_are_cut(
    tmp_path: Path, split_bytes: int
) -> None:
    write_log(tmp_path, numbered(40), segment_bytes=SEGMENT)
    assert offsets(cut(tmp_path, split_bytes)) == list(range(40))


def test_a_segment_is_cut_into_equal_parts(tmp_path: Path) -> None:
    write_log(tmp_path, numbered(40), segment_bytes=SEGMENT)
    segment = list_segments(find_layout(str(tmp_path)))[0]
    sizes = [part.end - part.begin for part in split_segment(segment, segment.limit - 1)]
    assert sum(sizes) == segment.limit
    assert sorted(sizes) == [segment.limit // 2, (segment.limit + 1) // 2]


@pytest.mark.parametrize("share_bytes", [97, 1000, SEGMENT - 1, SEGMENT, SEGMENT + 1, 10**6])
def test_segments_are_shared_out_in_equal_parts(tmp_path: Path, share_bytes: int) -> None:
    write_log(tmp_path, numbered(40), segment_bytes=SEGMENT)
    segments = list_segments(find_layout(str(tmp_path)))
    assert len(segments) > 1
    shares = share_segments(segments, share_bytes)
    size = sum(segment.limit for segment in segments)
    assert len(shares) == -(-size // share_bytes)
    sizes = [sum(part.end - part.begin for part in share) for share in shares]
    assert sum(sizes) == size
    assert max(sizes) - min(sizes) <= 1
    assert offsets([part for share in shares for part in share]) == list(range(40))


def test_bytes_between_two_positions_are_shared_out(tmp_path: Path) -> None:
    write_log(tmp_path, numbered(40), segment_bytes=SEGMENT)
    segments = list_segments(find_layout(str(tmp_path)))
    first, second = segments[:2]
    shares = share_segments(segments, 10**6, low=first.start + 91, high=second.start + 92)
    assert shares == [(Split(first, 91, first.limit), Split(second, 0, 92))]
    assert share_segments(segments, 100, low=91, high=91) == []
    assert share_segments([], 100) == []


def test_unwritten_parts_of_a_segment_make_no_split(tmp_path: Path) -> None:
    """Files are made at full size, and a task costs much however little it has to do."""
    write_log(tmp_path, numbered(6), segment_bytes=SEGMENT)
    path = tmp_path / "commitlog" / ("0" * 20)
    os.truncate(path, 1 << 24)
    with path.open("r+b") as file:
        file.seek(1 << 23)
        file.write(b"?")
    assert [each.begin for each in cut(tmp_path, 1 << 20)] == [0]


def test_bytes_of_a_record_inside_a_body_are_no_record(tmp_path: Path) -> None:
    first = write_log(tmp_path / "a", numbered(2), segment_bytes=SEGMENT)
    inner = (tmp_path / "a/commitlog" / ("0" * 20)).read_bytes()[: first[0].size]
    some = [record(queue_offset=at, body=b"x" * 70 + inner * 3) for at in range(12)]
    write_log(tmp_path / "b", some, segment_bytes=SEGMENT)
    assert offsets(cut(tmp_path / "b", 131)) == list(range(12))


def test_a_record_longer_than_a_chunk_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_files, "CHUNK_BYTES", 256)
    some = [record(queue_offset=at, body=b"y" * (900 * (at % 2) + 1)) for at in range(8)]
    write_log(tmp_path, some, segment_bytes=SEGMENT)
    assert offsets(cut(tmp_path, SEGMENT)) == list(range(8))
    assert offsets(cut(tmp_path, 300)) == list(range(8))


def test_damage_before_the_last_segment_is_reported(tmp_path: Path) -> None:
    some = write_log(tmp_path, numbered(40), segment_bytes=SEGMENT)
    path = tmp_path / "commitlog" / ("0" * 20)
    data = bytearray(path.read_bytes())
    data[some[3].position + 4] ^= 0xFF
    path.write_bytes(data)
    everything = cut(tmp_path, SEGMENT)
    with pytest.raises(CorruptRecord, match=f"position {some[3].position} "):
        offsets(everything)
    with pytest.raises(Stopped):
        offsets(everything, OnCorrupt.STOP)
    assert offsets(everything, OnCorrupt.SKIP) == [0, 1, 2, *range(4, 40)]


@pytest.mark.parametrize("split_bytes", [97, 300, 512, SEGMENT])
def test_damage_is_reported_wherever_segments_are_split(tmp_path: Path, split_bytes: int) -> None:
    some = write_log(tmp_path, numbered(40), segment_bytes=SEGMENT)
    path = tmp_path / "commitlog" / ("0" * 20)
    whole = path.read_bytes()
    in_first = [each for each in some if each.position + each.size < SEGMENT]
    for each in in_first:
        data = bytearray(whole)
        data[each.position + 5] ^= 1
        path.write_bytes(data)
        everything = cut(tmp_path, split_bytes)
        with pytest.raises(CorruptRecord, match=f"position {each.position} "):
            offsets(everything)
        kept = [other.queue_offset for other in some if other is not each]
        assert offsets(everything, OnCorrupt.SKIP) == kept


def test_a_segment_that_was_cut_is_damage(tmp_path: Path) -> None:
    some = write_log(tmp_path, numbered(40), segment_bytes=SEGMENT)
    path = tmp_path / "commitlog" / ("0" * 20)
    for kept in (some[4].position, some[4].position + 20):
        os.truncate(path, kept)
        with pytest.raises(CorruptRecord, match=f"position {some[4].position} "):
            offsets(cut(tmp_path, SEGMENT))


def test_invalid_bytes_do_not_make_the_rest_of_a_segment_a_record(tmp_path: Path) -> None:
    head = bytearray(packed(record(body=b"x" * 500))[:200])
    assert find_cut_record_size(bytes(head), 10_000) == 603
    assert find_cut_record_size(bytes(head), 602) is None
    head[0] = 1
    assert find_cut_record_size(bytes(head), 1 << 30) is None


def test_a_segment_that_expired_meanwhile_is_empty(tmp_path: Path) -> None:
    write_log(tmp_path, numbered(40), segment_bytes=SEGMENT)
    everything = cut(tmp_path, SEGMENT)
    Path(everything[0].segment.path).unlink()
    assert offsets(everything)[-1] == 39


def test_positions_found_by_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_files, "_PROBE_BYTES", 256)
    some = write_log(tmp_path, numbered(40), segment_bytes=1 << 16)
    (segment,) = list_segments(find_layout(f"{tmp_path}/commitlog"))
    assert read_store_ms(segment, 0) == some[0].store_ms
    assert read_store_ms(segment, some[3].position + 1) == some[4].store_ms
    assert read_store_ms(segment, segment.limit - 1) is None
    for each in some:
        low, high = bracket_time(segment, each.store_ms)
        assert all(other.store_ms < each.store_ms for other in some if other.position < low)
        assert all(other.store_ms >= each.store_ms for other in some if other.position >= high)
        assert high - low <= 512


def test_the_part_of_a_segment_that_is_not_written_yet_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_log(tmp_path, numbered(8), segment_bytes=SEGMENT)
    path = max((tmp_path / "commitlog").iterdir())
    os.truncate(path, 1 << 30)
    read = 0
    true = log_files.OpenFile.read

    def counted(file: log_files.OpenFile, at: int, count: int) -> bytes:
        nonlocal read
        data = true(file, at, count)
        read += len(data)
        return data

    monkeypatch.setattr(log_files.OpenFile, "read", counted)
    assert offsets(cut(tmp_path, 128 << 20)) == list(range(8))
    assert read <= 5 * log_files.CHUNK_BYTES
