"""The reasons why a store refuses messages.

    broken         a write or a sync failed: only a restart helps
    closed         the store is being closed
    queues         queues or index could not be saved
    index          there is no room for the index
    (nearly)       the disk is nearly full: only *new* messages are refused; delivering or moving
                   messages accepted before still works
    (unallocated)  a message was refused because the next segment of the log could not be allocated

The first four refuse every append. The last one refuses nothing by itself: each append that needs
the next segment tries again, and messages that fit into the present one are stored. Reasons are set
by any thread and checked for every message, so they are dictionaries that are nearly always empty.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rocketpost.errors import StoreBroken, StoreFull

_BROKEN: Final = "broken"
_CLOSED: Final = "closed"
_QUEUES: Final = "queues"
_INDEX: Final = "index"
_NEARLY_FULL: Final = "nearly"


class Readiness:
    """Keeps the reasons of one store. Thread-safe: each step is atomic.

    Args:
        on_broken: Called once, in the thread that found the failure.
    """

    def __init__(self, *, on_broken: Callable[[str], None]) -> None:
        self.on_broken = on_broken
        """May be replaced at any time."""
        self.refusal_reasons: dict[str, str] = {}
        """Reasons why appends are refused; empty if none."""
        self.new_refusal_reasons: dict[str, str] = {}
        """Reasons why new messages are refused: those above, and a nearly full disk."""
        self._why_unallocated: str | None = None

    @property
    def is_ready(self) -> bool:
        """Whether new messages are accepted, as far as is known."""
        return not self.new_refusal_reasons and self._why_unallocated is None

    @property
    def why_not(self) -> str | None:
        """Reason why new messages are refused."""
        lesser = self.new_refusal_reasons.get(_NEARLY_FULL, self._why_unallocated)
        return next(iter(list(self.refusal_reasons.values())), lesser)

    @property
    def is_broken(self) -> bool:
        """Whether only a restart helps."""
        return _BROKEN in self.refusal_reasons

    @property
    def is_unindexed_only(self) -> bool:
        """Whether a lack of room for the index is the only reason."""
        return list(self.refusal_reasons) == [_INDEX]

    @property
    def has_trouble(self) -> bool:
        """Whether messages are refused because queues or index could not be saved."""
        return _QUEUES in self.refusal_reasons

    def check(self) -> None:
        """Check that new messages are accepted.

        Raises:
            StoreFull: There is no room, or hardly any.
            StoreBroken: Only a restart helps.
        """
        self.check_appends()
        nearly_full = self.new_refusal_reasons.get(_NEARLY_FULL)
        if nearly_full is not None:
            raise StoreFull(nearly_full)

    def check_appends(self) -> None:
        """Check that appends are accepted.

        Raises:
            StoreFull: There is no room.
            StoreBroken: Only a restart helps.
        """
        if _BROKEN in self.refusal_reasons:
            raise StoreBroken(self.refusal_reasons[_BROKEN])
        if self.refusal_reasons:
            raise StoreFull(self.why_not or "the store accepts no messages now")

    def break_from_thread(self, why: str) -> None:
        """Refuse all messages from now on."""
        if _BROKEN not in self.refusal_reasons:
            self._set(_BROKEN, why)
            self.on_broken(why)

    def close(self) -> None:
        """Refuse all messages from now on, since the store is closed."""
        self._set(_CLOSED, "the store is closed")

    def set_trouble(self, why: str | None) -> None:
        """Set the reason why queues or index are not saved, or clear it."""
        self._set(_QUEUES, why)

    def set_unindexed(self, why: str | None) -> None:
        """Set the reason why the index accepts no entries, or clear it."""
        self._set(_INDEX, why)

    def set_nearly_full(self, why: str | None) -> None:
        """Set the reason that the disk is nearly full, or clear it."""
        _put(self.new_refusal_reasons, _NEARLY_FULL, why)

    def set_unallocated(self, why: str | None) -> None:
        """Set the reason why the next segment could not be allocated, or clear it."""
        self._why_unallocated = why

    def _set(self, kind: str, why: str | None) -> None:
        # In this order: a store that is broken always has a reason to refuse new messages as well.
        _put(self.new_refusal_reasons, kind, why)
        _put(self.refusal_reasons, kind, why)


def _put(reasons: dict[str, str], kind: str, why: str | None) -> None:
    if why is None:
        reasons.pop(kind, None)
    else:
        reasons[kind] = why
