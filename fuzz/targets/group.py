"""Streams of a member of a group, and the files of one: any bytes, with right CRCs or not."""

from __future__ import annotations

import contextlib
from zlib import crc32

from fuzz.finding import Find
from fuzz.supply import Supply
from rocketpost.codec.group.frames import RaftDecoder, RaftEncoder, group_mark
from rocketpost.codec.group.hello import Answer, Hello, take_hello
from rocketpost.errors import CorruptRecord, RemoteProtocolError
from rocketpost.raft.messages import Message
from rocketpost.store.member.group_records import parse_group_record
from rocketpost.store.member.hard_state import FILE_BYTES, decode_state, encode_state
from rocketpost.store.member.term_file import decode_terms, encode_terms

GROUP = "g"


class Target:
    """Decodes what a peer sends, and what a disk has kept."""

    def check(self, data: bytes) -> None:
        """Read ``data`` in one of the forms."""
        supply = Supply(data)
        mode = supply.byte() % 6
        if mode == 0:
            cut = supply.number(1, 64)
            self._stream(supply.rest(), cut)
        elif mode == 1:
            self._sealed(supply)
        elif mode == 2:
            self._hello(supply.rest())
        elif mode == 3:
            self._hard_state(supply.rest())
        elif mode == 4:
            self._terms(supply.rest())
        else:
            self._record(supply.rest())

    def close(self) -> None:
        """Nothing is held."""

    def _stream(self, stream: bytes, cut: int) -> None:
        whole = _messages(stream, len(stream) or 1)
        if whole != _messages(stream, cut):
            raise Find(f"cut every {cut} bytes, the stream means something else")

    def _sealed(self, supply: Supply) -> None:
        """Give a head the right length, group and CRC, so that its fields are judged."""
        kind, term, body = supply.byte() % 10, supply.number(0, 2**31 - 1), supply.byte()
        fields = supply.rest()[:4000]
        size = 24 + len(fields)
        head = b"".join(
            (
                (size - 4 + body).to_bytes(4, "big"),
                size.to_bytes(2, "big"),
                bytes([1, kind]),
                group_mark(GROUP).to_bytes(4, "big"),
                term.to_bytes(8, "big"),
                fields,
            )
        )
        head += crc32(head).to_bytes(4, "big")
        for message, log in _messages(head + bytes(body), 7) or []:
            if RaftEncoder(GROUP).encode(message, len(log)) + log != head + bytes(body):
                raise Find(f"another form of {message}")

    def _hello(self, data: bytes) -> None:
        framed = b"RPGROUP1" + len(data).to_bytes(4, "big") + data
        for each in (framed, data):
            with contextlib.suppress(RemoteProtocolError):
                take_hello(Hello, bytearray(each))
            with contextlib.suppress(RemoteProtocolError):
                take_hello(Answer, bytearray(each))

    def _hard_state(self, data: bytes) -> None:
        sealed = data[: FILE_BYTES - 4].ljust(FILE_BYTES - 4, b"\0")
        sealed = b"RPHARD01" + sealed[8:]
        sealed += crc32(sealed).to_bytes(4, "big")
        for each in (data, sealed):
            try:
                number, state = decode_state(each)
            except ValueError:
                continue
            if encode_state(number, state) != each:
                raise Find(f"another form of {state}")

    def _terms(self, data: bytes) -> None:
        lines = data.split(b"\n\n")[0] + b"\n"
        count = lines.count(b"\n")
        sealed = b"%d\n%d\n%b" % (count, crc32(lines) & 0x7FFF_FFFF, lines)
        for each in (data, sealed):
            try:
                spans = decode_terms(each)
            except ValueError:
                continue
            if encode_terms(spans) != each:
                raise Find(f"another form of {spans}")

    def _record(self, data: bytes) -> None:
        try:
            parse_group_record(data)
        except CorruptRecord:
            return


def _messages(stream: bytes, cut: int) -> list[tuple[Message, bytes]] | None:
    """Return the messages of a stream; None if it is refused."""
    decoder = RaftDecoder(GROUP)
    found: list[tuple[Message, bytes]] = []
    for start in range(0, len(stream), cut):
        try:
            found += decoder.feed(stream[start : start + cut])
        except RemoteProtocolError:
            return None
    return found
