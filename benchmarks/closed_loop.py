"""A closed-loop load generator on blocking sockets: prebuilt requests, a fixed number in flight.

Requests are built once and sent as slices of one buffer. Only the 16 hex digits of each unique key
are written anew, so that the key index of a broker sees fresh keys. Answers are not decoded: each
one is checked for the code SUCCESS and counted.
"""

from __future__ import annotations

import itertools
import re
import select
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from rocketpost.codec.command import encode_command

UNIQUE_DIGITS: Final = b"5A" * 8
"""The place of a unique number in a request: 16 hex digits that the loader overwrites."""

_RING: Final = 1024
_BUFFER_BYTES: Final = 4 * 1024 * 1024
_READ_BYTES_MIN: Final = 256 * 1024
_PREFIX: Final = struct.Struct(">iI")
_ANSWER_SECONDS_MAX: Final = 60.0
_NEXT_OFFSET: Final = re.compile(rb'"nextBeginOffset":"(\d+)"')
_OPAQUE: Final = re.compile(rb'"opaque":(\d+)')
_PULL_NOT_FOUND: Final = b'{"code":19,'


class RequestRefused(Exception):  # noqa: N818 - named after what happened
    """A server answered with another code than SUCCESS; the text has its answer."""


class Run(NamedTuple):
    """One measured run."""

    requests: int
    wall_seconds: float
    answer_bytes: int
    delivered: int = 0
    pulls: int = 0


class Requests:
    """Requests in one buffer, sent over and over with fresh unique keys."""

    def __init__(self, build: Callable[[int], bytes], *, count: int = _RING) -> None:
        frames = [build(number) for number in range(count)]
        ends = list(itertools.accumulate(map(len, frames)))
        self._data = bytearray().join(frames)
        self._view = memoryview(self._data)
        self._starts = [0, *ends]
        self._keys = [
            [match.start() for match in re.finditer(UNIQUE_DIGITS, self._data[start:end])]
            for start, end in itertools.pairwise(self._starts)
        ]
        self._count = count
        self._at = 0
        self._number = time.time_ns()

    def take(self, count: int) -> memoryview:
        """Return the next ``count`` requests as bytes to send."""
        if self._at + count > self._count:
            self._at = 0
        first, last = self._at, self._at + count
        data, starts = self._data, self._starts
        for index in range(first, last):
            start = starts[index]
            for place in self._keys[index]:
                self._number += 1
                data[start + place : start + place + 16] = b"%016X" % self._number
        self._at = last
        return self._view[starts[first] : starts[last]]


class Answers:
    """Counts the answers in a byte stream and refuses any that is no success."""

    def __init__(self) -> None:
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self.count = 0
        self.bytes = 0

    def read(self, link: socket.socket) -> int:
        """Read once; return the number of complete answers."""
        got = link.recv_into(self._view[self._filled :])
        if not got:
            raise ConnectionError("the server closed the connection")
        buffer, at, size, found = self._buffer, 0, self._filled + got, 0
        while size - at >= _PREFIX.size:
            length, mark = _PREFIX.unpack_from(buffer, at)
            end = at + 4 + length
            if end > size:
                break
            self.check(buffer, at, mark)
            found += 1
            at = end
        self._filled = size - at
        if at and self._filled:
            self._view[: self._filled] = bytes(self._view[at:size])
        assert len(buffer) - self._filled >= _READ_BYTES_MIN, "an answer is larger than the buffer"
        self.count += found
        self.bytes += at
        return found

    def check(self, buffer: bytearray, at: int, mark: int) -> None:
        """Raise unless the answer at ``at`` has the code SUCCESS."""
        begin = at + _PREFIX.size
        good = b"\0\0" if mark >> 24 else b'{"code":0,'
        if not buffer.startswith(good, begin):
            raise RequestRefused(bytes(buffer[begin : begin + min(mark & 0xFFFFFF, 600)]))


class PullAnswers(Answers):
    """Answers to held pulls: each asks for the next pull of its queue."""

    def __init__(self) -> None:
        super().__init__()
        self.next_offsets: list[tuple[int, int]] = []
        """Queue and next offset of each answer since this list was last emptied."""

    def check(self, buffer: bytearray, at: int, mark: int) -> None:
        """Note the next offset of the queue, which is the request's opaque number."""
        begin = at + _PREFIX.size
        end = begin + (mark & 0xFFFFFF)
        header = bytes(buffer[begin:end])
        if not header.startswith(_PULL_NOT_FOUND):
            super().check(buffer, at, mark)
        offset, opaque = _NEXT_OFFSET.search(header), _OPAQUE.search(header)
        assert offset
        assert opaque
        self.next_offsets.append((int(opaque[1]), int(offset[1])))


class _Link:
    """One connection and the requests that it still has to send."""

    def __init__(self, port: int, share: int) -> None:
        self.socket = connect(port)
        self.answers = Answers()
        self.to_send = self.to_answer = share

    def send(self, requests: Requests, count: int) -> None:
        count = min(count, self.to_send)
        if count:
            self.to_send -= count
            self.socket.sendall(requests.take(count))


class Consumer:
    """Long-polling pulls of all queues of a topic on one connection."""

    def __init__(self, port: int, topic: str, queue_count: int) -> None:
        self.socket = connect(port)
        self.answers = PullAnswers()
        self._topic = topic
        self._offsets = [max_offset(port, topic, queue_id) for queue_id in range(queue_count)]
        self.delivered = 0
        self.pulls = 0
        for queue_id in range(queue_count):
            self._pull(queue_id)

    def read(self) -> None:
        """Read answers, and pull again from the queues that were answered."""
        self.answers.read(self.socket)
        for queue_id, offset in self.answers.next_offsets:
            self.delivered += offset - self._offsets[queue_id]
            self._offsets[queue_id] = offset
            self._pull(queue_id)
        self.answers.next_offsets.clear()

    def _pull(self, queue_id: int) -> None:
        self.pulls += 1
        offset = self._offsets[queue_id]
        self.socket.sendall(pull_request(self._topic, queue_id, offset, hold_ms=15_000))


def run_requests(
    port: int,
    requests: Requests,
    *,
    count: int,
    window: int,
    connections: int = 1,
    consumer: Consumer | None = None,
    consumer_messages: int = 0,
) -> Run:
    """Send ``count`` requests and return when all are answered.

    Args:
        port: The port of the server on this machine.
        requests: The requests to send.
        count: Number of requests.
        window: Requests in flight on each connection.
        connections: Number of connections; each sends an equal share.
        consumer: A consumer that is served meanwhile.
        consumer_messages: The run ends when the consumer has received so many messages.

    Raises:
        RequestRefused: An answer was no success.
    """
    share = count // connections
    links = {}
    poll = select.epoll()
    try:
        for _ in range(connections):
            link = _Link(port, share)
            links[link.socket.fileno()] = link
            poll.register(link.socket, select.EPOLLIN)
        consumer_fd = -1
        delivered_before = pulls_before = 0
        if consumer is not None:
            consumer_fd = consumer.socket.fileno()
            poll.register(consumer.socket, select.EPOLLIN)
            delivered_before, pulls_before = consumer.delivered, consumer.pulls
        started = time.perf_counter()
        for link in links.values():
            link.send(requests, window)
        waiting = len(links)
        while waiting or (
            consumer is not None and consumer.delivered - delivered_before < consumer_messages
        ):
            events = poll.poll(_ANSWER_SECONDS_MAX)
            if not events:
                raise TimeoutError(f"no answer for {_ANSWER_SECONDS_MAX:g} s")
            for fd, _ in events:
                if fd == consumer_fd:
                    assert consumer is not None
                    consumer.read()
                    continue
                link = links[fd]
                answered = link.answers.read(link.socket)
                link.to_answer -= answered
                link.send(requests, answered)
                if not link.to_answer:
                    waiting -= 1
                    poll.unregister(fd)
        wall = time.perf_counter() - started
    finally:
        poll.close()
        for link in links.values():
            link.socket.close()
    answer_bytes = sum(link.answers.bytes for link in links.values())
    if consumer is None:
        return Run(share * connections, wall, answer_bytes)
    delivered, pulls = consumer.delivered - delivered_before, consumer.pulls - pulls_before
    return Run(share * connections, wall, answer_bytes, delivered, pulls)


def connect(port: int) -> socket.socket:
    """Return a blocking connection to a server on this machine."""
    link = socket.create_connection(("127.0.0.1", port), timeout=_ANSWER_SECONDS_MAX)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.settimeout(None)  # a timeout would add a poll to every read and write
    return link


def ask(port: int, code: int, fields: dict[str, str]) -> bytes:
    """Make one request on a connection of its own; return the header of the answer."""
    with connect(port) as link:
        link.sendall(encode_command(code, opaque=1, fields=fields))
        answer = b""
        while len(answer) < 8 or len(answer) < 4 + _PREFIX.unpack_from(answer)[0]:
            got = link.recv(65536)
            if not got:
                raise ConnectionError("the server closed the connection")
            answer += got
    header = answer[8 : 8 + (_PREFIX.unpack_from(answer)[1] & 0xFFFFFF)]
    if not header.startswith(b'{"code":0,'):
        raise RequestRefused(header)
    return header


def create_topic(port: int, topic: str, queue_count: int) -> None:
    """Create a topic on the broker at ``port``."""
    fields = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": str(queue_count),
        "writeQueueNums": str(queue_count),
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    ask(port, 17, fields)


def max_offset(port: int, topic: str, queue_id: int) -> int:
    """Return the offset behind the newest message of a queue."""
    header = ask(port, 30, {"topic": topic, "queueId": str(queue_id)})
    found = re.search(rb'"offset":"(\d+)"', header)
    assert found
    return int(found[1])


def pull_request(topic: str, queue_id: int, offset: int, *, hold_ms: int = 0) -> bytes:
    """Return a request to pull 32 messages; its opaque number is the queue's."""
    fields = {
        "consumerGroup": "bench",
        "topic": topic,
        "queueId": str(queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": "32",
        "sysFlag": "6" if hold_ms else "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": str(hold_ms),
        "subscription": "*",
        "expressionType": "TAG",
        "subVersion": "0",
    }
    return encode_command(11, opaque=queue_id, fields=fields)


def join_requests(frames: Sequence[bytes]) -> Requests:
    """Return requests that go through ``frames`` in a circle."""
    return Requests(lambda number: frames[number], count=len(frames))
