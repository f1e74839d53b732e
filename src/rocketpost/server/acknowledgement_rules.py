"""Acknowledgement rules: what must be true of a message before anybody may count on it.

Each rule knows the position before which every message meets it. A message is visible to consumers,
and its sender is answered, when it meets all rules that are in force. :func:`rules_for` is the only
place that turns a flush mode into rules.

    ASYNC_FLUSH   Written            survives the death of this process
    SYNC_FLUSH    Written, Flushed   survives a power cut
"""

from __future__ import annotations

from typing import Protocol

from rocketpost.model.ids import Position
from rocketpost.store.config import FlushMode


class Log(Protocol):
    """The commit log, as far as rules need it."""

    @property
    def written_position(self) -> Position:
        """Everything before is in the files."""

    @property
    def durable_position(self) -> Position:
        """Everything before is on disk."""

    def request_flush(self) -> None:
        """Ask for what is written to be made durable soon."""


class AcknowledgementRule:
    """A condition on messages, met up to a position. Owned by the loop.

    Only the log writer changes ``position``; between two starts it only grows.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self.position = Position(0)
        """Every message that ends at or before it meets the rule."""

    def start(self) -> None:
        """Take the position from the log, when a term begins."""
        raise NotImplementedError

    def pursue(self) -> None:
        """Start to bring what was just written to meet the rule; called after each commit."""


class Written(AcknowledgementRule):
    """The bytes are in the log's files, perhaps only in the page cache."""

    def start(self) -> None:
        """Begin where the log is written."""
        self.position = self._log.written_position


class Flushed(AcknowledgementRule):
    """The bytes are on disk."""

    def start(self) -> None:
        """Begin where the log is durable."""
        self.position = self._log.durable_position

    def pursue(self) -> None:
        """Ask for a flush."""
        self._log.request_flush()


def rules_for(flush_mode: FlushMode, log: Log) -> list[AcknowledgementRule]:
    """Return the rules that a flush mode stands for."""
    if flush_mode is FlushMode.SYNC_FLUSH:
        return [Written(log), Flushed(log)]
    return [Written(log)]
