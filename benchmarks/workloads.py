"""The workloads that brokers are compared by, and the requests of each.

Sends look like those of a Java producer: SEND_MESSAGE_V2 with a unique key, WAIT and a tag, round
the four queues of one topic.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from closed_loop import (
    UNIQUE_DIGITS,
    Consumer,
    Requests,
    Run,
    create_topic,
    join_requests,
    pull_request,
    run_requests,
)

from rocketpost.codec.batch import BatchItem, encode_batch
from rocketpost.codec.command import BINARY, JSON, encode_command
from rocketpost.codec.frames import encode_frame

BROKER_NAME: Final = "broker-a"
TOPIC: Final = "Bench"
PULL_TOPIC: Final = "BenchPull"
QUEUES: Final = 4
BODY: Final = b"x" * 1024
BATCH: Final = 50
PULL: Final = 32
PULLED_MESSAGES: Final = 8192
"""Messages of one queue of the topic that is pulled from."""

ASYNC_FLUSH: Final = "ASYNC_FLUSH"
SYNC_FLUSH: Final = "SYNC_FLUSH"

_UNIQUE_KEY: Final = "7F0000010000ABCD" + UNIQUE_DIGITS.decode()
_PROPERTIES: Final = f"UNIQ_KEY\x01{_UNIQUE_KEY}\x02WAIT\x01true\x02TAGS\x01TagA\x02"
NO_WAIT: Final = _PROPERTIES.replace("WAIT\x01true", "WAIT\x01false")
"""Properties of a message whose sender waits for the write only."""
_KEYED: Final = f"region\x01north\x02KEYS\x01order-{UNIQUE_DIGITS.decode()} customer-17\x02"


def send_request(number: int, *, properties: str = _PROPERTIES, encoding: int = JSON) -> bytes:
    """Return a request to send one message of 1 KB."""
    fields = _send_fields(number % QUEUES, properties)
    return java_frame(310, number, fields, BODY, encoding=encoding)


def batch_request(number: int) -> bytes:
    """Return a request to send a batch of small messages."""
    properties = f"UNIQ_KEY\x01{_UNIQUE_KEY}\x02WAIT\x01true\x02".encode()
    items = encode_batch([BatchItem(0, b"x" * 50, properties) for _ in range(BATCH)])
    fields = _send_fields(number % QUEUES, "WAIT\x01true\x02") | {"m": "true"}
    return java_frame(320, number, fields, items)


def fill_request(number: int) -> bytes:
    """Return a request to send one message to the topic that is pulled from."""
    fields = _send_fields(number % QUEUES, _PROPERTIES) | {"b": PULL_TOPIC}
    return java_frame(310, number, fields, BODY)


def java_frame(
    code: int, opaque: int, fields: dict[str, str], body: bytes, *, encoding: int = JSON
) -> bytes:
    """Return a request as Java clients write it."""
    if encoding == BINARY:
        head = encode_command(
            code, opaque=opaque, fields=fields, body_bytes=len(body), encoding=BINARY
        )
        return head + body
    values = {
        "code": code,
        "extFields": fields,
        "flag": 0,
        "language": "JAVA",
        "opaque": opaque,
        "serializeTypeCurrentRPC": "JSON",
        "version": 479,
    }
    header = json.dumps(values, separators=(",", ":")).encode()
    return encode_frame(JSON, header, len(body)) + body


def pull_requests() -> Requests:
    """Return pulls that go round the queues, through all their messages."""
    frames = [
        pull_request(PULL_TOPIC, queue_id, offset)
        for offset in range(0, PULLED_MESSAGES, PULL)
        for queue_id in range(QUEUES)
    ]
    return join_requests(frames)


def _send_fields(queue_id: int, properties: str) -> dict[str, str]:
    return {
        "a": "bench",
        "b": TOPIC,
        "c": "TBW102",
        "d": "4",
        "e": str(queue_id),
        "f": "0",
        "g": str(int(time.time() * 1000)),
        "h": "0",
        "i": properties,
        "j": "0",
        "k": "false",
        "m": "false",
        "n": BROKER_NAME,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One kind of load, with the same number of requests for every server."""

    name: str
    title: str
    requests: Callable[[], Requests]
    count: int
    """Requests of one round."""
    window: int
    connections: int = 1
    per_request: int = 1
    """Messages of one request."""
    answer_bytes_min: int = 0
    """Least size of an answer; a smaller one has too few messages."""
    flush: str = ASYNC_FLUSH
    is_consumed: bool = False
    has_echo: bool = True
    """Whether the echo server is a reference for this load."""
    goal: float | None = None
    """The aim, as a part of the CPU that Apache's broker spends on the same load."""

    def run(self, port: int, requests: Requests, *, scale: float = 1.0) -> Run:
        """Run one round against the server at ``port``."""
        count = max(self.connections, round(self.count * scale))
        consumer = Consumer(port, TOPIC, QUEUES) if self.is_consumed else None
        try:
            run = run_requests(
                port,
                requests,
                count=count,
                window=self.window,
                connections=self.connections,
                consumer=consumer,
                consumer_messages=count,
            )
        finally:
            if consumer is not None:
                consumer.socket.close()
        if run.answer_bytes < self.answer_bytes_min * run.requests:
            raise ValueError(f"{self.name}: answers have too few messages")
        return run


_SENDS: Final = partial(Requests, send_request)

WORKLOADS: Final = (
    Workload(
        name="send", title="send 1 KB, 256 in flight", requests=_SENDS, count=30_000, window=256,
        goal=0.08,
    ),
    Workload(
        name="binary", title="send 1 KB, binary header, 256 in flight",
        requests=partial(Requests, partial(send_request, encoding=BINARY)),
        count=30_000, window=256, goal=0.08,
    ),
    Workload(
        name="keyed", title="send 1 KB with two keys and a property, 256 in flight",
        requests=partial(Requests, partial(send_request, properties=_KEYED + _PROPERTIES)),
        count=30_000, window=256,
    ),
    Workload(name="x16", title="send 1 KB, 16 in flight", requests=_SENDS, count=20_000, window=16),
    Workload(
        name="64x1", title="send 1 KB, 64 connections, one in flight on each", requests=_SENDS,
        count=12_800, window=1, connections=64, goal=0.30,
    ),
    Workload(
        name="single", title="send 1 KB, one at a time", requests=_SENDS, count=4000, window=1,
        goal=0.60,
    ),
    Workload(
        name="batch", title=f"send batches of {BATCH} messages of 50 B, 16 in flight",
        requests=partial(Requests, batch_request, count=64), count=8000, window=16,
        per_request=BATCH, goal=0.15,
    ),
    Workload(
        name="pull", title=f"pull {PULL} messages of 1 KB, 8 in flight", requests=pull_requests,
        count=15_000, window=8, per_request=PULL, answer_bytes_min=PULL * 1024, has_echo=False,
        goal=0.25,
    ),
    Workload(
        name="delivered", title="send 1 KB, 256 in flight, delivered to held pulls",
        requests=_SENDS, count=20_000, window=256, is_consumed=True, has_echo=False,
    ),
    Workload(
        name="delivered1", title="send 1 KB, one at a time, each delivered to a held pull",
        requests=_SENDS, count=4000, window=1, is_consumed=True, has_echo=False,
    ),
    Workload(
        name="sync", title="send 1 KB with SYNC_FLUSH, 256 in flight", requests=_SENDS,
        count=15_000, window=256, flush=SYNC_FLUSH, has_echo=False, goal=0.08,
    ),
)  # fmt: skip

ROW_NAMES: Final = ",".join(row.name for row in WORKLOADS)


def choose(names: str) -> list[Workload]:
    """Return the workloads of these names, in their usual order.

    Raises:
        SystemExit: There is no workload of such a name.
    """
    wanted = names.split(",")
    unknown = set(wanted) - {row.name for row in WORKLOADS}
    if unknown:
        raise SystemExit(f"no such rows: {', '.join(sorted(unknown))}; there are {ROW_NAMES}")
    return [row for row in WORKLOADS if row.name in wanted]


def prepare(port: int, *, warm_up: int) -> None:
    """Create the topics of a broker, fill the one that is pulled from, and send a warm-up."""
    create_topic(port, TOPIC, QUEUES)
    create_topic(port, PULL_TOPIC, QUEUES)
    fill = Requests(fill_request)
    run_requests(port, fill, count=PULLED_MESSAGES * QUEUES, window=256)
    if warm_up:
        run_requests(port, _SENDS(), count=warm_up, window=256)
