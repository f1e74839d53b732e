"""The bytes of the HA stream, in both directions."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpost.codec.ha_frames import (
    BODY_BYTES_MAX,
    FrameHead,
    HaFrameDecoder,
    ReportDecoder,
    encode_head,
    encode_report,
)
from rocketpost.errors import RemoteProtocolError

frames = st.lists(st.tuples(st.integers(0, 2**63 - 1), st.binary(max_size=40)), max_size=6)
cuts = st.lists(st.integers(0, 400), max_size=20)


def pieces(data: bytes, places: list[int]) -> list[bytes]:
    bounded = sorted(min(place, len(data)) for place in places)
    return [data[low:high] for low, high in pairwise([0, *bounded, len(data)])]


def test_the_bytes_are_rocketmqs() -> None:
    assert encode_head(0x0102, 3).hex() == "000000000000010200000003"
    assert encode_report(220).hex() == "00000000000000dc"


@given(sent=frames, places=cuts)
def test_frames_survive_any_cutting_of_the_stream(
    sent: list[tuple[int, bytes]], places: list[int]
) -> None:
    stream = b"".join(encode_head(position, len(body)) + body for position, body in sent)
    decoder = HaFrameDecoder()
    got: list[tuple[int, int, bytes]] = []
    for data in pieces(stream, places):
        for piece in decoder.feed(data):
            if isinstance(piece, FrameHead):
                got.append((*piece, b""))
            else:
                position, size, body = got[-1]
                got[-1] = position, size, body + piece
    assert got == [(position, len(body), body) for position, body in sent]


@given(sent=st.lists(st.integers(0, 2**63 - 1), max_size=9), places=cuts)
def test_reports_survive_any_cutting_of_the_stream(sent: list[int], places: list[int]) -> None:
    decoder = ReportDecoder()
    stream = b"".join(map(encode_report, sent))
    assert [each for data in pieces(stream, places) for each in decoder.feed(data)] == sent


def test_a_head_is_passed_on_before_its_body() -> None:
    decoder = HaFrameDecoder()
    assert decoder.feed(encode_head(7, 5)) == [FrameHead(7, 5)]
    assert decoder.feed(b"abc") == [b"abc"]
    assert decoder.feed(b"de" + encode_head(12, 0)) == [b"de", FrameHead(12, 0)]


@pytest.mark.parametrize("head", ["ffffffffffffffff00000000", "0000000000000000ffffffff"])
def test_negative_numbers_are_refused(head: str) -> None:
    with pytest.raises(RemoteProtocolError, match="-1"):
        HaFrameDecoder().feed(bytes.fromhex(head))
    with pytest.raises(RemoteProtocolError, match="-1"):
        ReportDecoder().feed(encode_report(5) + b"\xff" * 8)


def test_the_largest_body_fits_the_buffer_of_a_java_slave() -> None:
    assert len(encode_head(0, BODY_BYTES_MAX)) + BODY_BYTES_MAX == 4 * 1024 * 1024
