"""How Spark's Python workers end: in silence when they are let go.

Spark lets a worker go by closing its connection: after a minute without a task, when a session
ends, and when it has enough of a task's rows, as for ``show()``. The worker takes the end of its
input for a task that went wrong, and what it can no longer write for another, and reports that, to
nobody; over a Unix socket that fails, and Spark shows a traceback that means nothing. So a worker
looks first whether there is a task at all, and one whose report nobody takes says no more.

Workers for tasks are forked by our daemon (:mod:`rocketpost.spark.workers.daemon`), which sees to
that. Those that plan a query always come from Spark's own. If they load our formats they are
changed from inside, by :func:`end_quietly`; those that plan for other formats act as they always
did, and so does a PySpark that looks different there.
"""

from __future__ import annotations

import functools
import socket
import sys
from collections.abc import Callable
from typing import Final

Work = Callable[[socket.socket, bool], int]

DAEMON: Final = "rocketpost.spark.workers.daemon"
_SPARKS_DAEMON: Final = "pyspark.daemon"
_NO_MORE: Final = 1
"""What a worker returns that takes no further task."""


def forked_by() -> str | None:
    """Return the module that forked this process as a worker of Spark's, None if none did."""
    started_as = getattr(sys.modules["__main__"], "__spec__", None)
    name = None if started_as is None else started_as.name
    return name if name in (DAEMON, _SPARKS_DAEMON) else None


def end_quietly() -> None:
    """Let this process, if it is a worker of Spark's own daemon, end in silence when let go."""
    main = sys.modules["__main__"]
    work = getattr(main, "worker", None)
    if forked_by() == _SPARKS_DAEMON and work is not None and not hasattr(work, "__wrapped__"):
        main.worker = with_a_task(work)  # type: ignore[attr-defined]


def with_a_task(work: Work) -> Work:
    """Return what does ``work`` for the task that comes as long as anybody waits for it."""

    @functools.wraps(work)
    def wait_and_work(connection: socket.socket, authenticated: bool) -> int:
        try:
            if not connection.recv(1, socket.MSG_PEEK):
                return _NO_MORE
            return work(connection, authenticated)
        except (BrokenPipeError, ConnectionResetError):
            # Nobody took the last rows of the task before, or those of this one. What went wrong in
            # a task itself is reported by now: this is an error of the report.
            return _NO_MORE

    return wait_and_work
