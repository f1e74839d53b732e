"""A journal of what consumers did, written by all of them into one file.

Each line is one write to a file opened for appending, so lines of several processes are in the
order in which they were written, and a killed process loses none of its lines. A line is an event,
the consumer, and details::

    begin  c1 orders/broker-0/2 117 4711 key3   a handler was called: queue, offset, number, key
    done   c1 orders/broker-0/2 117 4711 key3   it returned
    fail   c1 orders/broker-0/2 117 4711 key3   it raised
    share  c1 orders 0/2,0/3 c1,c2              a round of rebalance: topic, own queues, members
    joined c1 threads                           it started; its handlers run in threads
    killed c1                                   and other events: what a test did to it
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self

BEGIN, DONE, FAIL, SHARE = "begin", "done", "fail", "share"
JOINED, LEFT, KILLED, FROZEN, THAWED = "joined", "left", "killed", "frozen", "thawed"
THREADS = "threads"
BROKER_DOWN, BROKER_UP = "broker-down", "broker-up"


class Entry(NamedTuple):
    """One line."""

    what: str
    who: str
    words: tuple[str, ...] = ()


class HandlerEntry(NamedTuple):
    """An entry about a handler call."""

    queue: str
    offset: int
    number: int
    key: str

    @classmethod
    def of(cls, entry: Entry) -> Self:
        """Read the details of an entry."""
        queue, offset, number, key = entry.words
        return cls(queue, int(offset), int(number), key)


class ShareEntry(NamedTuple):
    """An entry about a round of rebalance."""

    topic: str
    queues: frozenset[str]
    members: frozenset[str]

    @classmethod
    def of(cls, entry: Entry) -> Self:
        """Read the details of an entry."""
        topic, queues, members = entry.words
        return cls(topic, _set_of(queues), _set_of(members))


class ConsumerJournal:
    """Appends to the file and reads it. Any thread of any process may write."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND, 0o600)
        self._position = 0
        self._rest = b""

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def write(self, what: str, who: str, *words: object) -> None:
        """Append one line."""
        os.write(self._fd, (" ".join((what, who, *map(str, words))) + "\n").encode())

    def read(self) -> Iterator[Entry]:
        """Return the lines appended since the last call."""
        data = self._rest + self._read()
        *lines, self._rest = data.split(b"\n")
        for line in lines:
            what, who, *words = line.decode().split(" ")
            yield Entry(what, who, tuple(words))

    def _read(self) -> bytes:
        parts = []
        while part := os.pread(self._fd, 1 << 20, self._position):
            self._position += len(part)
            parts.append(part)
        return b"".join(parts)


def join_names(names: list[str]) -> str:
    """Join names into one word of a line."""
    return ",".join(names) or "-"


def _set_of(word: str) -> frozenset[str]:
    return frozenset() if word == "-" else frozenset(word.split(","))
