"""Spark's daemon, which forks Python workers for tasks, with workers that end in silence.

``spark.python.daemon.module`` names it. Spark's own does everything but that. What is imported here
is in every worker from its start, and none of it may start a thread: threads do not survive a fork.
"""

from __future__ import annotations

from pyspark import daemon

from rocketpost.spark.workers.end import with_a_task


def main() -> None:
    """Fork workers until Spark closes our input."""
    daemon.worker = with_a_task(daemon.worker)  # type: ignore[assignment]
    daemon.manager()


if __name__ == "__main__":
    main()
