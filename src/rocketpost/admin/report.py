"""Report of a command's steps: lines as they happen, or one JSON document at the end."""

from __future__ import annotations

from types import TracebackType
from typing import Self, TypeVar

import msgspec

from rocketpost.admin.command import say, say_json
from rocketpost.model.changes import differences

C = TypeVar("C", bound=msgspec.Struct)


class Report:
    """Reports the steps of a command that changes something.

    Without ``--json`` the text of each step is printed at once. With it the steps are printed as a
    list of objects when the command ends, even if it fails half-way: those steps were done.
    """

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._steps: list[dict[str, object]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._as_json and (self._steps or error is None):
            say_json(self._steps)

    def step(self, text: str, **members: object) -> None:
        """Report one step: a line for people, members for programs."""
        self.add(**members)
        self.line(text)

    def change(
        self, noun: str, address: str, before: C | None, after: C, *, listed: bool, **name: str
    ) -> None:
        """Report the change of a configuration on a broker, in RocketMQ's words if it is new.

        Args:
            noun: What is configured, for people.
            address: The broker.
            before: The configuration before; None if it is new.
            after: The configuration now.
            listed: Whether it is one of a list.
            name: Its name, by the word for programs.
        """
        action, outcome = "created", "created"
        text = f"create {noun} to {address} success."
        if before is not None:
            changes = ", ".join(map(str, differences(before, after)))
            action = "changed" if changes else "unchanged"
            outcome = changes or "as it was"
            text = f"change {noun} at {address} success: {outcome}."
        if listed:
            text = f"  {', '.join(name.values())}: {outcome}"
        self.step(text, broker=address, **name, action=action, before=before, after=after)

    def add(self, **members: object) -> None:
        """Report a step for programs only."""
        self._steps.append(members)

    def line(self, text: str) -> None:
        """Print a line for people only."""
        if not self._as_json:
            say(text)
