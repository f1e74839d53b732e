"""Changes of popping's state: values that the services return and the server stores.

A service decides on a change and returns it with the records to store. The server appends them at
once, before any other call of the services, and tells the service when the change is *settled*:
stored or failed. Changes settle in the order in which they were appended. A change takes effect
once it is stored: only then are messages handed out or acknowledgements confirmed. A failed change
has no effect.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Protocol, TypeVar

from rocketpost.store.draft import Appended, Draft

T = TypeVar("T")


class Change:
    """A change that takes effect once its records are stored. Each service derives its own kinds.

    Attributes:
        drafts: The records, in the order in which they must be stored.
        is_settled: Whether it is known if they are stored.
        is_stored: Whether the change takes effect.
        count: Number of stored records: all, or only the first ones if the disk is full.
        reason: Why none is stored.
    """

    __slots__ = ("_first_offset", "count", "drafts", "is_settled", "is_stored", "reason")

    def __init__(self, drafts: list[Draft], *, first_offset: int = -1) -> None:
        assert drafts
        self.drafts = drafts
        self.is_settled = False
        self.is_stored = False
        self.count = 0
        self.reason = ""
        self._first_offset = first_offset

    def settle(self, stored: Sequence[Appended], reason: str = "") -> None:
        """Record how many of the records are stored; none, with a reason, if the change failed."""
        assert not self.is_settled
        assert len(stored) <= len(self.drafts)
        if stored and self._first_offset >= 0:
            # The record names its own offset, so nothing else may be appended in between.
            assert stored[0].queue_offset == self._first_offset
        self.is_settled = True
        self.is_stored = bool(stored)
        self.count = len(stored)
        self.reason = reason
        self.drafts = []  # they may be large, and a request may still wait for this change


class Decider(Protocol):
    """A service that decides on changes."""

    def settle(self, change: Change, /) -> None:
        """Apply a stored change of this service, or undo a failed one."""
        ...


ChangeSteps = Generator[Change | None, None, T]
"""Work in steps. It yields None where it may be interrupted, and changes that must be appended
before it continues. A ``StoreError`` is thrown into it if a change cannot be appended."""
