"""Answers to sends that are read at once are those that decoding commands finds."""

from __future__ import annotations

from types import ModuleType

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from rocketpost.codec.command import decode_commands
from rocketpost.codec.frames import FrameDecoder, encode_frame
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
