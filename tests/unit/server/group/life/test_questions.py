"""Questions between members."""

from __future__ import annotations

import asyncio

import pytest

from rocketpost.codec.group.questions import Piece, Question, Subject
from rocketpost.errors import ReplicationError, StoreError
from rocketpost.server.group.life import questions
from rocketpost.server.group.life.questions import Questions

TEXT = bytes(range(256))


class Pair:
    """Two members, of which b answers; messages may be changed on their way."""

    def __init__(self) -> None:
        self.asked: list[Question] = []
        self.is_up = True
        self.spoil = False
        self.a = Questions(self.to_b, {})
        self.b = Questions(self.to_a, {Subject.BEGINNING: self.text, Subject.LOG: self.log})
        self.gate = asyncio.Event()

    def to_b(self, peer: str, message: Question | Piece, body: memoryview | None) -> bool:
        assert peer == "b"
        assert isinstance(message, Question)
        self.asked.append(message)
        if self.is_up:
            self.b.take("a", message, b"")
        return self.is_up

    def to_a(self, peer: str, message: Question | Piece, body: memoryview | None) -> bool:
        data = b"" if body is None else bytes(body)
        self.a.take("b", message, data[::-1] if self.spoil else data)
        return True

    async def text(self, peer: str, begin: int, end: int) -> bytes:
        return TEXT[begin:end]

    async def log(self, peer: str, begin: int, end: int) -> bytes:
        await self.gate.wait()
        raise StoreError("the disk cannot be read")


async def test_a_question_is_answered() -> None:
    pair = Pair()
    assert await pair.a.ask("b", Subject.BEGINNING, 5, 9) == TEXT[5:9]


async def test_a_long_text_is_fetched_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    for size in (100, 128, 300):
        monkeypatch.setattr(questions, "PIECE_BYTES_MAX", size)
        pair = Pair()
        assert await pair.a.fetch("b", Subject.BEGINNING) == TEXT
        assert len(pair.asked) == len(TEXT) // size + 1


async def test_a_refusal_says_why() -> None:
    pair = Pair()
    pair.gate.set()
    with pytest.raises(ReplicationError, match="b refuses: the disk cannot be read"):
        await pair.a.ask("b", Subject.LOG, 0, 10)
    with pytest.raises(ReplicationError, match="b refuses: it knows nothing about DIGEST"):
        await pair.a.ask("b", Subject.DIGEST, 0, 10)


async def test_a_peer_that_cannot_be_reached() -> None:
    pair = Pair()
    pair.is_up = False
    with pytest.raises(ReplicationError, match="b cannot be reached"):
        await pair.a.ask("b", Subject.BEGINNING, 0, 10)


async def test_a_damaged_answer_is_none() -> None:
    pair = Pair()
    pair.spoil = True
    with pytest.raises(ReplicationError, match="is damaged"):
        await pair.a.ask("b", Subject.BEGINNING, 0, 10)


async def test_silence_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "ANSWER_SECONDS", 0.001)
    pair = Pair()
    with pytest.raises(ReplicationError, match="did not answer"):
        await pair.a.ask("b", Subject.LOG, 0, 10)
    pair.gate.set()
    await pair.b.close()  # the late answer finds nobody


async def test_only_some_are_answered_at_a_time() -> None:
    pair = Pair()
    tasks = [
        asyncio.create_task(pair.a.ask("b", Subject.LOG, at, at + 1))
        for at in range(questions.AT_ONCE_MAX + 1)
    ]
    (refused,), waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    with pytest.raises(ReplicationError, match="too many questions"):
        await refused
    await pair.a.close()
    for task in waiting:
        with pytest.raises(ReplicationError, match="stopping"):
            await task
    pair.gate.set()
    await pair.b.close()
