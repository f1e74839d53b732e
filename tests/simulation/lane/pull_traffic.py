"""Random traffic of consumers, and what changes under them."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from typing import Any

from .signed import Signatures
from .traffic import Step, frame

TOPICS = ["Orders"] * 6 + ["Typed"] * 3 + ["%RETRY%g"]
TAGS = ["TagA", "TagB", "TagC", ""]


Sign = Callable[[dict[str, Any], bytes], dict[str, Any]]
"""Returns the fields of a request with its signature, given fields and body."""


def not_signed(fields: dict[str, Any], body: bytes) -> dict[str, Any]:
    """Return the fields as they are."""
    return fields


class Reader:
    """One consumer of one queue: its requests are alike, but for their numbers."""

    def __init__(self, rng: random.Random, sign: Sign) -> None:
        self._rng = rng
        self._sign = sign
        self.topic = rng.choice(TOPICS)
        self.group = rng.choice(["g", "g", "h"])
        self.queue_id = rng.choice([0, 0, 1, 2, 0, 1, 2, 3])
        self.offset = 0
        self.style = rng.choice([0, 0, 0, 1, 2, 2, 2])
        self.code = rng.choice([11, 11, 11, 361])
        own = rng.random() < 0.6
        flags = rng.choice([0, 1, 1]) | (2 if rng.random() < 0.5 else 0) | (4 if own else 0)
        self.fields: dict[str, Any] = {
            "consumerGroup": self.group,
            "topic": self.topic,
            "queueId": str(self.queue_id),
            "queueOffset": "0",
            "maxMsgNums": str(rng.choice([1, 4, 32, 32, 0, 500])),
            "sysFlag": str(flags),
            "commitOffset": "0",
            "suspendTimeoutMillis": rng.choice(["0", "15000"]),
            "subscription": rng.choice(["*", "*", "TagA", "TagA || TagC", "none"]) if own else None,
            "expressionType": rng.choice(["TAG", "TAG", "", "TAG", "SQL92"] if own else ["TAG"]),
            "subVersion": rng.choice(["0", "5"]),
            "maxMsgBytes": rng.choice([None, "1500", "0", "2147483647"]),
            "bname": rng.choice(["b", "中文", 'q"uote']),
        }
        names = [name for name, value in self.fields.items() if value is not None]
        if rng.random() < 0.5:
            rng.shuffle(names)
        self.fields = {name: self.fields[name] for name in names}

    def pull(self, opaque: int) -> bytes:
        """Return the next pull."""
        rng = self._rng
        chance = rng.random()
        if chance < 0.1:
            self.offset = rng.choice([0, 0, 5, 40, 10_000])
        elif self.offset > 50:
            self.offset = 0
        fields = dict(self.fields)
        fields["queueOffset"] = str(self.offset)
        fields["commitOffset"] = str(rng.choice([min(self.offset, 20), self.offset, 0, 7, 10**6]))
        self.offset += rng.choice([0, 1, 4, 4, 32])
        if chance > 0.98:
            fields[rng.choice(list(fields))] = rng.choice(["", "-1", "07", "x"])
        fields = self._sign(fields, b"")
        flag = rng.choice([0] * 20 + [1, 2])
        if self.style == 0:
            return self._binary(fields, opaque, flag)
        members = {
            "code": self.code,
            "extFields": fields,
            "flag": flag,
            "language": "JAVA",
            "opaque": opaque,
            "serializeTypeCurrentRPC": "JSON",
            "version": 479,
        }
        text = json.dumps(members, separators=None if self.style == 1 else (",", ":"))
        if chance > 0.99:
            text = text.replace('"opaque":', '"opaque":1,"opaque":')
        return frame(text.encode(), b"", 0)

    def _binary(self, fields: dict[str, Any], opaque: int, flag: int) -> bytes:
        pairs = b""
        for name, value in fields.items():
            text = value.encode()
            pairs += struct.pack(">h", len(name)) + name.encode()
            pairs += struct.pack(">i", len(text)) + text
        header = struct.pack(">hBhiiii", self.code, 0, 479, opaque, flag, 0, len(pairs))
        return frame(header + pairs, b"", 1)


class Consumers:
    """Makes the requests of some consumers, and sends that they wait for."""

    def __init__(self, rng: random.Random, sign: Sign = not_signed) -> None:
        self._rng = rng
        self._sign = sign
        self._readers = [Reader(rng, sign) for _ in range(4)]
        plain = self._readers[0]  # at least one of them can be served by the lane
        plain.style = 2
        plain.fields |= {
            "topic": "Orders", "queueId": "0", "sysFlag": "4", "subscription": "*",
            "expressionType": "TAG",
        }  # fmt: skip
        self._opaque = 0

    def stream(self, count: int) -> bytes:
        """Return ``count`` frames: pulls, and a few sends."""
        return b"".join(
            self.send(random.Random(self._opaque)) if self._rng.random() < 0.1 else self._pull()
            for _ in range(count)
        )

    def sends(self, count: int) -> bytes:
        """Return ``count`` sends."""
        return b"".join(self.send(self._rng) for _ in range(count))

    def send(self, rng: random.Random) -> bytes:
        """Return a send."""
        self._opaque += 1
        tag = rng.choice(TAGS)
        properties = f"UNIQ_KEY\x01KEY{self._opaque}\x02" + (f"TAGS\x01{tag}\x02" if tag else "")
        values = {
            "a": "p", "b": rng.choice(["Orders", "Orders", "Typed"]), "c": "none", "d": "4",
            "e": str(rng.randrange(3)), "f": "0", "g": "17", "h": "0", "i": properties, "j": "0",
            "k": "false", "m": "false",
        }  # fmt: skip
        body = rng.randbytes(rng.choice([10, 300, 900]))
        fields = self._sign(values, body)
        members = {"code": 310, "extFields": fields, "flag": 0, "opaque": self._opaque}
        return frame(json.dumps(members).encode(), body, 0)

    def _pull(self) -> bytes:
        self._opaque += 1
        return self._rng.choice(self._readers).pull(self._opaque)


def _changes(rng: random.Random) -> list[Step]:
    """Return changes of everything that decides about a pull."""
    group = rng.choice(["g", "h"])
    topic = rng.choice(["Orders", "Typed"])
    tags = rng.choice(["*", "TagA", "TagB || TagC", "a = 1"])
    queues, version = rng.choice([1, 3, 3]), rng.choice([0, 5, 9])
    is_on, number = rng.random() < 0.5, rng.randrange(20)
    model = rng.choice(["CLUSTERING", "CLUSTERING", "BROADCASTING"])
    return [
        Step("topic", lambda rig: rig.set_topic(topic, queues=queues, perm=rng_perm(number))),
        Step("flags", lambda rig: rig.set_topic(topic, topic_sys_flag=number)),
        Step("group", lambda rig: rig.set_group(group, consume_enable=is_on or number > 3)),
        Step("group flags", lambda rig: rig.set_group(group, group_sys_flag=number % 2)),
        Step(
            "broadcasting",
            lambda rig: rig.set_group(group, consume_broadcast_enable=is_on),
        ),
        Step(
            "subscription",
            lambda rig: rig.subscribe(group, topic, tags, version=version, model=model),
        ),
        Step(
            "forbidden",
            lambda rig: rig.groups.forbid_reading(group, topic, forbidden=number < 5),
        ),
        Step("reset", lambda rig: rig.offsets.reset(topic, group, queues - 1, number)),
        Step("group deleted", lambda rig: rig.groups.delete(group)),
        Step("offsets forgotten", lambda rig: rig.offsets.forget_group(group)),
        Step("counters forgotten", lambda rig: rig.stats.forget_topic(topic)),
        Step("limits", lambda rig: rig.configure_pulls(pull_count_in_memory=4 + number)),
        Step("readable", lambda rig: rig.configure_pulls(permission=6 if number > 5 else 2)),
        Step("lite", lambda rig: rig.configure_pulls(lite_pull=number > 5)),
        Step("clock", lambda rig: rig.clock.advance(40_000 if is_on else 5_000)),
    ]


def _allow_all(rig: Any) -> None:
    if rig.broker.permission != 6 or not rig.broker.lite_pull:
        rig.configure_pulls(permission=6, lite_pull=True)
    for topic in ("Orders", "Typed"):
        rig.set_topic(topic)
        for group in ("g", "h"):
            rig.set_group(group)
            rig.groups.forbid_reading(group, topic, forbidden=False)


def rng_perm(number: int) -> int:
    """Return permissions of a topic: nearly always readable."""
    return 6 if number > 1 else 2


def pull_steps(
    seed: int,
    frames: int,
    connections: int,
    signed: Callable[[random.Random], Signatures] | None = None,
) -> list[Step]:
    """Return what happens to a rig: sends, pulls in reads of any size, changes in between."""
    rng = random.Random(seed)
    signatures = None if signed is None else signed(rng)
    made = Consumers(rng, not_signed if signatures is None else signatures.sign)
    steps: list[Step] = []

    def feed(number: int, data: bytes) -> Step:
        return Step(f"feed {number}", lambda rig: rig.feed(number, data))

    steps += [feed(0, made.sends(200)), Step("settle", lambda rig: None)]
    for group in ("g", "h"):
        steps.append(Step("group", lambda rig, g=group: rig.set_group(g)))
        for topic in ("Orders", "Typed"):
            tags = rng.choice(["*", "TagA"])
            steps.append(
                Step(
                    "subscription",
                    lambda rig, g=group, t=topic, e=tags: rig.subscribe(g, t, e, version=5),
                )
            )
    # Undisturbed at first, so that the lane learns the common ones.
    steps += [feed(number % connections, made.stream(1)) for number in range(frames // 4)]
    steps.append(Step("settle", lambda rig: None))
    left = frames
    while left > 0:
        number = rng.randrange(connections)
        count = min(left, rng.choice([1, 1, 2, 4, 12]))
        left -= count
        data = made.stream(count)
        while data:
            size = rng.choice([len(data), len(data), rng.randrange(1, 2000)])
            steps.append(feed(number, data[:size]))
            data = data[size:]
        if rng.random() < 0.15:
            steps.append(rng.choice(_changes(rng)))
        elif rng.random() < 0.3:
            steps.append(Step("all allowed", _allow_all))
        if signatures is not None:
            steps += signatures.changes()
        steps.append(Step(rng.choice(["turn", "settle"]), lambda rig: None))
        pause = rng.choice([0, 1, 7])
        steps.append(Step("clock", lambda rig, ms=pause: rig.clock.advance(ms)))
    return steps
