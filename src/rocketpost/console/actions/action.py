"""An action of the console: its form, its plan, and the work of each step."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Final, NamedTuple

from rocketpost.console.access.users import Role
from rocketpost.console.actions.plan import Plan, Step
from rocketpost.console.jobs.record import JobRecord
from rocketpost.console.visit import BadInputError, Visit

_READERS_MAX: Final = 20
"""Most groups that a preview names."""


class Field(NamedTuple):
    """A field of an action's form. Its label is ``action.field_`` and its name, or ``label``."""

    name: str
    default: str = ""
    choices: tuple[str, ...] = ()
    is_number: bool = False
    is_required: bool = True
    is_text: bool = False
    """Whether it has several lines; then the form is sent by POST."""
    label: str = ""


class Action(NamedTuple):
    """A change that a user can make. Its title is ``action.`` and its name."""

    name: str
    fields: tuple[Field, ...]
    plan: Callable[[Visit], Awaitable[Plan]]
    """Returns the plan for the fields of the visit; changes nothing."""
    work: Callable[[Visit, Plan, Step], Awaitable[str | None]] | None = None
    """Makes the change at one target; returns a detail, or None if nothing had to be changed."""
    role: Role = Role.OPERATOR
    start: Callable[[Visit, Plan], Awaitable[JobRecord]] | None = None
    """Starts the job that makes the change, if it may take long; then there is no ``work``."""

    prefill: Callable[[Visit], Awaitable[dict[str, str]]] | None = None
    """Returns values for a form that was not filled yet."""

    @property
    def is_posted(self) -> bool:
        """Whether its fields are too long for an address."""
        return any(field.is_text for field in self.fields)

    @property
    def key(self) -> str:
        """The last part of the keys of its texts."""
        return self.name.replace("-", "_")


def describe_readers(visit: Visit, groups: Iterable[str]) -> str:
    """Return the risk that groups receive messages that are sent to a topic once more."""
    names = sorted(groups)[:_READERS_MAX]
    if not names:
        return visit.text("action.risk_no_readers")
    return visit.text("action.risk_readers", names=", ".join(names))


def require(visit: Visit, name: str) -> str:
    """Return a field that must not be empty.

    Raises:
        BadInputError: It is empty.
    """
    value = visit.query(name, length_max=255)
    if not value:
        raise BadInputError(visit.text("action.needed", field=visit.text(f"action.field_{name}")))
    return value
