"""Progress of work: a bar on a terminal, or a line from time to time elsewhere.

Progress counts messages if the work counts them, otherwise the tasks of Spark's running jobs.
Between two counts of messages, the tasks of the running job show its share.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, NamedTuple, Self

from py4j.protocol import Py4JError
from pyspark import StatusTracker
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

logger = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 0.5
_LINE_SECONDS: Final = 10.0


class Tasks(NamedTuple):
    """The number of completed tasks of the running jobs."""

    done: int
    total: int

    @property
    def share(self) -> float:
        """The completed share of the jobs, from 0 to 1."""
        return self.done / self.total if self.total else 0.0


def count_running_tasks(tracker: StatusTracker) -> Tasks:
    """Return the progress of the running jobs; stages that ended meanwhile are not counted."""
    jobs = [tracker.getJobInfo(job) for job in tracker.getActiveJobsIds()]
    stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
    known = [stage for stage in stages if stage is not None]
    return Tasks(
        sum(stage.numCompletedTasks for stage in known), sum(stage.numTasks for stage in known)
    )


class ShownWork:
    """Shows the progress of work while it runs. Thread-safe.

    Args:
        console: The output.
        title: The name of the work, such as ``archiving``.
        look: Returns the progress of Spark's jobs; called from a thread of its own.
        clock: Returns seconds; for tests.
    """

    def __init__(
        self,
        console: Console,
        title: str,
        *,
        look: Callable[[], Tasks],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._title = title
        self._look = look
        self._clock = clock
        self._console = console
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[counts]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._row = self._bar.add_task(title, total=None, counts="")
        self._done = 0
        self._total: int | None = None
        self._ahead = 0
        self._lock = threading.Lock()
        self._said_at = clock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._bar.start()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()
        self._bar.stop()

    def count(self, done: int, total: int | None, *, ahead: int = 0) -> None:
        """Set the number of completed messages, of all messages, and of the next job."""
        with self._lock:
            self._done, self._total, self._ahead = done, total, ahead
            self._show(Tasks(0, 0))
            if done:
                self._say(self._messages(done))

    def look(self) -> None:
        """Show the progress of Spark."""
        tasks = self._look()
        with self._lock:
            self._show(tasks)
            if tasks.total and self._clock() - self._said_at >= _LINE_SECONDS:
                counted = f"{self._messages(self._done)}, " if self._total is not None else ""
                self._say(f"{counted}{tasks.done:,} of {tasks.total:,} tasks")

    def _watch(self) -> None:
        while not self._over.wait(_LOOK_SECONDS):
            try:
                self.look()
            except (Py4JError, OSError) as error:  # Spark is gone; the caller gets that error, too
                logger.debug("no more progress: %s", error)
                return

    def _show(self, tasks: Tasks) -> None:
        if self._total is None:
            counts = f"{tasks.done:,}/{tasks.total:,} tasks" if tasks.total else ""
            self._bar.update(
                self._row, completed=tasks.done, total=tasks.total or None, counts=counts
            )
            return
        done = self._done + int(self._ahead * tasks.share)
        self._bar.update(
            self._row,
            completed=done,
            total=max(self._total, done),
            counts=self._messages(done),
        )

    def _say(self, text: str) -> None:
        self._said_at = self._clock()
        if not self._console.is_terminal:
            self._console.print(f"{self._title}: {text}", markup=False, soft_wrap=True)

    def _messages(self, done: int) -> str:
        of = f" of {self._total:,}" if self._total is not None else ""
        return f"{done:,}{of} messages"
