"""A recording TCP proxy: forwards remoting frames untouched and keeps a copy of each.

Used to make ``tests/golden`` and to look at what a peer really says. It understands frame
boundaries and both header encodings, nothing else, and shares no code with the product.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final

Address = tuple[str, int]
_RESPONSE_BIT: Final = 1
_ONEWAY_BIT: Final = 2


@dataclass(frozen=True)
class CapturedFrame:
    """One frame as it was on the wire, with its header decoded for sorting and naming."""

    wire: bytes
    encoding: int
    header: dict[str, Any]
    body: bytes

    @property
    def code(self) -> int:
        return int(self.header["code"])

    @property
    def fields(self) -> dict[str, str]:
        return self.header.get("extFields") or {}

    @property
    def is_response(self) -> bool:
        return bool(self.header["flag"] & _RESPONSE_BIT)

    @property
    def is_oneway(self) -> bool:
        return bool(self.header["flag"] & _ONEWAY_BIT)


@dataclass
class Exchange:
    """A request and what came back for it; ``response`` stays empty for oneway requests."""

    link: str
    asker: str
    request: CapturedFrame
    response: CapturedFrame | None = None


@dataclass
class Recording:
    """All exchanges seen by some proxies, in the order of their requests. Thread-safe."""

    exchanges: list[Exchange] = field(default_factory=list)
    _pending: dict[tuple[int, str, int], Exchange] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, link: str, connection: int, sender: str, frame: CapturedFrame) -> None:
        opaque = int(frame.header["opaque"])
        with self._lock:
            if frame.is_response:
                asker = "server" if sender == "client" else "client"
                exchange = self._pending.pop((connection, asker, opaque), None)
                if exchange is not None:
                    exchange.response = frame
                return
            exchange = Exchange(link, sender, frame)
            self.exchanges.append(exchange)
            if not frame.is_oneway:
                self._pending[connection, sender, opaque] = exchange

    def take(self) -> list[Exchange]:
        """Return what was recorded so far and start over."""
        with self._lock:
            taken, self.exchanges = self.exchanges, []
            return taken


class Proxy(AbstractContextManager["Proxy"]):
    """Listens on ``listen`` and forwards every connection to ``upstream``."""

    def __init__(self, link: str, listen: Address, upstream: Address, recording: Recording) -> None:
        self._link = link
        self._upstream = upstream
        self._recording = recording
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(listen)
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        host, port = self._listener.getsockname()
        return f"{host}:{port}"

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for end in self._sockets:
            end.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self._upstream)
            except OSError:
                near.close()
                continue
            self._sockets += [near, far]
            ends = (("client", near, far), ("server", far, near))
            for sender, source, sink in ends:
                pump = threading.Thread(
                    target=self._pump, args=(id(near), sender, source, sink), daemon=True
                )
                pump.start()

    def _pump(
        self, connection: int, sender: str, source: socket.socket, sink: socket.socket
    ) -> None:
        buffer = bytearray()
        try:
            while data := source.recv(65536):
                buffer += data
                # Noted before it is passed on, so that no answer can overtake its request.
                for frame in take_frames(buffer):
                    self._recording.note(self._link, connection, sender, frame)
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue


def take_frames(buffer: bytearray) -> Iterator[CapturedFrame]:
    """Yield the complete frames at the front of ``buffer`` and drop them from it."""
    while len(buffer) >= 4:
        end = 4 + int.from_bytes(buffer[:4], "big")
        if len(buffer) < end:
            return
        wire = bytes(buffer[:end])
        del buffer[:end]
        yield parse_frame(wire)


def parse_frame(wire: bytes) -> CapturedFrame:
    """Decode the header of one whole frame."""
    (mark,) = struct.unpack_from(">I", wire, 4)
    header_end = 8 + (mark & 0xFFFFFF)
    header, body = wire[8:header_end], wire[header_end:]
    decoded = json.loads(header) if mark >> 24 == 0 else _binary_header(header)
    return CapturedFrame(wire, mark >> 24, decoded, body)


def _binary_header(header: bytes) -> dict[str, Any]:
    code, language, version, opaque, flag, remark_bytes = struct.unpack_from(">hBhiii", header)
    at = 17 + remark_bytes
    remark = header[17:at].decode()
    (fields_bytes,) = struct.unpack_from(">i", header, at)
    at += 4
    fields: dict[str, str] = {}
    end = at + fields_bytes
    while at < end:
        (key_bytes,) = struct.unpack_from(">h", header, at)
        key = header[at + 2 : at + 2 + key_bytes].decode()
        at += 2 + key_bytes
        (value_bytes,) = struct.unpack_from(">i", header, at)
        fields[key] = header[at + 4 : at + 4 + value_bytes].decode()
        at += 4 + value_bytes
    decoded: dict[str, Any] = {"code": code, "language": language, "version": version}
    decoded |= {"opaque": opaque, "flag": flag, "extFields": fields}
    return decoded | ({"remark": remark} if remark else {})
