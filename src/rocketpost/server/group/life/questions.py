"""Questions between members, for data that Raft's messages do not carry."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from typing import Final
from zlib import crc32

from rocketpost.codec.group.questions import PIECE_BYTES_MAX, Piece, Question, Subject
from rocketpost.errors import ReplicationError, RocketpostError

logger = logging.getLogger(__name__)

ANSWER_SECONDS: Final = 5.0
"""Time that a peer has for an answer."""
AT_ONCE_MAX: Final = 4
"""Most questions that are answered at the same time; others are refused."""


Source = Callable[[str, int, int], Awaitable[bytes]]
"""Returns the part ``[begin, end)`` of a subject for a peer, or raises a ``RocketpostError``."""
Post = Callable[[str, Question | Piece, memoryview | None], bool]
"""Sends a message to a peer; tells whether it could be sent."""


class Questions:
    """Asks peers, and answers what they ask. Owned by the loop.

    Args:
        post: Sends messages.
        sources: The answers, by subject.
    """

    def __init__(self, post: Post, sources: Mapping[Subject, Source] | None = None) -> None:
        self._post = post
        self.sources: Mapping[Subject, Source] = sources or {}
        """The answers, by subject."""
        self._numbers = count(1)
        self._open: dict[tuple[str, int], asyncio.Future[bytes]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def ask(self, peer: str, subject: Subject, begin: int, end: int) -> bytes:
        """Ask a peer for a part of a subject.

        Raises:
            ReplicationError: It refuses, cannot be reached, or does not answer in time.
        """
        key = (peer, next(self._numbers))
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._open[key] = answer
        try:
            if not self._post(peer, Question(key[1], subject, begin, end), None):
                raise ReplicationError(f"{peer} cannot be reached")
            async with asyncio.timeout(ANSWER_SECONDS):
                return await answer
        except TimeoutError:
            raise ReplicationError(f"{peer} did not answer in {ANSWER_SECONDS:g} s") from None
        finally:
            del self._open[key]

    async def fetch(self, peer: str, subject: Subject) -> bytes:
        """Ask a peer for a whole subject, piece by piece; the last piece is a short one.

        Raises:
            ReplicationError: As for :meth:`ask`.
        """
        pieces: list[bytes] = []
        while not pieces or len(pieces[-1]) == PIECE_BYTES_MAX:
            begin = len(pieces) * PIECE_BYTES_MAX
            pieces.append(await self.ask(peer, subject, begin, begin + PIECE_BYTES_MAX))
        return b"".join(pieces)

    def take(self, peer: str, message: Question | Piece, body: bytes) -> None:
        """Take a question or an answer of a peer."""
        if isinstance(message, Piece):
            self._take_piece(peer, message, body)
        elif len(self._tasks) >= AT_ONCE_MAX:
            self._send(peer, message, b"", refusal="it has too many questions to answer; ask again")
        else:
            task = asyncio.create_task(self._answer(peer, message), name=f"answer to {peer}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Finish the answers that are being made, and give up questions."""
        for answer in self._open.values():
            if not answer.done():
                answer.set_exception(ReplicationError("this member is stopping"))
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _take_piece(self, peer: str, piece: Piece, body: bytes) -> None:
        answer = self._open.get((peer, piece.number))
        if answer is None or answer.done():
            return  # it came too late
        if piece.refusal:
            answer.set_exception(ReplicationError(f"{peer} refuses: {piece.refusal}"))
        elif crc32(body) != piece.crc:
            answer.set_exception(ReplicationError(f"the answer of {peer} is damaged"))
        else:
            answer.set_result(body)

    async def _answer(self, peer: str, question: Question) -> None:
        source = self.sources.get(question.subject)
        try:
            if source is None:
                raise ReplicationError(f"it knows nothing about {question.subject.name}")
            data = await source(peer, question.begin, question.end)
        except (RocketpostError, OSError) as error:
            self._send(peer, question, b"", refusal=str(error) or type(error).__name__)
            return
        self._send(peer, question, data)

    def _send(self, peer: str, question: Question, data: bytes, *, refusal: str = "") -> None:
        piece = Piece(question.number, len(data), crc32(data), refusal)
        self._post(peer, piece, memoryview(data) if data else None)
