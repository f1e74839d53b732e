"""The reason why a message could not be handled: a kind and a text, both bounded.

A message that is sent back carries its last failure in two properties, so that a dead letter says
why it is one. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

KIND: Final = "CONSUME_FAILURE"
"""The property with the kind: the full name of an exception's class."""
TEXT: Final = "CONSUME_FAILURE_TEXT"
"""The property with the text."""
KIND_CHARACTERS_MAX: Final = 128
TEXT_CHARACTERS_MAX: Final = 256


class ConsumeFailure(NamedTuple):
    """The failure of a message; made by :func:`make_failure` or :func:`failure_of`."""

    kind: str
    text: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}" if self.text else self.kind

    @property
    def properties(self) -> dict[str, str]:
        """The properties that carry it in a message."""
        return {KIND: self.kind} | ({TEXT: self.text} if self.text else {})


def make_failure(kind: str, text: str = "") -> ConsumeFailure | None:
    """Return a failure, cut to the bounds and to one line; None without a kind."""
    kind = _line(kind, KIND_CHARACTERS_MAX)
    return ConsumeFailure(kind, _line(text, TEXT_CHARACTERS_MAX)) if kind else None


def failure_of(error: BaseException) -> ConsumeFailure | None:
    """Return the failure that describes an exception."""
    kind = type(error)
    ours = kind.__module__.partition(".")[0] in ("builtins", "rocketpost")
    module = "" if ours else f"{kind.__module__}."
    try:
        text = str(error)
    except Exception:  # a user's __str__ may do anything
        text = ""
    return make_failure(f"{module}{kind.__qualname__}", text)


def failure_in(properties: Mapping[str, str]) -> ConsumeFailure | None:
    """Return the failure that a message carries; None if it carries none."""
    return make_failure(properties.get(KIND, ""), properties.get(TEXT, ""))


def _line(text: str, characters_max: int) -> str:
    # Cut to twice the bound first, so that a long text is cheap. Control characters separate
    # properties and would forge lines in logs.
    clean = "".join(char if char.isprintable() else " " for char in text[: 2 * characters_max])
    return " ".join(clean.split())[:characters_max]
