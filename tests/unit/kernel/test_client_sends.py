"""Heads of sends are their joined parts; answers read at once are those that decoding finds."""

from __future__ import annotations

from types import ModuleType

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rocketpost.codec.command import decode_commands
from rocketpost.codec.frames import FrameDecoder, encode_frame, encode_prefix
from rocketpost.codec.headers.message import SendResponse

FIELDS = {
    "msgId": "7F00000100002A9F0000000000ABCDEF",
    "queueId": "2",
    "queueOffset": "17",
    "transactionId": "7F0000016A5D0B7C",
    "MSG_REGION": "DefaultRegion",
    "TRACE_ON": "true",
}
HEADER = {
    "code": 0,
    "extFields": FIELDS,
    "flag": 1,
    "language": "JAVA",
    "opaque": 5,
    "serializeTypeCurrentRPC": "JSON",
    "version": 479,
}

names = st.sampled_from([*FIELDS, "recallHandle", "x"])
texts = st.sampled_from(
    ["", "0", "7", "00", "-1", "true", "false", "9" * 20, "é", '"', "a\\b", "DefaultRegion", "cn"]
)
changes = st.dictionaries(names, texts | st.text(max_size=5) | st.integers().map(str), max_size=3)
numbers = st.sampled_from([0, 1, 2, 3, -1, 10, 2**31 - 1, 2**31, 2**40])
tops = st.dictionaries(
    st.sampled_from(["code", "flag", "opaque", "version", "remark", "language"]),
    numbers | st.none() | texts,
    max_size=2,
)


def frame_of(header: object, body: bytes = b"") -> bytes:
    data = msgspec.json.encode(header)
    return encode_frame(0, data, len(body)) + body


def check(kernel: ModuleType, data: bytes) -> int:
    """Compare with decoding; return the number of answers."""
    answers, end = kernel.read_answers(data)
    frames = FrameDecoder().feed(data[:end])
    commands = list(decode_commands(frames))
    assert len(commands) == len(answers)
    at = 0
    for answer, command, frame in zip(answers, commands, frames, strict=True):
        opaque, start, offset_id, queue_id, queue_offset, transaction_id, region, traced = answer
        assert start == at
        assert (command.code, command.flag, command.opaque) == (0, 1, opaque)
        assert not command.body
        assert not command.remark
        head = command.read(SendResponse)
        assert (head.msg_id, head.queue_id, head.queue_offset) == (
            offset_id,
            queue_id,
            queue_offset,
        )
        assert (head.transaction_id, head.region) == (transaction_id, region)
        assert (head.trace_on != "false") == traced
        assert head.recall_handle is None
        assert head.duplicate is None
        assert head.queue_offsets is None
        at += 8 + len(frame.header)
    assert end == at
    return len(answers)


def test_answers_of_both_brokers_are_read_in_one_pass(kernel: ModuleType) -> None:
    other = {"queueId": "0", "TRACE_ON": "false", "msgId": "AB", "queueOffset": "0"}
    data = frame_of(HEADER) + frame_of(HEADER | {"extFields": other, "opaque": 6}) * 2
    assert check(kernel, data) == 3
    assert check(kernel, data[:-1]) == 2
    assert kernel.read_answers(b"") == ([], 0)


def test_what_is_not_plain_ends_the_reading(kernel: ModuleType) -> None:
    odd = [
        frame_of(HEADER | {"code": 10}),
        frame_of(HEADER | {"remark": "no"}),
        frame_of(HEADER | {"flag": 0}),
        frame_of(HEADER, b"body"),
        frame_of(HEADER | {"extFields": FIELDS | {"recallHandle": "h"}}),
        frame_of(HEADER | {"extFields": FIELDS | {"duplicate": "true"}}),
        frame_of(HEADER | {"extFields": FIELDS | {"msgId": "\\"}}),
        frame_of(HEADER | {"extFields": {}}),
        b"\x00\x00\x00\x06\x01\x00\x00\x02{}",
        b"\x00\x00\x00\x06\x00\x00\x00\x02{}",
    ]
    for each in odd:
        data = frame_of(HEADER) + each + frame_of(HEADER)
        assert check(kernel, data) == 1, each


@given(given=st.lists(st.tuples(changes, tops), max_size=3), cut=st.integers(0, 400),
       damage=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)),
                       max_size=2))  # fmt: skip
@example(given=[({}, {})] * 3, cut=0, damage=[])
def test_whatever_is_read_is_what_decoding_finds(
    kernel: ModuleType,
    given: list[tuple[dict[str, str], dict[str, object]]],
    cut: int,
    damage: list[tuple[float, int]],
) -> None:
    data = bytearray(
        b"".join(frame_of(HEADER | top | {"extFields": FIELDS | fields}) for fields, top in given)
    )
    for place, value in damage:
        if data:
            data[int(place * len(data))] = value
    check(kernel, bytes(data[: max(0, len(data) - cut)]))


@given(data=st.binary(max_size=80))
def test_any_bytes_can_be_read(kernel: ModuleType, data: bytes) -> None:
    check(kernel, data)


parts = st.binary(max_size=40)
any_numbers = st.integers(-(2**31), 2**31 - 1) | st.integers(0, 10**18 - 1)
EVERY_CONTROL = "".join(map(chr, range(0x21))) + '"\\/\x7f\x80\u2028'


def joined(
    parts: tuple[bytes, bytes, bytes, bytes],
    numbers: tuple[int, int, int],
    properties: str,
    body_bytes: int,
) -> bytes:
    start, more, tail, end = parts
    born_ms, flag, opaque = numbers
    text = msgspec.json.encode(properties)
    fields = b'%d","h":"%d","i":%b%b' % (born_ms, flag, text, more)
    header = start + fields + tail + b"%d" % opaque + end
    return encode_prefix(0, len(header), body_bytes) + header


@given(
    parts=st.tuples(parts, parts, parts, parts),
    numbers=st.tuples(any_numbers, any_numbers, any_numbers),
    properties=st.text(max_size=30),
    body_bytes=st.integers(0, 2**22),
)
@example((b"", b"", b"", b""), (0, 0, 0), "", 0)
@example((b"", b"", b"", b""), (10**18 - 1, -1, 10), EVERY_CONTROL, 1)
@example((b"{", b",", b"}", b"]"), (9, 10, 99), "KEYS\x01é 中文 \U0001f600\x02", 7)
def test_a_head_has_the_bytes_of_its_joined_parts(
    kernel: ModuleType,
    parts: tuple[bytes, bytes, bytes, bytes],
    numbers: tuple[int, int, int],
    properties: str,
    body_bytes: int,
) -> None:
    start, more, tail, end = parts
    born_ms, flag, opaque = numbers
    head = kernel.encode_head(start, born_ms, flag, properties, more, tail, opaque, end, body_bytes)
    assert type(head) is bytes
    assert head == joined(parts, numbers, properties, body_bytes)


def test_long_property_strings_are_encoded_whole(kernel: ModuleType) -> None:
    for char in ("a", "\x01", '"', "é", "中"):
        properties = char * 40_000
        head = kernel.encode_head(b"s", 1, 0, properties, b"m", b"t", 2, b"e", 3)
        assert head == joined((b"s", b"m", b"t", b"e"), (1, 0, 2), properties, 3)


def test_a_lone_surrogate_is_refused(kernel: ModuleType) -> None:
    with pytest.raises(UnicodeEncodeError):
        kernel.encode_head(b"", 1, 0, "a\ud800", b"", b"", 2, b"", 0)
