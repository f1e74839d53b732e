from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from struct import pack
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpost.codec.command import BINARY, JSON, Command, encode_command, encode_response
from rocketpost.codec.pull_shapes import found_pieces, rebuild_header
from rocketpost.kernel.queue_scan import gather_records

START = 1 << 33
SEGMENT = bytes(range(256)) * 16
FIELDS = {
    "consumerGroup": "g",
    "topic": "T",
    "queueId": "3",
    "queueOffset": "17",
    "maxMsgNums": "32",
    "sysFlag": "4",
    "commitOffset": "5",
}
GOLDEN = Path(__file__).parents[2] / "golden" / "__init__.py"
codes = st.sampled_from([0, 1, -1, 2**31, -(2**63), 2**63 - 1])
numbers = st.integers(0, 10**18 - 1)


def request(encoding: int = JSON, code: int = 11, opaque: int = 9, **fields: str) -> bytes:
    return encode_command(code, opaque=opaque, fields=FIELDS | fields, encoding=encoding)


def split(lane: Any, data: bytes, at: int = 0) -> bytes | None:
    """Split a pull, in a buffer that has more bytes than were read."""
    buffer = bytearray(data) + b'"' * 40
    shape: bytes | None = lane.split(buffer, at, len(data))
    assert lane.split(data, at, len(data)) == shape
    return shape


def golden_pulls() -> list[bytes]:
    """Return the pulls of Java clients that were answered with messages."""
    spec = importlib.util.spec_from_file_location("golden", GOLDEN)
    assert spec is not None
    assert spec.loader is not None
    golden = importlib.util.module_from_spec(spec)
    sys.modules["golden"] = golden  # its dataclasses look for it there
    try:
        spec.loader.exec_module(golden)
    finally:
        del sys.modules["golden"]
    return [each.request.wire for each in golden.exchanges("client-*", "011-pull-*-r0")]


@pytest.mark.parametrize("wire", golden_pulls())
def test_pulls_of_java_clients_are_split(kernel: ModuleType, wire: bytes) -> None:
    lane = kernel.PullLane()
    shape = split(lane, wire)
    assert lane.end == len(wire)
    assert lane.encoding == wire[4]
    found = (lane.queue_offset, lane.commit_offset, lane.opaque)
    assert rebuild_header(shape, lane.encoding, found) == wire[8:]


@given(
    first=st.tuples(numbers, numbers, st.integers(0, 2**31 - 1)),
    second=st.tuples(numbers, numbers, st.integers(0, 2**31 - 1)),
    encoding=st.sampled_from([JSON, BINARY]),
    gap=st.integers(0, 3),
)
def test_pulls_that_differ_in_numbers_have_one_shape(
    kernel: ModuleType,
    first: tuple[int, int, int],
    second: tuple[int, int, int],
    encoding: int,
    gap: int,
) -> None:
    lane = kernel.PullLane()
    shapes = []
    for queue_offset, commit_offset, opaque in (first, second):
        data = request(
            encoding,
            opaque=opaque,
            queueOffset=str(queue_offset),
            commitOffset=str(commit_offset),
        )
        shapes.append(split(lane, bytes(gap) + data + b"more", gap))
        assert (lane.queue_offset, lane.commit_offset) == (queue_offset, commit_offset)
        assert lane.opaque == opaque
        assert lane.end == gap + len(data)
    assert shapes[0] is not None
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("encoding", [JSON, BINARY])
@pytest.mark.parametrize("name", [name for name in FIELDS if not name.endswith("Offset")])
def test_other_differences_make_another_shape(kernel: ModuleType, encoding: int, name: str) -> None:
    lane = kernel.PullLane()
    assert split(lane, request(encoding)) != split(lane, request(encoding, **{name: "1"}))
    assert split(lane, request(encoding)) != split(lane, request(encoding, 361))


@pytest.mark.parametrize("encoding", [JSON, BINARY])
@pytest.mark.parametrize("value", ["", "-1", "01", "1" * 19, "x", "1x", " 1"])
@pytest.mark.parametrize("name", ["queueOffset", "commitOffset"])
def test_unusual_numbers_are_left(kernel: ModuleType, encoding: int, value: str, name: str) -> None:
    assert split(kernel.PullLane(), request(encoding, **{name: value})) is None


@pytest.mark.parametrize("encoding", [JSON, BINARY])
def test_what_is_no_complete_pull_is_left(kernel: ModuleType, encoding: int) -> None:
    lane = kernel.PullLane()
    data = request(encoding)
    for size in range(len(data)):
        assert split(lane, data[:size]) is None
    assert split(lane, request(encoding, code=310)) is None
    assert split(lane, request(encoding, topic="T" * 1024)) is None
    with_body = encode_command(11, opaque=1, fields=FIELDS, body_bytes=3, encoding=encoding)
    assert split(lane, with_body + b"abc") is None
    for name in ("queueOffset", "commitOffset"):
        fields = {key: value for key, value in FIELDS.items() if key != name}
        assert split(lane, encode_command(11, opaque=1, fields=fields, encoding=encoding)) is None


@given(
    encoding=st.sampled_from([JSON, BINARY]),
    changes=st.lists(st.tuples(st.integers(8, 400), st.integers(0, 255)), max_size=3),
)
def test_a_shape_and_its_numbers_are_the_whole_header(
    kernel: ModuleType, encoding: int, changes: list[tuple[int, int]]
) -> None:
    data = bytearray(request(encoding))
    for at, byte in changes:
        if at < len(data):
            data[at] = byte
    lane = kernel.PullLane()
    shape = split(lane, bytes(data))
    if shape is not None:
        found = (lane.queue_offset, lane.commit_offset, lane.opaque)
        assert rebuild_header(shape, encoding, found) == data[8:]


@given(
    units=st.lists(
        st.tuples(st.integers(0, 3000), st.integers(1, 900), codes).map(
            lambda unit: pack(">qiq", START + unit[0], *unit[1:])
        ),
        max_size=40,
    ).map(b"".join),
    wanted=st.frozensets(codes, max_size=3),
    count_max=st.integers(1, 40),
    bytes_max=st.integers(0, 20_000),
    torn=st.integers(0, 19),
    encoding=st.sampled_from([JSON, BINARY]),
    offset=st.integers(0, 10**17),
    ends=st.tuples(numbers, numbers),
)
def test_answers_are_those_of_the_codec(
    kernel: ModuleType,
    units: bytes,
    wanted: frozenset[int],
    count_max: int,
    bytes_max: int,
    torn: int,
    encoding: int,
    offset: int,
    ends: tuple[int, int],
) -> None:
    lane = kernel.PullLane()
    assert split(lane, request(encoding, opaque=77, queueOffset=str(offset)))
    pieces, fields_at = found_pieces(encoding, broker_id=2, topic_sys_flag=3, group_sys_flag=1)
    head = kernel.AnswerHead(pieces, encoding, fields_at)
    given = (units + bytes(torn), wanted, count_max, bytes_max)
    part = kernel.LogPart(memoryview(SEGMENT), START, START + len(SEGMENT))
    found = lane.answer(head, *given, part, *ends)
    gathered = gather_records(*given, memoryview(SEGMENT), START, START + len(SEGMENT))
    if gathered is None or not gathered[1]:
        assert found is None
        return
    joined, count, passed = gathered
    assert (lane.count, lane.passed, lane.size) == (count, passed, len(joined))
    expected = encode_response(
        Command(opaque=77, encoding=encoding),
        remark="FOUND",
        fields={
            "suggestWhichBrokerId": "2",
            "nextBeginOffset": str(offset + passed),
            "minOffset": str(ends[0]),
            "maxOffset": str(ends[1]),
            "topicSysFlag": "3",
            "groupSysFlag": "1",
        },
        body_bytes=len(joined),
    )
    assert found == expected + joined


def test_entries_outside_of_the_part_are_left(kernel: ModuleType) -> None:
    lane = kernel.PullLane()
    assert split(lane, request())
    pieces, fields_at = found_pieces(JSON, broker_id=0, topic_sys_flag=0, group_sys_flag=0)
    head = kernel.AnswerHead(pieces, JSON, fields_at)
    good = pack(">qiq", START, 100, 0)
    for position, size in (
        (START - 1, 5),
        (START + 4000, 97),
        (START + 4096, 1),
        (START, 0),
        (START, -1),
        (START, 0x7FFF_FFFF),
        (2**63 - 1, 2),
        (-(2**63), 2),
    ):
        units = good + pack(">qiq", position, size, 0)
        part = kernel.LogPart(memoryview(SEGMENT), START, START + 4096)
        assert lane.answer(head, units, frozenset(), 9, 9999, part, 0, 1) is None
