"""The term table on disk: RocketMQ's bytes, and every damaged one noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketpost.errors import StoreError
from rocketpost.store.files import RealFiles
from rocketpost.store.member.term_file import (
    FILE_BYTES_MAX,
    LoadedTerms,
    TermFile,
    decode_terms,
    encode_terms,
)

JAVA = b"2\n773307083\n7-7000\n8-8000\n"
"""As RocketMQ 5.3.3 writes these two epochs."""


def at(tmp_path: Path) -> TermFile:
    return TermFile(RealFiles(), str(tmp_path / "epochFileCheckpoint"))


def test_the_bytes_are_rocketmqs() -> None:
    assert encode_terms([(7, 7000), (8, 8000)]) == JAVA
    assert encode_terms([(3, 0), (4, 109)]) == b"2\n375031924\n3-0\n4-109\n"
    assert decode_terms(JAVA) == ((7, 7000), (8, 8000))


def test_nothing_was_saved_yet(tmp_path: Path) -> None:
    assert at(tmp_path).load_blocking() == LoadedTerms(None, "")


def test_spans_are_read_back(tmp_path: Path) -> None:
    file = at(tmp_path)
    file.replace_blocking((*file.spans, (1, 0)))
    file.replace_blocking((*file.spans, (4, 500)))
    again = at(tmp_path)
    assert again.load_blocking() == (((1, 0), (4, 500)), "")
    assert again.spans == file.spans
    again.replace_blocking((*again.spans, (5, 900)))
    again.cut_blocking(900)
    again.cut_blocking(901)  # nothing begins there
    assert at(tmp_path).load_blocking().spans == ((1, 0), (4, 500))
    again.cut_blocking(0)
    assert at(tmp_path).load_blocking() == LoadedTerms(())
    assert (tmp_path / "epochFileCheckpoint").read_bytes() == b"0\n0\n"


def test_terms_that_expired_are_forgotten_but_not_the_one_that_still_lasts(tmp_path: Path) -> None:
    file = at(tmp_path)
    file.replace_blocking([(1, 0), (4, 500), (5, 900)])
    for first, left in [(0, 3), (500, 3), (501, 2), (900, 2), (901, 1), (5000, 1)]:
        file.forget_before_blocking(first)
        assert len(file.spans) == left
    assert at(tmp_path).load_blocking().spans == ((5, 900),)


@pytest.mark.parametrize("span", [(4, 501), (3, 501), (5, 500), (5, 499), (2**31, 501), (5, 2**63)])
def test_a_term_that_cannot_follow_is_refused(tmp_path: Path, span: tuple[int, int]) -> None:
    file = at(tmp_path)
    file.replace_blocking([(4, 500)])
    with pytest.raises(StoreError, match="refusing"):
        file.replace_blocking((*file.spans, span))
    assert file.spans == ((4, 500),)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"2\n773307083\n7-7000\n",
        b"3\n773307083\n7-7000\n8-8000\n",
        b"2\n0\n7-7000\n8-8000\n",  # RocketMQ would take it unchecked
        b"02\n773307083\n7-7000\n8-8000\n",
        JAVA[:-1],
        JAVA + b"\n",
        JAVA.replace(b"\n", b"\r\n"),
        encode_terms([(8, 0), (7, 1)]),
        encode_terms([(0, 0)]),
        encode_terms([(1, -1)]),
        b"1\n1\nx\n",
        b"1\n1\n7-" + b"9" * 5000 + b"\n",
    ],
)
def test_other_bytes_are_damage(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "epochFileCheckpoint").write_bytes(data)
    spans, problem = at(tmp_path).load_blocking()
    assert spans is None
    assert "damaged" in problem


def test_every_flipped_bit_is_noticed() -> None:
    for bit in range(8 * len(JAVA)):
        data = bytearray(JAVA)
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ValueError, match=r"it has a line|CRC"):
            decode_terms(bytes(data))


def test_a_damaged_or_lost_file_is_repaired_from_its_copy(tmp_path: Path) -> None:
    at(tmp_path).replace_blocking([(1, 0), (4, 500)])
    names = ["epochFileCheckpoint", "epochFileCheckpoint.bak"]
    for name in names:
        path = tmp_path / name
        whole = path.read_bytes()
        for data in (whole[:-3], b"", whole.replace(b"500", b"501"), None):
            path.unlink()
            if data is not None:
                path.write_bytes(data)
            spans, problem = at(tmp_path).load_blocking()
            assert spans == ((1, 0), (4, 500))
            assert problem or (data is None and name.endswith(".bak"))
            assert path.read_bytes() == whole
    for name in names:
        (tmp_path / name).write_bytes(b"?")
    assert at(tmp_path).load_blocking().spans is None


def test_a_huge_file_or_a_directory_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "epochFileCheckpoint"
    with path.open("wb") as file:
        file.truncate(FILE_BYTES_MAX + 1)
    assert "small file" in at(tmp_path).load_blocking().problem
    path.unlink()
    path.mkdir()
    assert "small file" in at(tmp_path).load_blocking().problem
