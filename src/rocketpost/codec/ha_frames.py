"""The bytes of the HA stream, by which a master copies its commit log to a slave.

Master to slave, any number of frames:

    position   int64   commit-log position of the first byte of the body
    body_size  int32   0: a heartbeat, whose position is that of the next byte
    body       ...     bytes of the log; may begin and end inside a record

Slave to master, any number of reports:

    position   int64   the end of the slave's log

Integers are big-endian. The first report asks for the log from its position on; later ones
acknowledge everything before theirs. ``replication.sender`` and ``replication.receiver`` have the
rules of the stream.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from rocketpost.errors import RemoteProtocolError

_HEAD: Final = Struct(">qi")
_REPORT: Final = Struct(">q")
HEAD_BYTES: Final = _HEAD.size
REPORT_BYTES: Final = _REPORT.size
BODY_BYTES_MAX: Final = 4 * 1024 * 1024 - HEAD_BYTES
"""Largest body that Java's slave accepts: head and body must fit its buffer of 4 MiB."""


class FrameHead(NamedTuple):
    """The head of a frame."""

    position: int
    size: int


class HaFrameDecoder:
    """Takes the stream of a master apart. Belongs to one connection.

    Bodies are passed on in pieces as they arrive, so a large frame needs no memory here.
    """

    def __init__(self) -> None:
        self._head = b""
        self._left = 0
        self.ended = 0
        """Number of frames that are complete, heartbeats included."""

    @property
    def missing(self) -> int:
        """Bytes of a body that are still to come."""
        return self._left

    def feed(self, data: bytes | bytearray | memoryview) -> list[FrameHead | memoryview]:
        """Return the heads and the pieces of bodies in ``data``, in order.

        The pieces are views of ``data``. A head is returned as soon as its 12 bytes are there.

        Raises:
            RemoteProtocolError: A head has a negative number; drop the connection.
        """
        found: list[FrameHead | memoryview] = []
        view = memoryview(data)
        at, end = 0, len(view)
        while at < end:
            if self._left:
                size = min(self._left, end - at)
                found.append(view[at : at + size])
                self._left -= size
                self.ended += not self._left
                at += size
                continue
            missing = HEAD_BYTES - len(self._head)
            head = self._head + bytes(view[at : at + missing])
            at += missing
            if len(head) < HEAD_BYTES:
                self._head = head
                break
            self._head = b""
            position, self._left = _HEAD.unpack(head)
            if position < 0 or self._left < 0:
                raise RemoteProtocolError(
                    f"bad frame of the HA stream: position={position} size={self._left}"
                )
            self.ended += not self._left
            found.append(FrameHead(position, self._left))
        return found


class ReportDecoder:
    """Takes the stream of a slave apart. Belongs to one connection."""

    def __init__(self) -> None:
        self._part = b""

    def feed(self, data: bytes) -> list[int]:
        """Return the positions that ``data`` completes, oldest first.

        Raises:
            RemoteProtocolError: A position is negative; drop the connection.
        """
        data = self._part + data
        whole = len(data) - len(data) % REPORT_BYTES
        self._part = data[whole:]
        positions = [position for (position,) in _REPORT.iter_unpack(data[:whole])]
        if positions and min(positions) < 0:
            raise RemoteProtocolError(f"a slave reported the position {min(positions)}")
        return positions


def encode_head(position: int, size: int) -> bytes:
    """Return the head of a frame with ``size`` bytes of the log from ``position`` on."""
    assert position >= 0
    assert 0 <= size <= BODY_BYTES_MAX
    return _HEAD.pack(position, size)


def encode_report(position: int) -> bytes:
    """Return the report of a slave whose log ends at ``position``."""
    assert position >= 0
    return _REPORT.pack(position)
