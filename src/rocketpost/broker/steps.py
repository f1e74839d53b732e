"""Work in steps: what may take long yields wherever others may be served in between."""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, TypeVar

T = TypeVar("T")

Steps = Generator[None, None, T]

QUEUES_AT_A_STEP: Final = 256
"""Queues that are looked at between two yields: a fraction of a millisecond."""


def finish(steps: Steps[T]) -> T:
    """Do all the work now and return what it comes to."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
