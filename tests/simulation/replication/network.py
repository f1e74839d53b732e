"""A TCP connection in memory: it delivers bytes in order, in any pieces, until it is cut.

A cut loses what was not read. Each end notices it when it next reads, or never: then it takes the
connection for open, as after the power cut of its peer.
"""

from __future__ import annotations

import random


class Pipe:
    """One direction of a connection."""

    def __init__(self, capacity: int) -> None:
        self.data = bytearray()
        self.capacity = capacity
        self.is_cut = False

    def write(self, data: bytes) -> int:
        """Take as much as there is room for; returns the number of bytes."""
        size = min(len(data), self.capacity - len(self.data))
        if not self.is_cut:
            self.data += data[:size]
        return size

    def read(self, size: int) -> bytes:
        data = bytes(self.data[:size])
        del self.data[:size]
        return data


class Link:
    """A connection between a slave and its master."""

    def __init__(self, host: str, broker_id: int | None, *, capacity: int, speed: int) -> None:
        self.host = host
        self.broker_id = broker_id
        self.speed = speed
        """Largest number of bytes that are read at once."""
        self.down = Pipe(capacity)
        self.up = Pipe(capacity)
        self.master_is_told = False
        self.slave_is_told = False

    def cut(self, rng: random.Random, *, tell_master: bool = True, tell_slave: bool = True) -> None:
        """Break the connection; a part of what is under way still arrives."""
        for pipe in (self.down, self.up):
            del pipe.data[rng.randrange(len(pipe.data) + 1) :]
            pipe.is_cut = True
        self.master_is_told = self.master_is_told or tell_master
        self.slave_is_told = self.slave_is_told or tell_slave

    def piece(self, rng: random.Random) -> int:
        return rng.randrange(1, self.speed + 1)
