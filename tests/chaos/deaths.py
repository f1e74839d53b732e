"""Named points of a transaction at which a broker can be made to die, by SIGKILL from within.

Each is a method and whether death comes before or after it. What was appended and not committed is
in the memory of the process only, what was committed is in the log.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any, NamedTuple

from rocketpost.broker.transaction.checks import CheckService
from rocketpost.broker.transaction.service import TransactionService
from rocketpost.broker.transaction.table import Fate
from rocketpost.model.names import HALF_TOPIC, OP_HALF_TOPIC
from rocketpost.server.features.transaction import TransactionFeature
from rocketpost.server.handlers.send import SendHandler
from rocketpost.server.tables.persistence import Persistence
from rocketpost.server.writer.internal_sends import InternalSend
from rocketpost.server.writer.log_writer import LogWriter


class Point(NamedTuple):
    """Where: a method, and which of its calls count."""

    owner: type
    method: str
    is_after: bool
    counts: Callable[..., bool] = lambda *arguments: True


def _has_half(writer: Any) -> bool:
    return any(send.times_out and send.stored[0].topic == HALF_TOPIC for send in writer._appended)


def _own(writer: Any) -> list[Any]:
    return [send for send in writer._appended if isinstance(send, InternalSend)]


def _has_own(topic: str) -> Callable[[Any], bool]:
    def has(writer: Any) -> bool:
        return any(each.topic == topic for send in _own(writer) for each in send.stored)

    return has


def _is_discard(checks: Any, work: Any, stored: Any) -> bool:
    return any(half.ending is Fate.DISCARD for half in work.halves)


def _is_question(checks: Any, work: Any, stored: Any) -> bool:
    return any(work.asked)


POINTS = {
    "half appended": Point(LogWriter, "commit", False, _has_half),
    "half stored, not answered": Point(SendHandler, "_answer_stored", False),
    "end received": Point(TransactionService, "end", False),
    "end decided": Point(TransactionService, "end", True),
    "end appended": Point(LogWriter, "commit", False, lambda writer: bool(_own(writer))),
    "end stored, not counted": Point(TransactionService, "note_stored", False),
    "end counted": Point(TransactionService, "note_stored", True),
    "op message appended": Point(LogWriter, "commit", False, _has_own(OP_HALF_TOPIC)),
    "op message stored": Point(LogWriter, "commit", True, _has_own(OP_HALF_TOPIC)),
    "question appended": Point(LogWriter, "commit", False, _has_own(HALF_TOPIC)),
    "question stored, not asked": Point(CheckService, "note_stored", False, _is_question),
    "question asked": Point(TransactionFeature, "_ask", True),
    "discard stored": Point(CheckService, "note_stored", False, _is_discard),
    "progress noted": Point(TransactionService, "advance_progress", True),
    "tables saved": Point(Persistence, "_save", True),
    "recovered": Point(TransactionService, "recover", True),
    "commits looked for": Point(TransactionService, "look_up_commits", True),
}


def die_at(name: str, count: int) -> None:
    """Have this process die at the ``count``-th time that it comes to a point."""
    point = POINTS[name]
    true = getattr(point.owner, point.method)
    times = 0

    def reached(*arguments: Any) -> bool:
        nonlocal times
        times += point.counts(*arguments)
        return times >= count

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def method(self: Any, *arguments: Any, **named: Any) -> Any:
        is_now = reached(self, *arguments)
        if is_now and not point.is_after:
            die()
        result = true(self, *arguments, **named)
        if is_now:
            die()
        return result

    async def coroutine(self: Any, *arguments: Any, **named: Any) -> Any:
        result = await true(self, *arguments, **named)
        if reached(self, *arguments):
            die()
        return result

    is_async = point.owner is Persistence
    setattr(point.owner, point.method, coroutine if is_async else method)
