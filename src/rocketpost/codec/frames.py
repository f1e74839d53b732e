"""Length-prefixed frames of the remoting protocol: bytes in, frames out.

    length       int32   bytes after this field: 4 + header bytes + body bytes
    header_mark  uint32  high byte: header encoding; low 24 bits: header bytes
    header       ...
    body         ...     the rest; may be empty

Integers are big-endian. ``codec.command`` decodes headers.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from rocketpost.errors import LocalProtocolError, RemoteProtocolError

FRAME_BYTES_MAX: Final = 16 * 1024 * 1024
_PREFIX: Final = struct.Struct(
    ">i"  # length
    "I"  # header_mark
)
_PREFIX_BYTES: Final = _PREFIX.size
_PIECE_BYTES: Final = 1024
_unpack_prefix = _PREFIX.unpack_from
_PREFIXES_MAX: Final = 1024
_prefixes: dict[int, bytes] = {}
_new = tuple.__new__  # half the cost of a NamedTuple's own constructor


class Frame(NamedTuple):
    """One frame with its header undecoded."""

    encoding: int
    header: bytes
    body: bytes


class FrameDecoder:
    """Cuts a byte stream into frames. Not thread-safe: belongs to one connection."""

    def __init__(self, *, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._parts: list[bytes | bytearray] = []
        self.held = 0
        """Bytes of a frame that is not complete yet; read for every read of a connection."""
        self._wanted = 0
        self._frame_bytes_max = frame_bytes_max

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that ``data`` completes, oldest first.

        Raises:
            RemoteProtocolError: The bytes cannot start a frame; drop the connection.
        """
        if self.held:
            # The parts of a large frame are joined once, when it is complete: linear in its size.
            self._keep(data)
            if self.held < self._wanted:
                return []
            data = b"".join(self._parts)
            self._parts.clear()
            self.held = 0
        frames: list[Frame] = []
        start, available = 0, len(data)
        self._wanted = _PREFIX_BYTES
        while available - start >= _PREFIX_BYTES:
            length, header_mark = _unpack_prefix(data, start)
            header_start, end = start + _PREFIX_BYTES, start + 4 + length
            header_end = header_start + (header_mark & 0xFF_FFFF)
            # Checked before the rest arrives: a hostile length must not make us buffer it.
            if not header_end <= end <= start + self._frame_bytes_max:
                raise RemoteProtocolError(f"bad frame: {length=} {header_mark=:#x}")
            if end > available:
                self._wanted = end - start
                break
            frames.append(
                _new(
                    Frame, (header_mark >> 24, data[header_start:header_end], data[header_end:end])
                )
            )
            start = end
            self._wanted = _PREFIX_BYTES
        if start < available:
            self._parts.append(data[start:] if start else data)
            self.held = available - start
        return frames

    def complete(self, data: bytes | memoryview) -> tuple[bytes, int]:
        """Complete the frame that is held with the first bytes of ``data``.

        Returns:
            The frame, uncut, and the number of bytes used. No frame if bytes are still missing;
            perhaps several if not even the length of the first was known. Nothing is held then.
        """
        assert self.held
        if self.held < _PREFIX_BYTES:
            used = len(data)
        else:
            used = self._wanted - self.held
            if used > len(data):
                self._keep(bytes(data))
                return b"", len(data)
        frame = b"".join([*self._parts, data[:used]])
        self.forget()
        return frame, used

    def peek(self) -> bytes | bytearray:
        """Return the bytes of the incomplete frame."""
        parts = self._parts
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def forget(self) -> None:
        """Forget the bytes of the incomplete frame."""
        self._parts.clear()
        self.held = 0

    def release(self) -> bytes:
        """Return the bytes of the incomplete frame, and forget them."""
        held = bytes(self.peek())
        self.forget()
        return held

    def _keep(self, data: bytes) -> None:
        self.held += len(data)
        parts = self._parts
        if len(data) >= _PIECE_BYTES:
            parts.append(data)
        elif isinstance(parts[-1], bytearray):
            # A frame that trickles in must not cost an object for every two bytes.
            parts[-1] += data
        else:
            parts.append(bytearray(data))


def frame_end(data: bytes | bytearray, at: int, end: int) -> int:
    """Return the end of the frame that starts at ``at``; -1 if ``end`` is too near to say it."""
    if end - at < _PREFIX_BYTES:
        return -1
    length: int = _unpack_prefix(data, at)[0]
    return at + 4 + length


def encode_frame(encoding: int, header: bytes, body_bytes: int) -> bytes:
    """Return a frame up to its body: the prefix and the header.

    Raises:
        LocalProtocolError: The peer would drop a frame of this size.
    """
    return encode_prefix(encoding, len(header), body_bytes) + header


def encode_prefix(encoding: int, header_bytes: int, body_bytes: int) -> bytes:
    """Return the prefix of a frame.

    Raises:
        LocalProtocolError: The peer would drop a frame of this size.
    """
    length = 4 + header_bytes + body_bytes
    if length + 4 > FRAME_BYTES_MAX or header_bytes > 0xFF_FFFF:
        raise LocalProtocolError(f"a frame of {length + 4} bytes is over {FRAME_BYTES_MAX}")
    return _PREFIX.pack(length, encoding << 24 | header_bytes)


def encode_json_frame(header: bytes) -> bytes:
    """Return a complete frame with a short JSON header and no body; the fast path of responses."""
    prefix = _prefixes.get(len(header))
    if prefix is None:
        prefix = encode_frame(0, header, 0)[:_PREFIX_BYTES]
        if len(header) < _PREFIXES_MAX:
            _prefixes[len(header)] = prefix
    return prefix + header
