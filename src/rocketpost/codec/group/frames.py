"""Frames of the messages between members of a group, after they have introduced themselves.

    size      uint32   bytes of the frame after this field
    head      uint16   bytes of the head: from ``size`` to its CRC, both included
    version   uint8    1
    kind      uint8    see below
    group     uint32   CRC-32 of the group's name
    term      int64    0 to 2147483647
    ...                fields of the kind
    crc       uint32   CRC-32 of all bytes of the head before this
    body      ...      bytes of the log

    1  PreVote         end int64, last term int64
    2  PreVoteReply    granted uint8
    3  Vote            end int64, last term int64, transfer uint8
    4  VoteReply       granted uint8
    5  Append          prev int64, prev term int64, end int64, commit int64, suspect int64,
                       bar int64, spans, number of configurations uint8, configurations; then the
                       body, which has the bytes [prev, end) of the log
    6  AppendReply     match int64, prev int64, suspect int64, number of conflicts uint8 (0 or 1),
                       for a conflict: term int64, start int64, end int64
    7  TimeoutNow
    8  SnapshotOffer   first int64, commit int64, suspect int64, bar int64, spans, a configuration
    9  Question        see ``codec.group.questions``
    10 Piece           see there; then the body

    spans              number uint16; each: term int64, start int64
    configuration      position int64, voters, learners
    voters, learners   number uint8; each: length uint8, name in UTF-8; in the order of the names

Integers are big-endian. The head is separate from the body, so that the body can be sent from the
log without a copy. The head has a CRC, because a flipped bit in a term or position could commit
what no majority has; each record in the body has its own. ``codec.group.hello`` has the
introduction, and ``raft.messages`` explains the fields.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from struct import Struct
from typing import Final
from zlib import crc32

from rocketpost.codec.group.frame_rules import check_message
from rocketpost.codec.group.questions import (
    Piece,
    Question,
    pack_piece,
    pack_question,
    unpack_piece,
    unpack_question,
)
from rocketpost.errors import LocalProtocolError, RemoteProtocolError
from rocketpost.model.members import MEMBER_COUNT_MAX, MEMBER_NAME_BYTES_MAX, TERM_MAX
from rocketpost.raft.messages import (
    NOTHING_COMPARED,
    Append,
    AppendReply,
    ConflictSpan,
    MemberRecord,
    Members,
    Message,
    PreVote,
    PreVoteReply,
    SnapshotOffer,
    TermSpan,
    TimeoutNow,
    Vote,
    VoteReply,
)

VERSION: Final = 1
BODY_BYTES_MAX: Final = 64 * 1024 * 1024
"""Largest number of bytes of the log in one message."""
SPAN_COUNT_MAX: Final = 2048
"""Largest number of spans in one message. An offer has the newest ones only."""
CONFIGURATION_COUNT_MAX: Final = 32
"""Largest number of configurations in one message."""
HEAD_BYTES_MAX: Final = 2**16 - 1
_NUMBER_MAX: Final = 2**63 - 1

_PREFIX: Final = Struct(">IHBBIq")
_CRC: Final = Struct(">I")
_SIZE_BYTES: Final = 4
_HEAD_BYTES_MIN: Final = _PREFIX.size + _CRC.size
_SPAN: Final = Struct(">qq")
_COUNT: Final = Struct(">H")
_POSITION: Final = Struct(">q")
_ASK: Final = Struct(">qq")
_APPEND: Final = Struct(">qqqqqq")
_REPLY: Final = Struct(">qqqB")
_CONFLICT: Final = Struct(">qqq")
_OFFER: Final = Struct(">qqqq")
_PLAIN_APPEND: Final = Struct(">IHBBIqqqqqqqHqqB")
"""The head, without its CRC, of an Append with bytes of one term and without configurations."""
_PLAIN_REPLY: Final = Struct(">IHBBIqqqqBI")
"""A whole frame of the most frequent message: an AppendReply without a conflict."""

_PRE_VOTE, _PRE_VOTE_REPLY, _VOTE, _VOTE_REPLY, _APPEND_KIND = 1, 2, 3, 4, 5
_APPEND_REPLY, _TIMEOUT_NOW, _SNAPSHOT_OFFER, _QUESTION, _PIECE = 6, 7, 8, 9, 10

Framed = Message | Question | Piece
"""Anything that members send each other after their introduction."""


def group_mark(group: str) -> int:
    """Return the number that stands for a group in frames."""
    return crc32(group.encode())


class RaftEncoder:
    """Makes the heads of frames for one group."""

    def __init__(self, group: str) -> None:
        self._mark = group_mark(group)

    def encode(self, message: Framed, body_bytes: int = 0) -> bytes:
        """Return the head of a message; the caller sends ``body_bytes`` bytes after it.

        Raises:
            LocalProtocolError: The message is too large, or a number is impossible. An ``Append``
                with fewer bytes of the log may fit.
        """
        if isinstance(message, Append) and (head := self._plain_append(message, body_bytes)):
            return head
        size = _body_bytes(message)
        if body_bytes != size:
            raise LocalProtocolError(f"{body_bytes} bytes of the log for a message that has {size}")
        if size > BODY_BYTES_MAX:
            raise LocalProtocolError(f"a message cannot have {size} bytes of the log")
        try:
            kind, fields = _fields_of(message)
            head_bytes = _HEAD_BYTES_MIN + len(fields)
            after = head_bytes - _SIZE_BYTES + size
            prefix = (after, head_bytes, VERSION, kind, self._mark, message.term)
            head = _PREFIX.pack(*prefix) + fields
            check_message(message)
        except (struct.error, ValueError) as error:
            raise LocalProtocolError(f"a message cannot be sent: {error}") from None
        return head + _CRC.pack(crc32(head))

    def _plain_append(self, message: Append, body_bytes: int) -> bytes | None:
        """Encode the usual message with bytes at once; None if it is another, or impossible."""
        term, prev, prev_term, end, spans, members, commit, suspect, bar = message
        if len(spans) != 1 or members:
            return None
        ((span_term, start),) = spans
        is_right = (
            start == prev
            and prev + body_bytes == end
            and 0 < body_bytes <= BODY_BYTES_MAX
            and min(term, prev, prev_term, commit, suspect, bar, span_term) >= 0
            and max(term, prev_term, span_term) <= TERM_MAX
            and max(end, commit, suspect, bar) <= _NUMBER_MAX
        )
        if not is_right:
            return None
        head_bytes = _PLAIN_APPEND.size + _CRC.size
        after, mark = head_bytes - _SIZE_BYTES + body_bytes, self._mark
        head = _PLAIN_APPEND.pack(
            *(after, head_bytes, VERSION, _APPEND_KIND, mark, term),
            *(prev, prev_term, end, commit, suspect, bar),
            *(1, span_term, start, 0),
        )
        return head + _CRC.pack(crc32(head))


class RaftDecoder:
    """Takes the stream of a peer apart. Belongs to one connection."""

    def __init__(self, group: str) -> None:
        self._mark = group_mark(group)
        size = _PLAIN_REPLY.size
        self._reply_mark = [size - _SIZE_BYTES, size, VERSION, _APPEND_REPLY, self._mark]
        self._head = bytearray()
        self._message: Framed | None = None
        self._pieces: list[bytes] = []
        self._left = 0

    @property
    def missing(self) -> int:
        """Bytes of the log that are still to come with the message that has begun."""
        return self._left

    def feed(self, data: bytes | bytearray | memoryview) -> list[tuple[Framed, bytes]]:
        """Return the messages that ``data`` completes, each with its bytes of the log.

        Raises:
            RemoteProtocolError: The bytes are no messages of this group; drop the connection.
        """
        is_between = self._message is None and not self._head
        if is_between and (reply := self._plain_reply(data)) is not None:
            return [(reply, b"")]
        found: list[tuple[Framed, bytes]] = []
        view, at, end = memoryview(data), 0, len(data)
        while True:
            if self._message is not None:
                size = min(self._left, end - at)
                if size:
                    self._pieces.append(bytes(view[at : at + size]))
                    self._left -= size
                    at += size
                if self._left:
                    return found
                found.append((self._message, b"".join(self._pieces)))
                self._message = None
                self._pieces = []
            if at == end:
                return found
            at += self._feed_head(view[at : at + HEAD_BYTES_MAX])

    def _plain_reply(self, data: bytes | bytearray | memoryview) -> AppendReply | None:
        """Decode an acknowledgement at once; None if the bytes are anything else."""
        if len(data) != _PLAIN_REPLY.size:
            return None
        *mark, term, match, prev, suspect, conflicts, crc = _PLAIN_REPLY.unpack(data)
        is_sound = mark == self._reply_mark and crc == crc32(data[: -_CRC.size]) and not conflicts
        is_right = 0 <= term <= TERM_MAX and min(match, suspect, prev - NOTHING_COMPARED) >= 0
        return AppendReply(term, match, prev, None, suspect) if is_sound and is_right else None

    def _feed_head(self, view: memoryview) -> int:
        """Take bytes of a head, and decode it once it is complete; returns how many were taken."""
        head = self._head
        wanted = self._judge(head) if len(head) >= _PREFIX.size else _PREFIX.size
        taken = wanted - len(head)
        head += view[:taken]
        if len(head) < wanted:
            return len(view)
        if wanted == _PREFIX.size:
            wanted = self._judge(head)
            head += view[taken : taken + wanted - _PREFIX.size]
            if len(head) < wanted:
                return len(view)
            taken += wanted - _PREFIX.size
        self._head = bytearray()
        self._take_head(bytes(head))
        return taken

    def _judge(self, head: bytearray) -> int:
        """Return the length of a head of which at least the prefix is there.

        Before the rest arrives: a hostile length must not make us wait for it.
        """
        size, head_bytes, version, kind, mark, _ = _PREFIX.unpack_from(head)
        if version != VERSION:
            raise RemoteProtocolError(f"a message has version {version}, not {VERSION}")
        if mark != self._mark:
            raise RemoteProtocolError("a message belongs to another group")
        if not _HEAD_BYTES_MIN <= head_bytes <= size + _SIZE_BYTES:
            raise RemoteProtocolError(f"a message has {size} bytes, but a head of {head_bytes}")
        if size + _SIZE_BYTES - head_bytes > BODY_BYTES_MAX:
            raise RemoteProtocolError(f"a message has {size} bytes")
        if kind not in _READERS:
            raise RemoteProtocolError(f"a message has the unknown kind {kind}")
        return int(head_bytes)

    def _take_head(self, head: bytes) -> None:
        if _CRC.unpack_from(head, len(head) - _CRC.size)[0] != crc32(head[: -_CRC.size]):
            raise RemoteProtocolError("the CRC of a message does not match")
        size, head_bytes, _, kind, _, term = _PREFIX.unpack_from(head)
        body_bytes = size + _SIZE_BYTES - head_bytes
        reader = _Reader(head, body_bytes)
        message: Framed
        try:
            message = _READERS[kind](reader, term)
            reader.finish()
            check_message(message)
        except (struct.error, ValueError) as error:
            raise RemoteProtocolError(f"a message of kind {kind} is impossible: {error}") from None
        expected = _body_bytes(message)
        if body_bytes != expected:
            raise RemoteProtocolError(
                f"a message of kind {kind} has {body_bytes} bytes of the log instead of {expected}"
            )
        self._message, self._left = message, body_bytes


def _body_bytes(message: Framed) -> int:
    """Return the number of bytes that follow the head of a message."""
    if isinstance(message, Append):
        return message.end - message.prev
    return message.size if isinstance(message, Piece) else 0


# Fields to bytes.


def _fields_of(message: Framed) -> tuple[int, bytes]:
    match message:
        case Append():
            return _APPEND_KIND, _pack_append(message)
        case AppendReply():
            conflict = message.conflict
            fixed = _REPLY.pack(message.match, message.prev, message.suspect, conflict is not None)
            return _APPEND_REPLY, fixed + (_CONFLICT.pack(*conflict) if conflict else b"")
        case PreVote():
            return _PRE_VOTE, _ASK.pack(message.end, message.last_term)
        case PreVoteReply():
            return _PRE_VOTE_REPLY, bytes([message.granted])
        case Vote():
            asked = _ASK.pack(message.end, message.last_term)
            return _VOTE, asked + bytes([message.is_transfer])
        case VoteReply():
            return _VOTE_REPLY, bytes([message.granted])
        case TimeoutNow():
            return _TIMEOUT_NOW, b""
        case SnapshotOffer():
            fixed = _OFFER.pack(message.first, message.commit, message.suspect, message.bar)
            spans = _pack_spans(message.spans[-SPAN_COUNT_MAX:])
            return _SNAPSHOT_OFFER, fixed + spans + _pack_record(message.members)
        case Question():
            return _QUESTION, pack_question(message)
        case Piece():
            return _PIECE, pack_piece(message)


def _pack_append(message: Append) -> bytes:
    numbers = (message.prev, message.prev_term, message.end)
    parts = [
        _APPEND.pack(*numbers, message.commit, message.suspect, message.bar),
        _pack_spans(message.spans),
        _pack_count(len(message.members), CONFIGURATION_COUNT_MAX),
    ]
    return b"".join(parts + [_pack_record(record) for record in message.members])


def _pack_spans(spans: tuple[TermSpan, ...]) -> bytes:
    if len(spans) > SPAN_COUNT_MAX:
        raise ValueError(f"it has {len(spans)} terms")
    return _COUNT.pack(len(spans)) + b"".join([_SPAN.pack(*span) for span in spans])


def _pack_count(count: int, most: int) -> bytes:
    if count > most:
        raise ValueError(f"it has {count} members or configurations; {most} are the most")
    return bytes([count])


def _pack_record(record: MemberRecord) -> bytes:
    parts = [_POSITION.pack(record.position)]
    for names in record.members:
        parts.append(_pack_count(len(names), MEMBER_COUNT_MAX))
        for name in sorted(names):
            text = name.encode()
            parts += [_pack_count(len(text), MEMBER_NAME_BYTES_MAX), text]
    return b"".join(parts)


# Bytes to fields.


class _Reader:
    """Reads the fields of one head."""

    def __init__(self, head: bytes, body_bytes: int) -> None:
        self._head = head
        self.body_bytes = body_bytes
        self._at = _PREFIX.size
        self._end = len(head) - _CRC.size

    def take(self, fields: Struct) -> tuple[int, ...]:
        at = self._at
        self._at = at + fields.size
        if self._at > self._end:
            raise ValueError("it is cut short")
        return fields.unpack_from(self._head, at)

    def ask(self) -> tuple[int, int]:
        end, last_term = self.take(_ASK)
        return end, last_term

    def byte(self) -> int:
        self._at += 1
        if self._at > self._end:
            raise ValueError("it is cut short")
        return self._head[self._at - 1]

    def flag(self) -> bool:
        value = self.byte()
        if value > 1:
            raise ValueError(f"a flag is {value}")
        return bool(value)

    def spans(self) -> tuple[TermSpan, ...]:
        (count,) = self.take(_COUNT)
        if count > SPAN_COUNT_MAX:
            raise ValueError(f"it has {count} terms")
        return tuple(TermSpan(*self.take(_SPAN)) for _ in range(count))

    def records(self) -> tuple[MemberRecord, ...]:
        count = self.byte()
        if count > CONFIGURATION_COUNT_MAX:
            raise ValueError(f"it has {count} configurations")
        return tuple(self.record() for _ in range(count))

    def record(self) -> MemberRecord:
        (position,) = self.take(_POSITION)
        return MemberRecord(position, Members(self._names(), self._names()))

    def _names(self) -> frozenset[str]:
        count = self.byte()
        if count > MEMBER_COUNT_MAX:
            raise ValueError(f"it has {count} members")
        names = [self._name() for _ in range(count)]
        if names != sorted(set(names)):
            raise ValueError("its members are not in order")
        return frozenset(names)

    def _name(self) -> str:
        size = self.byte()
        at = self._at
        self._at = at + size
        if not 0 < size <= MEMBER_NAME_BYTES_MAX or self._at > self._end:
            raise ValueError("a name is empty, too long or cut short")
        return self._head[at : self._at].decode()

    def rest(self) -> bytes:
        at, self._at = self._at, self._end
        return self._head[at : self._end]

    def finish(self) -> None:
        if self._at != self._end:
            raise ValueError(f"it has {self._end - self._at} bytes too many")


def _read_append(reader: _Reader, term: int) -> Append:
    prev, prev_term, end, commit, suspect, bar = reader.take(_APPEND)
    spans, members = reader.spans(), reader.records()
    return Append(term, prev, prev_term, end, spans, members, commit, suspect, bar)


def _read_reply(reader: _Reader, term: int) -> AppendReply:
    match, prev, suspect, count = reader.take(_REPLY)
    if count > 1:
        raise ValueError(f"it has {count} conflicts")
    conflict = ConflictSpan(*reader.take(_CONFLICT)) if count else None
    return AppendReply(term, match, prev, conflict, suspect)


def _read_offer(reader: _Reader, term: int) -> SnapshotOffer:
    first, commit, suspect, bar = reader.take(_OFFER)
    return SnapshotOffer(term, first, reader.spans(), reader.record(), commit, suspect, bar)


_READERS: Final[dict[int, Callable[[_Reader, int], Framed]]] = {
    _PRE_VOTE: lambda reader, term: PreVote(term, *reader.ask()),
    _PRE_VOTE_REPLY: lambda reader, term: PreVoteReply(term, reader.flag()),
    _VOTE: lambda reader, term: Vote(term, *reader.ask(), reader.flag()),
    _VOTE_REPLY: lambda reader, term: VoteReply(term, reader.flag()),
    _APPEND_KIND: _read_append,
    _APPEND_REPLY: _read_reply,
    _TIMEOUT_NOW: lambda reader, term: TimeoutNow(term),
    _SNAPSHOT_OFFER: _read_offer,
    _QUESTION: lambda reader, term: unpack_question(reader.rest()),
    _PIECE: lambda reader, term: unpack_piece(reader.rest(), reader.body_bytes),
}
