"""Frames of questions and their answers."""

from __future__ import annotations

from zlib import crc32

import pytest

from rocketpost.codec.group.frames import Framed, RaftDecoder, RaftEncoder
from rocketpost.codec.group.questions import (
    PIECE_BYTES_MAX,
    REFUSAL_BYTES_MAX,
    Piece,
    Question,
    Subject,
    pack_question,
    unpack_piece,
    unpack_question,
)
from rocketpost.errors import LocalProtocolError, RemoteProtocolError


def transmit(message: Framed, body: bytes = b"") -> tuple[Framed, bytes]:
    frame = RaftEncoder("g").encode(message, len(body)) + body
    decoder = RaftDecoder("g")
    found = [each for byte in frame for each in decoder.feed(bytes([byte]))]
    assert found == RaftDecoder("g").feed(frame)
    return found[0]


def test_a_question_arrives() -> None:
    for subject in Subject:
        question = Question(7, subject, 100, 2**40)
        assert transmit(question) == (question, b"")


def test_an_answer_arrives_with_its_bytes() -> None:
    body = b"some bytes"
    piece = Piece(7, len(body), crc32(body))
    assert transmit(piece, body) == (piece, body)
    empty = Piece(8, 0, 0, "it is full: café")
    assert transmit(empty) == (empty, b"")


def test_a_long_refusal_is_shortened() -> None:
    found, _ = transmit(Piece(7, 0, 0, "x" * 1000))
    assert isinstance(found, Piece)
    assert found.refusal == "x" * REFUSAL_BYTES_MAX


def test_impossible_fields_are_refused() -> None:
    fields = pack_question(Question(1, Subject.LOG, 5, 9))
    for bad in (fields[:-1], fields + b"x", pack_question(Question(1, Subject.LOG, 9, 5))):
        with pytest.raises(ValueError, match="a question"):
            unpack_question(bad)
    with pytest.raises(ValueError, match="99"):
        unpack_question(fields[:8] + bytes([99]) + fields[9:])
    with pytest.raises(ValueError, match="cut short"):
        unpack_piece(bytes(12) + b"\5", 0)
    with pytest.raises(ValueError, match="an answer has"):
        unpack_piece(b"", 0)


def test_an_answer_has_a_size_limit() -> None:
    size = PIECE_BYTES_MAX + 1
    frame = RaftEncoder("g").encode(Piece(1, size, 0), size)
    with pytest.raises(RemoteProtocolError, match="too long"):
        RaftDecoder("g").feed(frame)
    with pytest.raises(LocalProtocolError):
        RaftEncoder("g").encode(Piece(1, 5, 0), 4)
