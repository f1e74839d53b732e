"""Acknowledgement rules: the conditions that a message must meet before it is acknowledged.

Each rule has a position, before which every message meets the rule. When a message meets all rules
in force, it is visible to consumers and its sender gets an answer. :func:`rules_for` is the only
place that turns a flush mode into rules.

    ASYNC_FLUSH   Written            survives the death of this process
    SYNC_FLUSH    Written, Flushed   survives a power cut
"""

from __future__ import annotations

from typing import Protocol

from rocketpost.model.ids import Position
from rocketpost.store.config import FlushMode


class Log(Protocol):
    """The part of the commit log that the rules use."""

    @property
    def written_position(self) -> Position:
        """End of the bytes that are in the files."""

    @property
    def durable_position(self) -> Position:
        """End of the bytes that are on disk."""

    def request_flush(self) -> None:
        """Ask for a flush of the written bytes soon."""


class AcknowledgementRule:
    """A condition on messages, met up to a position. Owned by the loop.

    Only the log writer changes ``position``; between two starts it only grows.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self.position = Position(0)
        """Every message that ends at or before it meets the rule."""

    def start(self) -> None:
        """Read the position from the log at the beginning of a term."""
        raise NotImplementedError

    def pursue(self) -> None:
        """Start the work that makes new messages meet the rule; called after each commit."""


class Written(AcknowledgementRule):
    """The bytes are in the log's files, perhaps only in the page cache."""

    def start(self) -> None:
        """Begin at the log's written position."""
        self.position = self._log.written_position


class Flushed(AcknowledgementRule):
    """The bytes are on disk."""

    def start(self) -> None:
        """Begin at the log's durable position."""
        self.position = self._log.durable_position

    def pursue(self) -> None:
        """Ask for a flush."""
        self._log.request_flush()


def rules_for(flush_mode: FlushMode, log: Log) -> list[AcknowledgementRule]:
    """Return the rules that a flush mode stands for."""
    if flush_mode is FlushMode.SYNC_FLUSH:
        return [Written(log), Flushed(log)]
    return [Written(log)]
