"""The question whether a slave's log is the start of its master's, asked before a stream begins.

The HA stream itself cannot tell: it has no checksums, and a slave whose bytes differ from those of
its master would continue with other bytes at the same positions. So a slave of ours sends the facts
about its log first, and the master judges them. Its last record decides: a record holds its own
position, store time and queue offset, so no two logs have the same one by chance.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

TAIL_BYTES_MAX: Final = 64 * 1024 * 1024
"""Longest tail that a master reads to compare it."""


class LogFacts(NamedTuple):
    """A slave's log."""

    segment_bytes: int
    end: int
    """The end of its last record; 0 if it is empty."""
    tail: int
    """Start of its last record."""
    tail_crc: int
    """CRC-32 of the bytes from ``tail`` to ``end``."""


def why_not_follow(
    slave: LogFacts,
    *,
    segment_bytes: int,
    first: int,
    end: int,
    crc_of: Callable[[int, int], int],
) -> str:
    """Return the reason why a slave can never follow this log; empty if it can.

    Args:
        slave: The slave's log.
        segment_bytes: Size of a segment of this log.
        first: Start of this log.
        end: End of this log.
        crc_of: Returns the CRC-32 of this log between two positions.
    """
    if slave.segment_bytes != segment_bytes:
        return (
            f"mappedFileSizeCommitLog is {slave.segment_bytes} at the slave and {segment_bytes} at"
            " the master; both need the same"
        )
    if not slave.end:
        return ""
    if slave.end > end:
        return (
            f"the slave's log ends at {slave.end}, but the master's ends at {end}: the slave has"
            " messages that the master lacks. Make the slave the master, or let it start again"
            " with an empty store directory"
        )
    if slave.end < first:
        return (
            f"the slave's log ends at {slave.end}, but the master has deleted everything before"
            f" {first}. Let the slave start again with an empty store directory"
        )
    if not 0 <= slave.end - slave.tail <= TAIL_BYTES_MAX:
        return f"the slave's last record is said to be at {slave.tail}, its end at {slave.end}"
    if first <= slave.tail and crc_of(slave.tail, slave.end) != slave.tail_crc:
        return (
            f"the slave's last record, at {slave.tail}, is not the master's: their logs have"
            " diverged. Let the slave start again with an empty store directory"
        )
    return ""
