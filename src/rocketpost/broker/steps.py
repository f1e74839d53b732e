"""Work in steps: long work yields at points where other requests may be served."""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, TypeVar

T = TypeVar("T")

Steps = Generator[None, None, T]

QUEUES_AT_A_STEP: Final = 256
"""Queues visited between two yields: a fraction of a millisecond."""


def finish(steps: Steps[T]) -> T:
    """Do all the work now and return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
