"""Distinct types for numbers that must not be mixed up.

They are distinct for type checkers only. When the code runs, both are ``int`` itself: to call it
takes a third of the time of calling a ``NewType``, and each message is worth several such calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NewType

if TYPE_CHECKING:
    Position = NewType("Position", int)
    """A byte position in the commit log."""

    QueueOffset = NewType("QueueOffset", int)
    """An ordinal in a consume queue."""
else:
    Position = QueueOffset = int
