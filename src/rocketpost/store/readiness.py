"""The reasons for which a store refuses messages.

    broken     a write or a sync failed: only a restart helps
    closed     it is being closed
    queues     queues or index could not be saved
    index      the index finds no room
    (nearly)   the disk is nearly full: only *new* messages are refused, what delivers or moves
               messages that were taken before still finds room

The first four refuse every append. They are set from any thread and looked at with every append, so
they are a dictionary that is nearly always empty.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rocketpost.errors import StoreBroken, StoreFull

_BROKEN: Final = "broken"
_CLOSED: Final = "closed"
_QUEUES: Final = "queues"
_INDEX: Final = "index"


class Readiness:
    """Keeps the reasons of one store. Thread-safe: each step is a single one.

    Args:
        on_broken: Called once, in the thread that found out.
    """

    def __init__(self, *, on_broken: Callable[[str], None]) -> None:
        self._on_broken = on_broken
        self._nearly_full: str | None = None
        self.refusal_reasons: dict[str, str] = {}
        """Why appends are refused; empty if they are not."""

    @property
    def is_ready(self) -> bool:
        """Whether new messages are taken."""
        return not self.refusal_reasons and self._nearly_full is None

    @property
    def why_not(self) -> str | None:
        """Reason why new messages are refused."""
        return next(iter(list(self.refusal_reasons.values())), self._nearly_full)

    @property
    def is_broken(self) -> bool:
        """Whether only a restart helps."""
        return _BROKEN in self.refusal_reasons

    @property
    def is_unindexed_only(self) -> bool:
        """Whether all would be well if the index found room."""
        return list(self.refusal_reasons) == [_INDEX]

    def check(self) -> None:
        """Check that new messages are accepted.

        Raises:
            StoreFull: There is no room, or hardly any.
            StoreBroken: Only a restart helps.
        """
        self.check_appends()
        if self._nearly_full is not None:
            raise StoreFull(self._nearly_full)

    def check_appends(self) -> None:
        """Check that appends are accepted.

        Raises:
            StoreFull: There is no room.
            StoreBroken: Only a restart helps.
        """
        if _BROKEN in self.refusal_reasons:
            raise StoreBroken(self.refusal_reasons[_BROKEN])
        if self.refusal_reasons:
            raise StoreFull(self.why_not or "the store takes nothing now")

    def break_from_thread(self, why: str) -> None:
        """Take nothing any more."""
        if _BROKEN not in self.refusal_reasons:
            self.refusal_reasons[_BROKEN] = why
            self._on_broken(why)

    def close(self) -> None:
        """Take nothing any more, since the store is closed."""
        self.refusal_reasons.setdefault(_CLOSED, "the store is closed")

    def set_trouble(self, why: str | None) -> None:
        """Note why queues or index are not saved, or that they are."""
        self._set(_QUEUES, why)

    def set_unindexed(self, why: str | None) -> None:
        """Note why the index takes nothing, or that it does."""
        self._set(_INDEX, why)

    def set_nearly_full(self, why: str | None) -> None:
        """Note that the disk is nearly full, or is so no more."""
        self._nearly_full = why

    def _set(self, kind: str, why: str | None) -> None:
        if why is None:
            self.refusal_reasons.pop(kind, None)
        else:
            self.refusal_reasons[kind] = why
