from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpost.codec.batch import BatchItem, decode_batch, encode_batch
from rocketpost.errors import RemoteProtocolError

items = st.builds(
    BatchItem,
    flag=st.integers(-(2**31), 2**31 - 1),
    body=st.binary(max_size=40),
    properties=st.binary(max_size=40),
)


def test_an_entry_looks_as_java_writes_it() -> None:
    properties = b"K" * 70
    data = encode_batch([BatchItem(0, b"hello", properties)])
    assert data.hex().startswith("0000006100000000000000000000000000000005" + "68656c6c6f" + "0046")
    assert len(data) == 0x61


@given(st.lists(items, min_size=1, max_size=5))
def test_batches_come_back(sent: list[BatchItem]) -> None:
    assert decode_batch(encode_batch(sent)) == sent


def test_magic_and_crc_of_entries_are_ignored() -> None:
    data = struct.pack(">iiiii", 23, 99, 98, 7, 1) + b"x" + struct.pack(">h", 0)
    assert decode_batch(data) == [BatchItem(7, b"x", b"")]


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        b"\0\0\0\x16",
        struct.pack(">iiiii", 22, 0, 0, 0, -1) + b"\0\0",
        struct.pack(">iiiii", 22, 0, 0, 0, 1) + b"\0\0",
        struct.pack(">iiiiih", 23, 0, 0, 0, 0, 0),
        struct.pack(">iiiiih", 22, 0, 0, 0, 0, -1),
        struct.pack(">iiiiih", 24, 0, 0, 0, 0, 2),
        encode_batch([BatchItem(0, b"a", b"")]) + b"\0",
    ],
)
def test_lengths_that_do_not_add_up_are_the_peers_fault(wrong: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_batch(wrong)


def test_a_batch_of_too_many_is_not_looked_at_further() -> None:
    data = encode_batch([BatchItem(0, b"a", b"")] * 3) + b"rubbish"
    with pytest.raises(RemoteProtocolError, match="more than 2 messages"):
        decode_batch(data, count_max=2)
    assert len(decode_batch(data[:-7], count_max=3)) == 3
