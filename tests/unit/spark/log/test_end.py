"""The end of a log: after its last whole record, whatever a crash or a copy left there."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from rocketpost.codec.record import Record
from rocketpost.errors import StoreError
from rocketpost.spark.log import end as log_end
from rocketpost.spark.log.end import find_layout, list_segments

from ..made_records import record
from ..stores import write_log

SEGMENT = 4096


def numbered(count: int) -> list[Record]:
    return [record(queue_offset=at, body=b"%03d" % at * 60) for at in range(count)]


def path(root: Path, start: int = 0) -> Path:
    return root / "commitlog" / f"{start:020d}"


def end(root: Path, newest: int = -1) -> int:
    found = list_segments(find_layout(str(root)), newest)
    return found[-1].start + found[-1].limit if found else 0


@pytest.mark.parametrize("is_known", [False, True])
def test_the_log_ends_with_its_last_whole_record(tmp_path: Path, is_known: bool) -> None:
    some = write_log(tmp_path, numbered(6), segment_bytes=SEGMENT)
    whole = path(tmp_path).read_bytes()
    last, newest = some[-1], some[3].position if is_known else -1
    assert end(tmp_path, newest) == last.position + last.size
    for kept in range(1, last.size):
        path(tmp_path).write_bytes(whole[: last.position + kept].ljust(SEGMENT, b"\0"))
        missing = whole[last.position + kept : last.position + last.size]
        # Only zeros that the sender wrote himself can be missing from a record that counts.
        assert end(tmp_path, newest) == last.position + (0 if any(missing) else last.size)


def test_a_record_with_a_hole_ends_the_log_although_more_follow(tmp_path: Path) -> None:
    some = write_log(tmp_path, numbered(8), segment_bytes=SEGMENT)
    data = bytearray(path(tmp_path).read_bytes())
    at = some[5].position
    data[at + 100 : at + 150] = bytes(50)  # a copy that overtook its writer
    path(tmp_path).write_bytes(data)
    assert end(tmp_path) == at
    assert end(tmp_path, some[2].position) == at


def test_a_queue_with_entries_past_the_log_is_not_trusted(tmp_path: Path) -> None:
    some = write_log(tmp_path, numbered(6), segment_bytes=SEGMENT)
    for newest in (some[-1].position + some[-1].size, some[2].position + 1, 10 * SEGMENT):
        assert end(tmp_path, newest) == some[-1].position + some[-1].size


def test_records_from_an_earlier_use_of_the_segment_do_not_count(tmp_path: Path) -> None:
    some = write_log(tmp_path, numbered(6), segment_bytes=SEGMENT)
    data = bytearray(path(tmp_path).read_bytes())
    data[some[4].position + 28 : some[4].position + 36] = (77).to_bytes(8, "big")
    path(tmp_path).write_bytes(data)
    assert end(tmp_path) == some[4].position


def test_preallocated_segments_are_no_part_of_the_log(tmp_path: Path) -> None:
    some = write_log(tmp_path, numbered(6), segment_bytes=SEGMENT)
    path(tmp_path, SEGMENT).write_bytes(bytes(SEGMENT))
    path(tmp_path, 2 * SEGMENT).write_bytes(b"")
    assert end(tmp_path) == some[-1].position + some[-1].size


def test_a_copy_ends_with_the_segment_that_was_not_finished(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    some = write_log(tmp_path, numbered(40), segment_bytes=SEGMENT)
    starts = sorted(int(each.name) for each in (tmp_path / "commitlog").iterdir())
    second = [each for each in some if starts[1] <= each.position < starts[2]]
    whole = path(tmp_path, starts[1]).read_bytes()
    for kept in (0, second[3].position - starts[1], second[3].position - starts[1] + 50):
        path(tmp_path, starts[1]).write_bytes(whole[:kept].ljust(SEGMENT, b"\0"))
        with caplog.at_level(logging.WARNING):
            assert end(tmp_path) == (second[3].position if kept else starts[1])
    assert f"left_out={len(starts) - 2}" in caplog.text


@pytest.mark.parametrize("written", [0, 3, 60, 150])
def test_a_copy_ends_in_the_page_that_was_copied_too_early(tmp_path: Path, written: int) -> None:
    size = 4 * SEGMENT
    some = write_log(tmp_path, numbered(160), segment_bytes=size)
    second = [each for each in some if size <= each.position < 2 * size]
    page_end = size + 3 * SEGMENT
    torn = next(each for each in second if page_end - 700 < each.position < page_end - 400)
    assert some[-1].position > 2 * size
    data = bytearray(path(tmp_path, size).read_bytes())
    hole = slice(torn.position + written - size, page_end - size)
    data[hole] = bytes(page_end - torn.position - written)
    path(tmp_path, size).write_bytes(data)
    for newest in (-1, second[-1].position, some[-1].position):
        assert end(tmp_path, newest) == torn.position
    data[hole] = b"?" * (page_end - torn.position - written)
    path(tmp_path, size).write_bytes(data)
    assert end(tmp_path) == some[-1].position + some[-1].size


PAGE = 4096
NEAR = 180 * PAGE
"""A torn record before this position is damage; one after it is near the end."""


def large(count: int, body_bytes: int) -> list[Record]:
    return [
        record(queue_offset=at, body=(b"%03d" % at * (body_bytes // 3 + 1))[:body_bytes])
        for at in range(count)
    ]


@pytest.mark.parametrize("body_bytes", [6000, 10_000, 20_000, 100_000])
@pytest.mark.parametrize("is_last", [False, True])
def test_a_record_of_several_pages_is_torn_in_any_of_them(
    tmp_path: Path, body_bytes: int, is_last: bool
) -> None:
    """Whether it is in the last segment that a queue knows of, or in the one before."""
    size = NEAR + 64 * 1024
    count = size // body_bytes + 3
    some = write_log(tmp_path, large(count, body_bytes), segment_bytes=size)
    assert some[-1].position > size
    if is_last:
        torn = next(each for each in some if each.position > size)
        start, newest = size, some[-1].position
    else:
        torn = next(each for each in some if each.position + each.size > NEAR)
        start, newest = 0, some[-1].position
    whole = path(tmp_path, start).read_bytes()
    begin, end_ = torn.position - start, torn.position - start + torn.size
    first = begin if is_last else max(begin, NEAR)
    for page in range(first // PAGE * PAGE, end_, PAGE):
        hole = slice(max(min(page + PAGE // 2, end_ - 20), begin), page + PAGE)
        data = bytearray(whole)
        data[hole] = bytes(hole.stop - hole.start)
        path(tmp_path, start).write_bytes(data)
        assert end(tmp_path, newest) == torn.position, page


def test_torn_bytes_after_the_end_do_not_move_it(tmp_path: Path) -> None:
    some = write_log(tmp_path, large(130, 6000), segment_bytes=NEAR + 64 * 1024)
    data = bytearray(path(tmp_path).read_bytes())
    last, left = some[20], some[125]  # a broker cut its log off, and then wrote no more
    assert left.position > NEAR
    data[last.position : last.position + last.size] = bytes(last.size)
    page_end = (left.position // PAGE + 1) * PAGE
    data[left.position + 200 : page_end] = bytes(page_end - left.position - 200)
    path(tmp_path).write_bytes(data)
    assert end(tmp_path) == last.position


def test_an_empty_page_further_back_is_damage(tmp_path: Path) -> None:
    size = 4 * SEGMENT
    some = write_log(tmp_path, numbered(160), segment_bytes=size)
    assert some[-1].position > 2 * size
    data = bytearray(path(tmp_path).read_bytes())
    torn = next(each for each in some if 2 * SEGMENT - 700 < each.position < 2 * SEGMENT - 400)
    data[torn.position : 2 * SEGMENT] = bytes(2 * SEGMENT - torn.position)
    path(tmp_path).write_bytes(data)
    assert end(tmp_path) == some[-1].position + some[-1].size


def test_damage_is_not_mistaken_for_the_end(tmp_path: Path) -> None:
    some = write_log(tmp_path, numbered(40), segment_bytes=SEGMENT)
    true = some[-1].position + some[-1].size
    starts = sorted(int(each.name) for each in (tmp_path / "commitlog").iterdir())
    whole = path(tmp_path, starts[1]).read_bytes()
    blank = whole.rfind(log_end.BLANK)
    path(tmp_path, starts[1]).write_bytes(whole[:blank] + b"oops" + whole[blank + 4 :])
    assert end(tmp_path) == true
    path(tmp_path, starts[1]).write_bytes(whole[: blank - 50])
    assert end(tmp_path) == true
    sizes = {each.limit for each in list_segments(find_layout(str(tmp_path)))[:-1]}
    assert sizes == {SEGMENT}


def test_a_store_without_records(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    assert list_segments(find_layout(str(tmp_path))) == []
    path(tmp_path).write_bytes(bytes(SEGMENT))
    assert end(tmp_path) == 0
    path(tmp_path).write_bytes(b"")
    assert end(tmp_path) == 0


def test_a_directory_that_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="not a store directory: it has no commitlog"):
        find_layout(str(tmp_path))
    with pytest.raises(StoreError, match="cannot be read: No such file"):
        find_layout(str(tmp_path / "none"))
    (tmp_path / "dledger-n0").mkdir()
    with pytest.raises(StoreError, match="DLedger"):
        find_layout(str(tmp_path))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_lack_of_read_permission_is_reported(tmp_path: Path) -> None:
    write_log(tmp_path, numbered(2), segment_bytes=SEGMENT)
    (tmp_path / "commitlog").chmod(0)
    try:
        with pytest.raises(StoreError, match="commitlog cannot be read: Permission denied"):
            list_segments(find_layout(str(tmp_path)))
    finally:
        (tmp_path / "commitlog").chmod(0o700)


def test_gaps_are_between_segments(tmp_path: Path) -> None:
    write_log(tmp_path, numbered(60), segment_bytes=SEGMENT)
    layout = find_layout(str(tmp_path))
    assert log_end.find_gaps(list_segments(layout)) == []
    path(tmp_path).unlink()  # expired
    assert log_end.find_gaps(list_segments(layout)) == []
    path(tmp_path, 2 * SEGMENT).unlink()
    assert log_end.find_gaps(list_segments(layout)) == [(2 * SEGMENT, 3 * SEGMENT)]


def test_trap_segments_that_expire_while_they_are_listed_leave_no_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_log(tmp_path, numbered(60), segment_bytes=SEGMENT)
    layout = find_layout(str(tmp_path))
    whole = list_segments(layout)
    listed = os.listdir

    def then_expire(folder: str) -> list[str]:
        monkeypatch.setattr(os, "listdir", listed)
        names = sorted(listed(folder))
        for name in names[:2]:  # the first is seen, and the second is not any more
            (Path(folder) / name).unlink()
        return [names[0], *names[2:]]

    monkeypatch.setattr(os, "listdir", then_expire)
    assert list_segments(layout) == whole[2:]
    assert log_end.find_gaps(list_segments(layout)) == []
