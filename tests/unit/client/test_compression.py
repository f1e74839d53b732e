from __future__ import annotations

import zlib

import lz4.frame
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketpost.client.compression import compress, decompress
from rocketpost.client.config import Compression
from rocketpost.errors import RemoteProtocolError
from rocketpost.model import sysflag


@settings(deadline=None)  # a busy machine is no failure
@given(body=st.binary(min_size=1, max_size=5000), kind=st.sampled_from(Compression))
def test_bodies_survive_compression(body: bytes, kind: Compression) -> None:
    small, bits = compress(body, kind, 5)
    assert bits & sysflag.COMPRESSED
    assert decompress(small, bits) == body


def test_lz4_frames_have_independent_blocks_for_java() -> None:
    small, _ = compress(bytes(300_000), Compression.LZ4, 5)
    assert not lz4.frame.get_frame_info(small)["block_linked"]


def test_old_senders_mean_zlib_without_saying_so() -> None:
    assert decompress(zlib.compress(b"x"), sysflag.COMPRESSED) == b"x"


def test_plain_bodies_pass_through() -> None:
    assert decompress(b"x", 0) == b"x"


@pytest.mark.parametrize("kind", Compression)
def test_a_body_cut_short_is_an_error(kind: Compression) -> None:
    small, bits = compress(b"some body" * 100, kind, 5)
    with pytest.raises(RemoteProtocolError):
        decompress(small[:-3], bits)
    with pytest.raises(RemoteProtocolError):
        decompress(b"garbage", bits)


def test_an_unknown_kind_is_an_error() -> None:
    with pytest.raises(RemoteProtocolError, match="unknown"):
        decompress(b"x", sysflag.COMPRESSED | 0x700)


@pytest.mark.parametrize("kind", Compression)
def test_bombs_are_refused(kind: Compression) -> None:
    small, bits = compress(bytes(100_000), kind, 5)
    with pytest.raises(RemoteProtocolError):
        decompress(small, bits, bytes_max=1000)
    assert decompress(small, bits, bytes_max=100_000) == bytes(100_000)
