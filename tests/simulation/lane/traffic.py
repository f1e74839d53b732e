"""Random traffic of producers: plain and special sends, other requests, malformed bytes."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from rocketpost.codec.batch import BatchItem, encode_batch

LETTERS = "abcdefghijklmn"
NAMES = [
    "producerGroup",
    "topic",
    "defaultTopic",
    "defaultTopicQueueNums",
    "queueId",
    "sysFlag",
    "bornTimestamp",
    "flag",
    "properties",
    "reconsumeTimes",
    "unitMode",
    "maxReconsumeTimes",
    "batch",
    "bname",
]
TEXTS = ["v", "some value", "订单", "中 文", "😀", "é", 'a"b', "back\\slash", "x" * 200]
SPECIAL = [
    "DELAY\x013\x02",
    "TRAN_MSG\x01true\x02PGROUP\x01p\x02",
    "TRAN_MSG\x01true\x02",
    "TIMER_DELAY_SEC\x011\x02",
    "_SYS_MSG_PRIORITY_\x011\x02",
    "__SHARDINGKEY\x01s\x02",
    "WAIT\x01false\x02",
    "POP_CK\x011\x02",
    "__CRC32#\x011234567890\x02",
    "MSG_REGION\x01r\x02",
    "a\x01\x02",
    "\x02",
    "no separator\x02",
    "a\x011\x02a\x012\x02",
    "UNIQ_KEY\x01again\x02",
    "a\x01b\x01c\x02",
]


class Step(NamedTuple):
    """One thing that happens to a rig."""

    name: str
    act: Callable[[Any], None]


def frame(header: bytes, body: bytes, encoding: int) -> bytes:
    """Return a frame."""
    mark = encoding << 24 | len(header)
    return struct.pack(">iI", 4 + len(header) + len(body), mark) + header + body


class Traffic:
    """Makes traffic from a random generator."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._opaque = 0
        self._key = 0

    def stream(self, count: int) -> bytes:
        """Return ``count`` frames, a few of them damaged."""
        return b"".join(self.frame() for _ in range(count))

    def frame(self) -> bytes:
        """Return a frame."""
        rng = self._rng
        kind = rng.random()
        if kind < 0.7:
            made = self._send(plain=True)
        elif kind < 0.85:
            made = self._batch()
        elif kind < 0.96:
            made = self._send(plain=False)
        else:
            made = self._encode({"topic": "Orders"}, b"", code=rng.choice([11, 34, 105, 999]))
        if rng.random() < 0.004:
            made = self._damaged(made)
        return made

    def changes(self) -> list[Step]:
        """Return other changes; none here."""
        return []

    def _damaged(self, made: bytes) -> bytes:
        rng = self._rng
        data = bytearray(made)
        # Not the lengths: those end the connection, and it depends on the reads what was served.
        at = rng.randrange(8, len(data))
        data[at] = rng.choice([0, 1, 2, 34, 92, 48, 255, rng.randrange(256)])
        return bytes(data)

    def _properties(self, *, plain: bool) -> str:
        rng = self._rng
        self._key += 1
        pairs = [f"UNIQ_KEY\x01KEY{self._key:08X}\x02"]
        if rng.random() < 0.5:
            pairs.append(f"TAGS\x01{rng.choice(['TagA', 'TagB', *TEXTS])}\x02")
        if rng.random() < 0.4:
            pairs.append(f"KEYS\x01{' '.join(rng.choices(['k1', 'k2', '', *TEXTS], k=3))}\x02")
        if rng.random() < 0.5:
            pairs.append("WAIT\x01true\x02")
        for number in range(rng.randrange(3)):
            pairs.append(f"user{number}\x01{rng.choice(TEXTS)}\x02")
        if not plain:
            if rng.random() < 0.8:
                pairs.append(rng.choice(SPECIAL))
            else:
                del pairs[0]
        rng.shuffle(pairs)
        text = "".join(pairs)
        return text[:-1] if rng.random() < 0.1 and text.endswith("\x02") else text

    def _body(self, most: int = 600) -> bytes:
        rng = self._rng
        size = rng.choice([1, 10, 64, 80, rng.randrange(1, most)])
        return rng.randbytes(size)

    def _fields(self, properties: str, *, plain: bool) -> dict[str, Any]:
        rng = self._rng
        topic = rng.choice(["Orders", "Orders", "Orders", "Typed"])
        queue_id = rng.randrange(3)
        if not plain and rng.random() < 0.5:
            topic = rng.choice(["Urgent", "Unknown", "%RETRY%g", "SCHEDULE_TOPIC_XXXX"])
            queue_id = rng.choice([-1, 0, 3, 99])
        return {
            "producerGroup": "producers",
            "topic": topic,
            "defaultTopic": "none",
            "defaultTopicQueueNums": "4",
            "queueId": str(queue_id),
            "sysFlag": str(rng.choice([0, 0, 1, 257])),
            "bornTimestamp": str(1_700_000_000_000 - rng.randrange(100)),
            "flag": str(rng.choice([0, -1, 7])),
            "properties": properties,
            "reconsumeTimes": str(rng.choice([0, 0, 2])),
            "unitMode": "false",
            "batch": "false",
        }

    def _send(self, *, plain: bool) -> bytes:
        rng = self._rng
        fields = self._fields(self._properties(plain=plain), plain=plain)
        body = self._body()
        if not plain and rng.random() < 0.2:
            body = rng.choice([b"", bytes(17 * 1024)])
        if not plain and rng.random() < 0.1:
            fields["sequence"] = "nonsense"
        return self._encode(fields, body, code=rng.choice([310, 310, 310, 10]))

    def _batch(self) -> bytes:
        rng = self._rng
        is_plain = rng.random() < 0.8
        shared = rng.choice(["", "", "WAIT\x01true\x02"]) if is_plain else "TAGS\x01all\x02"
        items = [
            BatchItem(rng.choice([0, 5]), self._body(200), self._properties(plain=each).encode())
            for each in [is_plain or rng.random() < 0.9 for _ in range(rng.randrange(1, 12))]
        ]
        body = encode_batch(items)
        if rng.random() < 0.05:
            body = body[: rng.randrange(len(body))]
        fields = self._fields(shared, plain=rng.random() < 0.95) | {"batch": "true"}
        return self._encode(fields, body, code=rng.choice([320, 310]))

    def sign(self, fields: dict[str, Any], body: bytes) -> dict[str, Any]:
        """Return the fields of a request, which is not signed."""
        return fields

    def _encode(self, fields: dict[str, Any], body: bytes, *, code: int) -> bytes:
        rng = self._rng
        self._opaque += 1
        flag = 2 if rng.random() < 0.1 else 0
        if code in (310, 320):
            letters = dict(zip(NAMES, LETTERS, strict=True))
            fields = {letters.get(name, name): value for name, value in fields.items()}
        fields = self.sign(fields, body)
        if rng.random() < 0.5:
            pairs = b""
            for name, value in fields.items():
                text = value.encode()
                pairs += struct.pack(">h", len(name)) + name.encode()
                pairs += struct.pack(">i", len(text)) + text
            header = struct.pack(">hBhiiii", code, 0, 479, self._opaque, flag, 0, len(pairs))
            return frame(header + pairs, body, 1)
        members = {
            "code": code,
            "extFields": fields,
            "flag": flag,
            "language": "JAVA",
            "opaque": self._opaque,
            "serializeTypeCurrentRPC": "JSON",
            "version": 479,
        }
        style = rng.randrange(4)
        text = json.dumps(
            members,
            ensure_ascii=style == 1,
            separators=None if style == 2 else (",", ":"),
        )
        return frame(text.encode() + (b"\n" if style == 3 else b""), body, 0)


def steps_of(
    seed: int,
    frames: int,
    connections: int,
    *,
    failures: bool = True,
    make: Callable[[random.Random], Traffic] = Traffic,
) -> list[Step]:
    """Return what happens to a rig: reads of any size, turns, and changes in between."""
    rng = random.Random(seed)
    traffic = make(rng)
    steps: list[Step] = []
    left = frames
    rests = [b""] * connections

    def feed(number: int, data: bytes) -> Step:
        return Step(f"feed {number}: {len(data)} bytes", lambda rig: rig.feed(number, data))

    while left > 0:
        for _ in range(rng.randrange(1, 4)):
            number = rng.randrange(connections)
            count = min(left, rng.choice([1, 2, 5, 20, 60]))
            left -= count
            data = rests[number] + traffic.stream(count)
            cut = rng.choice([len(data), len(data), rng.randrange(len(data) + 1)])
            rests[number] = data[cut:]
            while data[:cut]:
                size = rng.choice([cut, cut, rng.randrange(1, 40), rng.randrange(1, 4000)])
                steps.append(feed(number, data[: min(size, cut)]))
                data, cut = data[min(size, cut) :], cut - min(size, cut)
        chance = rng.random()
        if chance < 0.03 and failures:
            written = rng.choice([0, 0, 50, 700])
            steps.append(
                Step("the next write fails", lambda rig, n=written: rig.files.failures.append(n))
            )
        elif chance < 0.06:
            queues = rng.choice([2, 3, 5])
            steps.append(
                Step("topic changed", lambda rig, n=queues: rig.set_topic("Orders", queues=n))
            )
        elif chance < 0.08:
            # Whether a reply says TRACE_ON is decided when it is made: earlier with the lane.
            is_on = rng.random() < 0.5
            steps.append(Step("settle", lambda rig: None))
            steps.append(Step("trace", lambda rig, on=is_on: rig.configure(trace_on=on)))
        elif chance < 0.09:
            is_on = rng.random() < 0.5
            steps.append(Step("types", lambda rig, on=is_on: rig.configure(topic_type_check=on)))
        steps += traffic.changes()
        steps.append(Step("turn", lambda rig: None))
        pause = rng.choice([0, 0, 1, 7])
        steps.append(Step("clock", lambda rig, ms=pause: rig.clock.advance(ms)))
    steps += [feed(number, rests[number]) for number in range(connections)]
    steps.append(Step("settle", lambda rig: None))
    for number in range(connections):
        length = rng.choice([-1, 3, 2**31 - 1])
        steps.append(feed(number, struct.pack(">i", length) + traffic.frame()[4:]))
    return steps
