"""Questions that members of a group ask each other beside the messages of Raft, and their answers.

A member whose log is replaced asks where the leader's log begins. Every member asks for digests of
the log, and for bytes of it, to find and repair damage. Frames are those of ``codec.group.frames``:

    9   Question   number int64, subject uint8, begin int64, end int64
    10  Piece      number int64, CRC-32 of the body uint32, refusal (length uint8, text in UTF-8);
                   then the body

    subject   begin, end                        body
    1         part of a text                    that part: the beginning of the leader's log
    2         positions of the log              digest of these bytes
    3         positions of the log              these bytes

The number is chosen by the member that asks. A question may stay without an answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import Final

PIECE_BYTES_MAX: Final = 512 * 1024
"""Most bytes in one answer, so that the messages of Raft do not wait long behind it."""
REFUSAL_BYTES_MAX: Final = 255

_QUESTION: Final = Struct(">qBqq")
_PIECE: Final = Struct(">qIB")


class Subject(IntEnum):
    """Things that a member can ask for."""

    BEGINNING = 1
    DIGEST = 2
    LOG = 3


@dataclass(frozen=True, slots=True)
class Question:
    """Asks for the part ``[begin, end)`` of a subject."""

    number: int
    subject: Subject
    begin: int
    end: int
    term: int = 0


@dataclass(frozen=True, slots=True)
class Piece:
    """Answers a question; ``size`` bytes follow.

    Attributes:
        number: That of the question.
        size: Bytes that follow.
        crc: CRC-32 of these.
        refusal: Reason why there is no answer; empty if there is one.
        term: Always 0.
    """

    number: int
    size: int
    crc: int
    refusal: str = ""
    term: int = 0


def pack_question(question: Question) -> bytes:
    """Return the fields of a question."""
    return _QUESTION.pack(question.number, question.subject, question.begin, question.end)


def pack_piece(piece: Piece) -> bytes:
    """Return the fields of an answer; a long refusal is shortened."""
    text = piece.refusal.encode()[:REFUSAL_BYTES_MAX]
    return _PIECE.pack(piece.number, piece.crc, len(text)) + text


def unpack_question(fields: bytes) -> Question:
    """Read the fields of a question.

    Raises:
        ValueError: They are impossible.
    """
    if len(fields) != _QUESTION.size:
        raise ValueError(f"a question has {len(fields)} bytes, not {_QUESTION.size}")
    number, subject, begin, end = _QUESTION.unpack(fields)
    if min(number, begin) < 0 or end < begin:
        raise ValueError(f"a question asks for the bytes from {begin} to {end}")
    return Question(number, Subject(subject), begin, end)


def unpack_piece(fields: bytes, size: int) -> Piece:
    """Read the fields of an answer that ``size`` bytes follow.

    Raises:
        ValueError: They are impossible.
    """
    if len(fields) < _PIECE.size:
        raise ValueError(f"an answer has {len(fields)} bytes")
    number, crc, length = _PIECE.unpack_from(fields)
    text = fields[_PIECE.size :]
    if length != len(text) or number < 0 or size > PIECE_BYTES_MAX:
        raise ValueError("an answer is cut short or too long")
    return Piece(number, size, crc, text.decode(errors="replace"))
