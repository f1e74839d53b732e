from __future__ import annotations

import pytest

from rocketpost.store.checkpoint_page import FILE_BYTES, CheckpointPage

PAGE = CheckpointPage(b"RPTEST01", theirs=2, ours=3)


def test_both_parts_are_found_again() -> None:
    data = PAGE.encode((1, -2), (3, 4, 5))
    assert len(data) == FILE_BYTES
    assert PAGE.decode(data) == ((1, -2), (3, 4, 5))


def test_nothing_is_zeros_and_nothing_of_ours() -> None:
    assert PAGE.decode(b"") == ((0, 0), None)


@pytest.mark.parametrize("at", [0, 64, 72, 90, 111, 112])
def test_a_changed_byte_takes_our_part_away(at: int) -> None:
    data = bytearray(PAGE.encode((1, 2), (3, 4, 5)))
    data[at] ^= 1
    assert PAGE.decode(bytes(data))[1] is None


def test_the_part_of_another_file_is_not_ours() -> None:
    data = CheckpointPage(b"RPOTHER1", theirs=2, ours=3).encode((1, 2), (3, 4, 5))
    assert PAGE.decode(data) == ((1, 2), None)
