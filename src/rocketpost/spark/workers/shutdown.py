"""Shutdown of Spark's Python workers without a traceback.

Spark closes the connection of a worker after a minute without a task, when a session ends, and when
it has enough rows of a task, as for ``show()``. The worker takes the end of its input for a failed
task and reports that, although nobody listens. Over a Unix socket the report fails too, and Spark
shows a meaningless traceback. So a worker checks first whether there is a task at all, and ignores
that its report is not read.

Workers for tasks are forked by our daemon (:mod:`rocketpost.spark.workers.daemon`), which wraps
them. Workers that plan a query always come from Spark's own daemon. If they load our formats, they
change themselves with :func:`quiet_planning_worker`. Workers that plan for other formats, and
workers of a PySpark with another structure, do not change.
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
_DONE: Final = 1
"""The result of a worker that takes no further task."""


def worker_daemon() -> str | None:
    """Return the daemon module that forked this process, or None if it is not a Spark worker."""
    started_as = getattr(sys.modules["__main__"], "__spec__", None)
    name = None if started_as is None else started_as.name
    return name if name in (DAEMON, _SPARKS_DAEMON) else None


def quiet_planning_worker() -> None:
    """Let this process end without a traceback if it is a worker of Spark's own daemon."""
    main = sys.modules["__main__"]
    work = getattr(main, "worker", None)
    if worker_daemon() == _SPARKS_DAEMON and work is not None and not hasattr(work, "__wrapped__"):
        main.worker = ignore_disconnects(work)  # type: ignore[attr-defined]


def ignore_disconnects(work: Work) -> Work:
    """Return ``work`` such that it ends normally when Spark closes the connection."""

    @functools.wraps(work)
    def wait_and_work(connection: socket.socket, authenticated: bool) -> int:
        try:
            if not connection.recv(1, socket.MSG_PEEK):
                return _DONE
            return work(connection, authenticated)
        except (BrokenPipeError, ConnectionResetError):
            # Spark did not read the last rows of this task or the one before. Errors of the task
            # itself are already reported: this is an error of the report.
            return _DONE

    return wait_and_work
