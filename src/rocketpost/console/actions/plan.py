"""A planned change: what it touches, before and after, the risk, and the ticket to apply it.

A page shows the plan. Its form has a ticket that is valid for five minutes, once, and for one
session. To apply it, the plan is made again: if what it touches has changed meanwhile, the digests
differ and nothing is done.
"""

from __future__ import annotations

import enum
import hashlib
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec

from rocketpost.console.access.users import Role
from rocketpost.errors import ConnectionLost, NotConnected, RequestTimeout, RocketpostError

VALID_SECONDS: Final = 300
_TICKETS_MAX: Final = 500


class Outcome(enum.Enum):
    """The outcome of one step."""

    DONE = "done"
    UNCHANGED = "unchanged"
    REFUSED = "refused"
    UNKNOWN = "unknown"
    """There was no answer: it may or may not have happened."""
    NOT_TRIED = "not_tried"


class Step(msgspec.Struct, kw_only=True, rename="camel"):
    """One target of a change."""

    target: str
    before: str = ""
    after: str = ""
    note: str = ""


class Result(msgspec.Struct, kw_only=True, rename="camel"):
    """The outcome of one step."""

    target: str
    outcome: Outcome
    detail: str = ""


class Plan(msgspec.Struct, kw_only=True, rename="camel"):
    """A change that has not been made yet."""

    action: str
    title: str
    steps: list[Step]
    risks: list[str] = []
    is_reversible: bool = True
    undo: str = ""
    """The steps that undo the action."""
    undo_path: str = ""
    """The preview of the change that undoes it, as a path of the console."""
    typed: str = ""
    """The name that a user must type; empty if a click suffices."""
    role: Role = Role.OPERATOR
    command: str = ""
    total: int = 0
    """Messages that a job will deal with."""
    moves: bool = False
    """Whether the values before change all the time; they are not compared then."""

    @property
    def digest(self) -> str:
        """A hash of everything that was shown; it differs if anything has changed."""
        shown = self
        if self.moves:
            steps = [Step(target=each.target, after=each.after) for each in self.steps]
            shown = msgspec.structs.replace(self, steps=steps, risks=[], typed="", undo_path="")
        return hashlib.sha256(msgspec.json.encode(shown)).hexdigest()


class Ticket(msgspec.Struct, kw_only=True):
    """The right to apply one plan."""

    action: str
    fields: dict[str, str]
    digest: str
    session: str
    until: float


class Plans:
    """Tickets of the plans that were shown. Belongs to the event loop.

    Args:
        clock: The time in seconds, which never goes back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tickets: dict[str, Ticket] = {}

    def issue(self, plan: Plan, fields: Mapping[str, str], *, session: str) -> str:
        """Return a ticket for a plan."""
        now = self._clock()
        self._tickets = {key: each for key, each in self._tickets.items() if each.until > now}
        while len(self._tickets) >= _TICKETS_MAX:
            del self._tickets[next(iter(self._tickets))]
        token = secrets.token_urlsafe(24)
        self._tickets[token] = Ticket(
            action=plan.action,
            fields=dict(fields),
            digest=plan.digest,
            session=session,
            until=now + VALID_SECONDS,
        )
        return token

    def take(self, token: str, *, session: str) -> Ticket | None:
        """Use up a ticket and return it; None if it was used, is too old or another session's."""
        found = self._tickets.get(token)
        if found is None or found.session != session:
            return None
        del self._tickets[token]
        return found if found.until > self._clock() else None


async def apply_steps(
    steps: list[Step], work: Callable[[Step], Awaitable[str | None]]
) -> list[Result]:
    """Apply steps one after the other, and stop at the first whose outcome is unknown.

    ``work`` returns a detail, or None if nothing had to be changed.
    """

    results: list[Result] = []
    for index, step in enumerate(steps):
        try:
            detail = await work(step)
        except (RequestTimeout, ConnectionLost) as error:
            unknown = not isinstance(error, NotConnected)
            outcome = Outcome.UNKNOWN if unknown else Outcome.REFUSED
            results.append(Result(target=step.target, outcome=outcome, detail=str(error)))
        except RocketpostError as error:
            results.append(Result(target=step.target, outcome=Outcome.REFUSED, detail=str(error)))
        else:
            done = Outcome.UNCHANGED if detail is None else Outcome.DONE
            results.append(Result(target=step.target, outcome=done, detail=detail or ""))
            continue
        results += [
            Result(target=each.target, outcome=Outcome.NOT_TRIED) for each in steps[index + 1 :]
        ]
        break
    return results
