from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpost.store.checkpoint import (
    Progress,
    Times,
    decode_checkpoint,
    encode_checkpoint,
    load_checkpoint_blocking,
    save_checkpoint_blocking,
)
from rocketpost.store.files import RealFiles

from .conftest import Opener

int64 = st.integers(0, 2**63 - 1)
TIMES = Times(1700000000000, 1700000000000, 5, 0, 0)
PROGRESS = Progress(123456, 123456, 123000, 3, 17)


@given(st.builds(Times, *[int64] * 5), st.builds(Progress, *[int64] * 5))
def test_it_comes_back(times: Times, progress: Progress) -> None:
    data = encode_checkpoint(times, progress)
    assert len(data) == 4096
    assert decode_checkpoint(data) == (times, progress)


def test_java_finds_its_five_fields() -> None:
    data = encode_checkpoint(TIMES, PROGRESS)
    assert struct.unpack_from(">5q", data) == tuple(TIMES)
    assert data[64:72] == b"RPCHKPT1"


def test_our_part_is_believed_only_with_the_fields_it_was_written_with() -> None:
    data = bytearray(encode_checkpoint(TIMES, PROGRESS))
    struct.pack_into(">qq", data, 0, 1700000000001, 1700000000001)
    found = decode_checkpoint(bytes(data))
    assert found.times.log_ms == 1700000000001
    assert found.progress is None


@given(st.integers(64, 155), st.integers(1, 255))
def test_damage_is_noticed(at: int, change: int) -> None:
    data = bytearray(encode_checkpoint(TIMES, PROGRESS))
    data[at] ^= change
    assert decode_checkpoint(bytes(data)) == (Times(), None)


def test_a_file_of_java_or_none_has_no_progress(tmp_path: Path) -> None:
    assert decode_checkpoint(struct.pack(">5q", *TIMES).ljust(4096, b"\0")) == (TIMES, None)
    path = str(tmp_path / "checkpoint")
    assert load_checkpoint_blocking(RealFiles(), path) == (Times(), None)
    save_checkpoint_blocking(RealFiles(), path, TIMES, PROGRESS)
    assert load_checkpoint_blocking(RealFiles(), path) == (TIMES, PROGRESS)
    assert (tmp_path / "checkpoint").stat().st_size == 4096


def test_javas_margin() -> None:
    assert Times(10_000, 9_000).safe_ms == 6_000
    assert Times(10_000, 1_000).safe_ms == 0


@pytest.mark.parametrize("bit", [0, 7, 63, 100, 319])
def test_a_flipped_bit_in_rocketmqs_fields_is_mended(bit: int) -> None:
    times, progress = Times(1700000000001, 1700000000001, 3, 0, 0), Progress(1, 2, 3, 4, 5)
    data = bytearray(encode_checkpoint(times, progress))
    data[bit // 8] ^= 1 << bit % 8
    assert decode_checkpoint(bytes(data)) == (times, progress)
    data[(bit // 8 + 1) % 40] ^= 1
    assert decode_checkpoint(bytes(data)).progress is None  # a Java broker changes more


@pytest.mark.parametrize("at", [64, 70, 100, 120, 150, 155])
def test_times_beside_a_damaged_part_of_ours_are_not_believed(at: int) -> None:
    data = bytearray(encode_checkpoint(Times(9, 9, 9, 0, 0), Progress(1, 2, 3, 4, 5)))
    data[at] ^= 4
    assert decode_checkpoint(bytes(data)) == (Times(), None)


def test_the_flushed_position_of_a_master_survives_a_crash(opener: Opener) -> None:
    store = opener()
    assert store.checkpoint.master_flushed == 0
    store.checkpoint.master_flushed = 4096
    store.save_blocking()
    opener.crash(store)
    assert (opener.root / "checkpoint").read_bytes()[24:32] == (4096).to_bytes(8, "big")
    assert opener().checkpoint.master_flushed == 4096
