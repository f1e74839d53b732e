"""Report of a command's steps: lines as they happen, or one JSON document at the end."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rocketpost.admin.command import say, say_json


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

    def add(self, **members: object) -> None:
        """Report a step for programs only."""
        self._steps.append(members)

    def line(self, text: str) -> None:
        """Print a line for people only."""
        if not self._as_json:
            say(text)
