"""What a slave appends of its master's stream."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpost.codec.ha_frames import encode_head
from rocketpost.errors import ReplicationError, StoreFull
from rocketpost.replication.receiver import LogReceiver

from .logs import SEGMENT_BYTES, MasterLog, SlaveLog, filler, record


def receiver(log: SlaveLog, **changes: int) -> LogReceiver:
    return LogReceiver(end=log.end, segment_bytes=log.segment_bytes, append=log.append, **changes)


def frames(master: MasterLog, position: int, batch_bytes: int) -> bytes:
    stream = b""
    while position < master.end:
        left = master.segment_bytes - position % master.segment_bytes
        size = min(batch_bytes, left, master.end - position)
        stream += encode_head(position, size) + master.bytes_of(position, size)
        position += size
    return stream


@given(
    bodies=st.lists(st.integers(0, 300), min_size=1, max_size=30),
    batch_bytes=st.integers(1, 1500),
    pieces=st.integers(1, 700),
    first=st.sampled_from([0, 3 * SEGMENT_BYTES]),
    room=st.sampled_from([0, 1, 50, 200, 2000]),
)
def test_the_slave_has_the_masters_bytes(
    bodies: list[int], batch_bytes: int, pieces: int, first: int, room: int
) -> None:
    master = MasterLog(first).add(*bodies)
    log = SlaveLog()
    machine = receiver(log)
    stream = frames(master, first, batch_bytes)
    for at in range(0, len(stream), pieces):
        machine.feed(bytearray(room) + stream[at : at + pieces], room)
        assert machine.end == log.end
        assert machine.end in master.borders or not machine.end
    assert log.data == master.data
    assert machine.end == master.end
    assert machine.held == 0


def test_a_part_of_a_record_is_kept_but_does_not_count() -> None:
    master = MasterLog().add(100, 100)
    log = SlaveLog()
    machine = receiver(log)
    border = master.borders[1]
    machine.feed(encode_head(0, border + 50) + master.bytes_of(0, border + 50))
    assert (machine.end, machine.held) == (border, 50)
    machine.feed(encode_head(border + 50, 0))  # a heartbeat inside a record
    rest = master.end - border - 50
    machine.feed(encode_head(border + 50, rest) + master.bytes_of(border + 50, rest))
    assert (machine.end, machine.held) == (master.end, 0)
    assert log.data == master.data


def test_a_record_that_two_reads_bring_is_joined_in_the_room_before_the_second() -> None:
    master = MasterLog().add(100, 100, 100)
    log = SlaveLog()
    machine = receiver(log)
    border = master.borders[1]
    stream = encode_head(0, master.end) + master.data
    cut = len(encode_head(0, 0)) + border + 50
    machine.feed(stream[:cut])
    buffer = bytearray(64) + stream[cut:]
    machine.feed(buffer, 64)
    assert log.runs == [(0, border), (border, master.end - border)]
    assert log.data == master.data
    assert buffer[14:64] == master.bytes_of(border, 50)


def test_the_records_of_many_frames_are_appended_together() -> None:
    master = MasterLog().add(100, 100, 100, 100)
    log = SlaveLog()
    receiver(log).feed(frames(master, 0, 40))
    assert log.runs == [(0, master.end)]


@pytest.mark.parametrize("position", [0, 1, 5, 2**40])
def test_a_gap_or_an_overlap_is_refused(position: int) -> None:
    log = SlaveLog(4)
    with pytest.raises(ReplicationError, match="this log continues at 4"):
        receiver(log).feed(encode_head(position, 0))
    with pytest.raises(ReplicationError, match="this log continues at 4"):
        receiver(log).feed(encode_head(position, 8))


def test_an_empty_log_begins_with_a_segment() -> None:
    log = SlaveLog()
    machine = receiver(log)
    machine.feed(encode_head(2 * SEGMENT_BYTES, 0))
    assert machine.end == 0
    with pytest.raises(ReplicationError, match="no segment of 1024 bytes begins"):
        receiver(log).feed(encode_head(2 * SEGMENT_BYTES + 1, 0))
    machine.feed(encode_head(2 * SEGMENT_BYTES, 5) + b"\0\0\0\x6a\xda")
    with pytest.raises(ReplicationError, match="continues at 2053"):
        machine.feed(encode_head(3 * SEGMENT_BYTES, 0))


def test_other_segment_sizes_are_refused() -> None:
    master = MasterLog(segment_bytes=2048).add(900, 500)
    with pytest.raises(ReplicationError, match="mappedFileSizeCommitLog is not 1024"):
        receiver(SlaveLog()).feed(frames(master, 0, 2000))
    start = record(0, bytes(900))
    data = bytearray(start + filler(len(start)))
    data[len(start) + 3] += 1
    with pytest.raises(ReplicationError, match="the filler at 997 states 28 bytes"):
        receiver(SlaveLog()).feed(encode_head(0, len(data)) + data)


def damaged(position: int, at: int) -> bytes:
    data = bytearray(record(position, b"body" * 20))
    data[at] ^= 0xFF
    return bytes(data)


@pytest.mark.parametrize(
    ("at", "why"),
    [
        (0, "states -"),
        (2, "states 6"),
        (4, "no record begins at 197"),
        (35, "damaged record"),
        (10, "damaged record"),
        (90, "damaged record"),
    ],
)
def test_what_stands_before_a_damaged_record_is_kept(at: int, why: str) -> None:
    good = record(0, bytes(100))
    bad = damaged(len(good), at)
    next_good = record(len(good + bad), bytes(10))
    data = good + bad + next_good
    log = SlaveLog()
    machine = receiver(log)
    with pytest.raises(ReplicationError, match=why):
        machine.feed(encode_head(0, len(data)) + data)
    assert log.data == good
    assert machine.end == len(good)
    with pytest.raises(AssertionError):
        machine.feed(b"")


def test_a_wrong_position_is_noticed_before_the_record_is_whole() -> None:
    data = record(7, bytes(500))[:36]
    with pytest.raises(ReplicationError, match="at 0 states the position 7"):
        receiver(SlaveLog()).feed(encode_head(0, 600) + data)


def test_the_memory_for_a_record_is_bounded() -> None:
    data = record(0, bytes(500))
    machine = receiver(SlaveLog(), record_bytes_max=400)
    with pytest.raises(ReplicationError, match="only 400 are accepted"):
        machine.feed(encode_head(0, len(data)) + data[:50])


def test_a_bad_frame_ends_the_stream() -> None:
    with pytest.raises(ReplicationError, match="size=-1"):
        receiver(SlaveLog()).feed(bytes(8) + b"\xff" * 4)


def test_a_full_store_ends_the_stream_at_a_record() -> None:
    master = MasterLog().add(*[100] * 12)
    log = SlaveLog()
    log.room = SEGMENT_BYTES
    machine = receiver(log)
    with pytest.raises(StoreFull):
        machine.feed(frames(master, 0, 300))
    assert machine.end == log.end == SEGMENT_BYTES
    log.room = 2**62
    machine = receiver(log)
    machine.feed(frames(master, machine.end, 300))
    assert log.data == master.data
