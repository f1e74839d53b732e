"""Search for waiting messages in the timer log alone, when the wheel cannot be used."""

from __future__ import annotations

from rocketpost.store.timer.checkpoint import TimerCheckpoint
from rocketpost.store.timer.log import UNIT_BYTES, TimerLog
from rocketpost.store.timer.wheel import NOWHERE


def live_units(
    log: TimerLog, found: TimerCheckpoint, commit_log_end: int
) -> tuple[dict[int, int], int]:
    """Return the newest unit of each waiting message, and the end of the timer log.

    The position of a message is in the commit log, that of its unit in the timer log. The end is
    before the end in the checkpoint if the units in between cannot be read.
    """
    java, exact = found
    cursor = (0, NOWHERE) if exact is None else (exact.cursor_due_ms, exact.cursor_position)
    stop = java.log_end if exact is not None else log.end
    newest: dict[int, int] = {}
    end, before = log.first, NOWHERE
    for at, unit in log.scan(log.first, stop):
        if exact is None and at >= java.log_end and unit.position <= before:
            break  # left over from before the log was cut
        end, before = at + UNIT_BYTES, unit.position
        is_done = unit.slot_ms < java.read_ms or (
            unit.slot_ms == java.read_ms and (unit.due_ms, at) <= cursor
        )
        if is_done or unit.position >= commit_log_end:
            newest.pop(unit.position, None)
        else:
            newest[unit.position] = at
    return newest, end
