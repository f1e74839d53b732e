"""The pull lane, uncompiled and as it is imported: any pull gives the same results.

A shape and its numbers must be the whole header. If a shape has a meaning, it is that of the codec.
Compiled with memory checks, an access outside a buffer ends the process too.
"""

from __future__ import annotations

import struct
from types import ModuleType
from typing import Any

from fuzz.finding import Find
from fuzz.forms import load_linked
from fuzz.supply import Supply
from rocketpost.codec.command import decode_command, encode_command
from rocketpost.codec.frames import Frame
from rocketpost.codec.headers.message import PullMessage
from rocketpost.codec.pull_shapes import found_pieces, read_shape, rebuild_header
from rocketpost.errors import LocalProtocolError

_NAMES = (
    *("consumerGroup", "topic", "queueId", "queueOffset", "maxMsgNums", "sysFlag"),
    *("commitOffset", "subscription"),
)
_VALUES = ("g", "T", "1", "170", "32", "4", "5", "*")
_SEGMENT = memoryview(bytes(range(200)) * 3)
_START = 100


class Target:
    """Splits pulls and writes answers in two forms."""

    def __init__(self) -> None:
        self._forms = load_linked("pull_lane")

    def check(self, data: bytes) -> None:
        """Split a pull and answer it in both forms, and look at its shape."""
        supply = Supply(data)
        fields = dict(zip(_NAMES, _VALUES, strict=True))
        if supply.chance(3):
            fields[supply.pick(_NAMES)] = supply.text()
        code = supply.pick((11, 11, 361, 310))
        encoding = supply.byte() % 2
        try:
            made = encode_command(code, opaque=supply.byte(), fields=fields, encoding=encoding)
        except LocalProtocolError:
            return
        stream = bytearray(bytes(supply.byte() % 3) + made + supply.raw(30))
        at = stream.index(made)
        for _ in range(supply.byte() % 4):
            place = supply.number(0, len(stream) - 1)
            stream[place] = supply.pick((0, 1, 11, 12, 34, 92, 44, 48, 57, 255))
        units = b"".join(
            struct.pack(">qiq", supply.number(90, 700), supply.number(-1, 300), supply.byte() % 3)
            for _ in range(supply.byte() % 5)
        ) + supply.raw(25)
        wanted = frozenset(range(supply.byte() % 3))
        given = (units, wanted, supply.number(1, 5), supply.number(0, 900))
        uncompiled, imported = (_pull(form, bytes(stream), at, given) for form in self._forms)
        if uncompiled != imported:
            raise Find(f"the forms differ: {uncompiled} {imported}")
        if imported:
            _judge(imported, bytes(stream[at + 8 : imported["end"]]))

    def close(self) -> None:
        """Nothing is held."""


def _pull(form: ModuleType, data: bytes, at: int, given: tuple[Any, ...]) -> dict[str, Any]:
    lane = form.PullLane()
    shape = lane.split(data, at, len(data))
    if shape is None:
        return {}
    encoding = lane.encoding
    pieces, fields_at = found_pieces(encoding, broker_id=0, topic_sys_flag=1, group_sys_flag=1)
    head = form.AnswerHead(pieces, encoding, fields_at)
    part = form.LogPart(_SEGMENT, _START, _START + len(_SEGMENT))
    answer = lane.answer(head, *given, part, 5, 99)
    return {
        "shape": shape,
        "numbers": (lane.queue_offset, lane.commit_offset, lane.opaque),
        "encoding": encoding,
        "end": lane.end,
        "answer": answer,
        "counts": (lane.count, lane.passed, lane.size),
    }


def _judge(found: dict[str, Any], header: bytes) -> None:
    shape, encoding, numbers = found["shape"], found["encoding"], found["numbers"]
    if rebuild_header(shape, encoding, numbers) != header:
        raise Find("a shape and its numbers are not the header")
    queue_offset, commit_offset, opaque = numbers
    meaning = read_shape(
        shape, encoding, queue_offset=queue_offset, commit_offset=commit_offset, opaque=opaque
    )
    if meaning is not None:
        command = decode_command(Frame(encoding, header, b""))
        if (meaning.code, meaning.request) != (command.code, command.read(PullMessage)):
            raise Find("a shape means something else than its pull")
