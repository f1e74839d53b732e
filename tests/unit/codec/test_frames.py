"""Frames: any cutting, hostile lengths."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpost.codec.frames import (
    FRAME_BYTES_MAX,
    Frame,
    FrameDecoder,
    encode_frame,
    encode_json_frame,
)
from rocketpost.errors import LocalProtocolError, RemoteProtocolError

frames = st.builds(Frame, st.integers(0, 1), st.binary(max_size=40), st.binary(max_size=80))


def whole(frame: Frame) -> bytes:
    return encode_frame(frame.encoding, frame.header, len(frame.body)) + frame.body


@given(sent=st.lists(frames, max_size=5), cut_every=st.integers(min_value=1, max_value=64))
def test_frames_survive_any_cutting_of_the_stream(sent: list[Frame], cut_every: int) -> None:
    stream = b"".join(map(whole, sent))
    decoder = FrameDecoder()
    cuts = range(0, len(stream), cut_every)
    got = [frame for cut in cuts for frame in decoder.feed(stream[cut : cut + cut_every])]
    assert got == sent


@given(st.binary(max_size=200))
def test_any_bytes_are_frames_or_refused(data: bytes) -> None:
    decoder = FrameDecoder()
    try:
        for frame in decoder.feed(data):
            assert len(frame.header) + len(frame.body) + 8 <= len(data)
    except RemoteProtocolError:
        pass


@pytest.mark.parametrize(
    "prefix",
    [
        b"\x7f\xff\xff\xff\x00\x00\x00\x01",  # far too long
        b"\xff\xff\xff\xff\x00\x00\x00\x00",  # negative
        b"\x00\x00\x00\x03\x00\x00\x00\x00",  # shorter than its own mark
        b"\x00\x00\x00\x05\x00\x00\x00\x02",  # header longer than the frame
        b"\x16\x03\x01\x02\x00\x01\x00\x01",  # a TLS hello
        b"GET / HT",
    ],
)
def test_a_hostile_length_is_refused_before_it_is_buffered(prefix: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="bad frame"):
        FrameDecoder().feed(prefix)


def test_the_largest_frame_passes_and_one_more_byte_does_not() -> None:
    body = bytes(FRAME_BYTES_MAX - 8)
    (frame,) = FrameDecoder().feed(encode_frame(0, b"", len(body)) + body)
    assert len(frame.body) == len(body)
    with pytest.raises(LocalProtocolError, match="over 16777216"):
        encode_frame(0, b"", len(body) + 1)


def test_a_large_frame_in_small_pieces_is_joined_once() -> None:
    body = bytes(range(256)) * 4096
    stream = encode_frame(1, b"h", len(body)) + body
    decoder = FrameDecoder()
    got = [f for at in range(0, len(stream), 999) for f in decoder.feed(stream[at : at + 999])]
    assert got == [Frame(1, b"h", body)]


@pytest.mark.parametrize("size", [0, 1, 300, 5000])
def test_frames_of_a_header_alone(size: int) -> None:
    assert encode_json_frame(b"h" * size) == encode_frame(0, b"h" * size, 0)
