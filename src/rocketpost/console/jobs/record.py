"""A job as it is shown and kept in its file. Values only."""

from __future__ import annotations

import enum
from typing import Final

import msgspec

EVENTS_MAX: Final = 200
"""Newest outcomes that a job keeps."""


class JobState(enum.Enum):
    """The condition of a job."""

    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"
    """A user stopped it, or too many failed."""
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    """The console ended while it ran."""


class JobEvent(msgspec.Struct, kw_only=True, rename="camel"):
    """The outcome of one message."""

    id: str
    topic: str
    outcome: str
    copy_id: str = ""
    reason: str = ""


class JobRecord(msgspec.Struct, kw_only=True, rename="camel"):
    """A job."""

    id: str
    kind: str
    what: str
    """The name of the thing that it works on; there is one running job of a kind for each."""
    cluster: str
    user: str
    command: str
    fields: dict[str, str]
    total: int
    """Messages when it was planned."""
    begun_ms: int
    ended_ms: int | None = None
    state: JobState = JobState.RUNNING
    problem: str = ""
    counts: dict[str, int] = {}
    events: list[JobEvent] = []
    run_id: str = ""
    """The client of the last run, whose locks are not waited for."""
    offsets: dict[str, int] = {}
    """Progress in each queue, where it is known: ``broker:queue`` and the next offset."""
    runs: int = 1
    rate: float | None = None
    """Messages per second in the last moments."""

    @property
    def done(self) -> int:
        """Messages that are finished."""
        return sum(self.counts.values())

    @property
    def can_resume(self) -> bool:
        """Whether it can be started again from its current place."""
        return self.state in (JobState.STOPPED, JobState.FAILED, JobState.INTERRUPTED)

    def note(self, event: JobEvent) -> None:
        """Count an outcome."""
        self.counts[event.outcome] = self.counts.get(event.outcome, 0) + 1
        self.events.append(event)
        del self.events[:-EVENTS_MAX]
