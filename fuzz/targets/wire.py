"""Frames, both header encodings, header fields: any bytes, cut anywhere."""

from __future__ import annotations

import msgspec

from fuzz.finding import Find
from fuzz.supply import Supply
from rocketpost.codec.command import Command, decode_command, encode_response, to_fields
from rocketpost.codec.frames import FRAME_BYTES_MAX, Frame, FrameDecoder
from rocketpost.codec.header_json import decode_fields
from rocketpost.codec.headers import admin, client, group, message, namesrv, offset, topic
from rocketpost.codec.lenient_json import decode_any, standardize
from rocketpost.errors import Fault, LocalProtocolError, RemoteProtocolError

HEADERS = [
    value
    for module in (admin, client, group, message, namesrv, offset, topic)
    for value in vars(module).values()
    if isinstance(value, type) and issubclass(value, msgspec.Struct)
]


class Target:
    """Decodes a stream, and what is in it."""

    def check(self, data: bytes) -> None:
        """Cut ``data`` anywhere, decode what comes out."""
        supply = Supply(data)
        mode = supply.byte() % 4
        if mode == 0:
            self._stream(supply)
        elif mode == 1:
            self._frame(Frame(0, supply.rest(), b""), supply)
        elif mode == 2:
            self._frame(Frame(1, supply.rest(), b""), supply)
        else:
            self._lenient(supply.rest())

    def close(self) -> None:
        """Nothing is held."""

    def _stream(self, supply: Supply) -> None:
        cut = supply.number(1, 64)
        stream = supply.rest()
        whole, wrong = _frames(stream, len(stream) or 1)
        parts, also_wrong = _frames(stream, cut)
        if whole != parts or wrong != also_wrong:
            raise Find(f"cut every {cut} bytes, the stream means something else")
        for frame in whole:
            self._frame(frame, supply)

    def _frame(self, frame: Frame, supply: Supply) -> None:
        try:
            command = decode_command(frame)
        except RemoteProtocolError:
            return
        repr_safe = command.language
        if not repr_safe:
            raise Find("a command without a language")
        for header in HEADERS:
            try:
                fields = to_fields(command.read(header))
                encode_response(command, 0, fields=fields)
            except (Fault, LocalProtocolError):
                continue
        self._texts(command)

    def _texts(self, command: Command) -> None:
        try:
            texts = command.fields
        except RemoteProtocolError:
            return
        if not all(isinstance(text, str) for pair in texts.items() for text in pair):
            raise Find("a header field is not text")

    def _lenient(self, data: bytes) -> None:
        for decode in (standardize, decode_any, decode_fields):
            try:
                result = decode(data)
            except RemoteProtocolError:
                continue
            if decode is standardize and len(result) > 16 * len(data) + 64:
                raise Find(f"{len(data)} bytes of JSON became {len(result)}")


def _frames(stream: bytes, cut: int) -> tuple[list[Frame], bool]:
    decoder = FrameDecoder()
    frames: list[Frame] = []
    for start in range(0, len(stream), cut):
        try:
            frames += decoder.feed(stream[start : start + cut])
        except RemoteProtocolError:
            # What came before the bad frame in the same piece is lost with the connection.
            return _whole_frames(stream), True
    return frames, False


def _whole_frames(stream: bytes) -> list[Frame]:
    frames, at = [], 0
    while len(stream) - at >= 8:
        length = int.from_bytes(stream[at : at + 4], "big", signed=True)
        header = int.from_bytes(stream[at + 5 : at + 8], "big")
        end = at + 4 + length
        if length < 4 + header or length + 4 > FRAME_BYTES_MAX or end > len(stream):
            break
        body_at = at + 8 + header
        frames.append(Frame(stream[at + 4], stream[at + 8 : body_at], stream[body_at:end]))
        at = end
    return frames
