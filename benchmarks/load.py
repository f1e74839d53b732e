"""A load generator that costs next to nothing: ready-made frames, a window, counted replies."""

from __future__ import annotations

import asyncio
import ssl
import struct
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

from rocketpost.codec.batch import BatchItem, encode_batch
from rocketpost.codec.command import encode_command


class Run(NamedTuple):
    """One measured run."""

    messages: int
    wall_seconds: float
    failures: int


class Pipe(asyncio.Protocol):
    """Keeps ``window`` requests in flight until ``count`` were answered."""

    def __init__(self, frames: Callable[[int], bytes], count: int, window: int) -> None:
        self._frames = frames
        self._count = count
        self._window = window
        self._sent = self._answered = 0
        self.failures = 0
        self._parts: list[bytes] = []
        self._held = 0
        self._need = 4
        self.done = asyncio.get_running_loop().create_future()

    @classmethod
    async def connect(cls, port: int, frames: Callable[[int], bytes], *, window: int) -> Pipe:
        """Begin to send requests without end; :meth:`stop` ends it."""
        loop = asyncio.get_running_loop()
        _, pipe = await loop.create_connection(
            lambda: cls(frames, sys.maxsize, window), "127.0.0.1", port
        )
        return pipe

    async def stop(self) -> int:
        """Close the connection; return how many requests were answered."""
        if self.failures:
            raise SystemExit(f"{self.failures} of {self._answered} requests failed")
        self.done.set_result(None)
        self._transport.close()
        return self._answered

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._send(self._window)

    def data_received(self, data: bytes) -> None:
        self._parts.append(data)
        self._held += len(data)
        if self._held < self._need:
            return
        data = b"".join(self._parts)
        at, size, answered = 0, len(data), 0
        self._need = 4
        while size - at >= 4:
            end = at + 4 + int.from_bytes(data[at : at + 4], "big")
            if end > size:
                self._need = end - at
                break
            if data[at + 8 : at + 17] != b'{"code":0':
                self.failures += 1
            at = end
            answered += 1
        self._parts = [data[at:]]
        self._held = size - at
        self._answered += answered
        if self._answered >= self._count:
            if not self.done.done():
                self.done.set_result(None)
                self._transport.close()
        elif answered:
            self._send(answered)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError("the server closed the connection"))

    def _send(self, count: int) -> None:
        count = min(count, self._count - self._sent)
        if count > 0:
            frames = [self._frames(self._sent + n) for n in range(count)]
            self._sent += count
            self._transport.write(b"".join(frames))  # type: ignore[attr-defined]


def send_frame(
    topic: str, queue_id: int, body: bytes, *, keys: str = "", unique: bool = True, due_ms: int = 0
) -> Callable[[int], bytes]:
    """Return a function from a sequence number to a SEND_MESSAGE_V2 frame like Java's."""
    return send_frames(topic, lambda _: queue_id, body, keys=keys, unique=unique, due_ms=due_ms)


def send_frames(
    topic: str,
    queue_of: Callable[[int], int],
    body: bytes,
    *,
    keys: str = "",
    unique: bool = True,
    topic_of: Callable[[int], str] | None = None,
    due_ms: int = 0,
) -> Callable[[int], bytes]:
    """Like :func:`send_frame`, with the queue (and topic) chosen by sequence number."""
    mark = "U" * 32
    properties = f"UNIQ_KEY\x01{mark}\x02WAIT\x01true\x02TAGS\x01TagA\x02"
    if keys:
        properties = f"KEYS\x01{keys}\x02" + properties
    if due_ms:
        properties += f"TIMER_DELIVER_MS\x01{due_ms}\x02"
    templates: dict[tuple[str, int], tuple[bytes, bytes, bytes]] = {}

    def template(name: str, queue_id: int) -> tuple[bytes, bytes, bytes]:
        fields = send_fields(name, queue_id, properties)
        head = encode_command(310, opaque=1_111_111_111, fields=fields, body_bytes=len(body))
        before, _, after = head.partition(mark.encode())
        middle, _, end = after.partition(b"1111111111")
        return before, middle, end + body

    def frame(number: int) -> bytes:
        key = (topic_of(number) if topic_of else topic, queue_of(number))
        parts = templates.get(key)
        if parts is None:
            parts = templates[key] = template(*key)
        return b"%b7F0000010000ABCD%016X%b%d%b" % (
            parts[0],
            number,
            parts[1],
            1_000_000_000 + number % 1_000_000_000,
            parts[2],
        )

    return frame


def send_fields(topic: str, queue_id: int, properties: str) -> dict[str, str]:
    """Return the fields of a SEND_MESSAGE_V2."""
    return {
        "a": "bench",
        "b": topic,
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
    }


def batch_frame(
    topic: str, queue_of: Callable[[int], int], body: bytes, count: int
) -> Callable[[int], bytes]:
    """Return a function from a sequence number to a SEND_BATCH_MESSAGE of ``count`` messages."""
    items = encode_batch([BatchItem(0, body, b"TAGS\x01TagA\x02") for _ in range(count)])
    frames: dict[int, bytes] = {}

    def frame(number: int) -> bytes:
        queue_id = queue_of(number)
        if queue_id not in frames:
            fields = send_fields(topic, queue_id, "") | {"m": "true"}
            head = encode_command(320, opaque=1, fields=fields, body_bytes=len(items))
            frames[queue_id] = head + items
        return frames[queue_id]

    return frame


async def pipeline(
    port: int,
    frames: Callable[[int], bytes],
    *,
    count: int,
    window: int = 256,
    connections: int = 1,
    tls: ssl.SSLContext | None = None,
) -> Run:
    """Send ``count`` requests, ``window`` in flight on each connection, which may use TLS."""
    loop = asyncio.get_running_loop()
    share = count // connections
    started = time.perf_counter()
    pipes = []
    for index in range(connections):
        _, pipe = await loop.create_connection(
            lambda base=index * share: Pipe(lambda n: frames(base + n), share, window),
            "127.0.0.1",
            port,
            ssl=tls,
        )
        pipes.append(pipe)
    await asyncio.gather(*[pipe.done for pipe in pipes])
    wall = time.perf_counter() - started
    return Run(share * connections, wall, sum(pipe.failures for pipe in pipes))


def pull_frame(
    topic: str, queue_id: int, offset: int, *, count: int = 32, tags: str = "*", sql: str = ""
) -> bytes:
    """Return a PULL_MESSAGE frame that carries its own subscription."""
    fields = pull_fields(topic, queue_id, offset, count=count, tags=tags, sql=sql)
    return encode_command(11, opaque=1, fields=fields)


def pull_fields(
    topic: str, queue_id: int, offset: int, *, count: int = 32, tags: str = "*", sql: str = ""
) -> dict[str, str]:
    """Return the fields of a PULL_MESSAGE that carries its own subscription."""
    return {
        "consumerGroup": "bench",
        "topic": topic,
        "queueId": str(queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": str(count),
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": sql or tags,
        "expressionType": "SQL92" if sql else "TAG",
        "subVersion": "0",
    }


FRAME_PREFIX = struct.Struct(">iI")
