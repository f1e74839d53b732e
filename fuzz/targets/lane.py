"""The send lane, uncompiled and as it is imported: any frames give the same results.

What it takes must be a send that the codec reads as well, with the same body, and the records must
be sound. Compiled with memory checks, an access outside a buffer ends the process too. Making a
lane takes most of the time then, so lanes with the same room are used again.
"""

from __future__ import annotations

import struct
from array import array
from types import ModuleType
from typing import Any

from fuzz.finding import Find
from fuzz.forms import load_linked
from fuzz.supply import Supply
from rocketpost.codec.batch import BatchItem, decode_batch, encode_batch
from rocketpost.codec.command import decode_commands
from rocketpost.codec.frames import FrameDecoder
from rocketpost.codec.headers.message import SendMessage, SendMessageV2
from rocketpost.codec.record import decode_records
from rocketpost.codec.send_replies import binary_pieces, json_pieces

_HOSTS = (bytes(8), bytes(range(20)))
_KEY = "UNIQ_KEY\x01C0A8010A00002A9F4E0E2F2A4D074915\x02"
_TEXTS = (_KEY, _KEY + "TAGS\x01a\x02", _KEY + "KEYS\x01k1  k2\x02", _KEY + "x\x01中\x02", "")
_PARTS = ("DELAY\x011\x02", "a\x01b\x02", "WAIT\x01false\x02", "\x01", "\x02", "\\u0001", '"', "😀")
_LETTERS = "abcdefghijklmn"
_VALUES = ("p", "T", "TBW102", "4", "1", "0", "17", "0", "", "0", "false", "16", "false", "n")
_LONG = (
    *("producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag"),
    *("bornTimestamp", "flag", "properties", "reconsumeTimes", "unitMode", "maxReconsumeTimes"),
    *("batch", "bname"),
)


class _Lane:
    """A lane of one form, with room for so many bytes of records, rows and keys."""

    def __init__(self, form: ModuleType, record_bytes: int, row_count: int, key_count: int) -> None:
        self.records = bytearray(record_bytes)
        self.rows, self.keys = array("q", bytes(40 * row_count)), array("q", bytes(16 * key_count))
        self.lane: Any = form.Lane(self.records, self.rows, self.keys)

    def take(self, data: bytes, host: bytes) -> dict[str, Any]:
        """Begin anew, take frames, and return all that has come of it."""
        lane, offsets = self.lane, array("q", [5, 6, 7, 8])
        lane.topics.clear(offsets)
        number = lane.topics.add(b"T", 4, 0, 77, True)
        for queue_id in range(3):
            lane.topics.set_slot(number, queue_id, queue_id)
        lane.configure(  # forgets what earlier frames were like
            special=b"\x05DELAY",
            added=b"CLUSTER\x01c\x02",
            body_max=3000,
            properties_max=32767,
            store_host=_HOSTS[0],
            prefix=b"PREFIX",
            json_pieces=json_pieces("r", trace_on=True),
            binary_pieces=binary_pieces("r", trace_on=False),
        )
        is_offered = lane.is_offered(data, 0, len(data))
        writer = lane.writer
        writer.begin(1 << 33, (1 << 33) + 50_000, 99, 0, 0, 0)
        replies = lane.take(data, 0, len(data), host)
        names = ("at", "verdict", "frames", "answers", "encoding")
        return {
            **{name: getattr(lane, name) for name in names},
            "is_offered": bool(is_offered),
            "replies": replies,
            "position": writer.position,
            "records": bytes(self.records[: writer.record_at]),
            "rows": list(self.rows[: 5 * writer.row_at]),
            "keys": list(self.keys[: 2 * writer.key_at]),
            "offsets": list(offsets),
        }


class Target:
    """Feeds frames to two lanes."""

    def __init__(self) -> None:
        self._forms = load_linked("send_lane")
        self._lanes: dict[tuple[int, int, int], list[_Lane]] = {}

    def check(self, data: bytes) -> None:
        """Take frames in both forms, and look at what was taken."""
        supply = Supply(data)
        host = supply.pick(_HOSTS)
        room = supply.pick((300, 4000, 60_000)), supply.pick((1, 40)), supply.pick((2, 90))
        stream = b"".join(_frame(supply) for _ in range(supply.number(1, 4))) + supply.raw(200)
        stream = _bent(stream, supply)
        if room not in self._lanes:
            self._lanes[room] = [_Lane(form, *room) for form in self._forms]
        uncompiled, imported = (each.take(stream, host) for each in self._lanes[room])
        if uncompiled != imported:
            different = [name for name in imported if imported[name] != uncompiled[name]]
            raise Find(f"the forms differ in {different}")
        self._judge(stream[: imported["at"]], imported)

    def close(self) -> None:
        """Forget the lanes."""
        self._lanes.clear()

    def _judge(self, stream: bytes, taken: dict[str, Any]) -> None:
        bodies: list[bytes] = []
        for command in decode_commands(FrameDecoder().feed(stream)):
            kind: Any = SendMessage if command.code == 10 else SendMessageV2
            header = command.read(kind)
            if header.topic != "T" or header.sequence is not None:
                raise Find(f"taken: {header!r}")
            if header.batch:
                bodies += [bytes(item.body) for item in decode_batch(command.body)]
            else:
                bodies.append(command.body)
        records = decode_records(taken["records"])
        if [bytes(record.body) for record in records] != bodies:
            raise Find("records have other bodies than the frames")
        if len(FrameDecoder().feed(taken["replies"])) != taken["answers"]:
            raise Find("replies are not whole frames")


def _frame(supply: Supply) -> bytes:
    text = supply.pick(_TEXTS) + "".join(supply.pick(_PARTS) for _ in range(supply.byte() % 3))
    code = supply.pick((310, 310, 320, 10))
    names = _LONG if code == 10 else _LETTERS
    values = dict(zip(names, _VALUES, strict=True))
    values[names[8]] = text
    body = supply.raw(90)
    if supply.chance(3):
        values[names[8]] = ""
        values[names[12]] = "true"
        items = [BatchItem(1, supply.raw(20), text.encode()) for _ in range(supply.byte() % 4)]
        body = encode_batch(items)
    if supply.chance(4):
        values[supply.pick(names)] = supply.text()
    flag = supply.pick((0, 0, 2, 1))
    if supply.chance(2):
        pairs = b""
        for name, value in values.items():
            raw = value.encode("utf-8", "replace")
            pairs += struct.pack(">h", len(name)) + name.encode()
            pairs += struct.pack(">i", len(raw)) + raw
        header = struct.pack(">hBhiiii", code, 0, 479, supply.byte(), flag, 0, len(pairs)) + pairs
        return (
            struct.pack(">iI", 4 + len(header) + len(body), 1 << 24 | len(header)) + header + body
        )
    fields = ",".join(f'"{name}":"{value}"' for name, value in values.items())
    text = f'{{"code":{code},"extFields":{{{fields}}},"flag":{flag},"opaque":{supply.byte()}}}'
    header = text.replace("\x01", "\\u0001").replace("\x02", "\\u0002").encode("utf-8", "replace")
    return struct.pack(">iI", 4 + len(header) + len(body), len(header)) + header + body


def _bent(stream: bytes, supply: Supply) -> bytes:
    data = bytearray(stream)
    for _ in range(supply.byte() % 4):
        if data:
            data[supply.number(0, len(data) - 1)] = supply.pick((0, 1, 2, 34, 92, 255, 48, 45))
    return bytes(data)
