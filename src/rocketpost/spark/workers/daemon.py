"""The daemon that forks Spark's Python workers, with workers that end without a traceback.

The setting ``spark.python.daemon.module`` names it; otherwise it behaves as Spark's own daemon.
Every worker starts with the modules imported here. None of them may start a thread, because
threads do not survive a fork.
"""

from __future__ import annotations

from pyspark import daemon

from rocketpost.spark.workers.shutdown import ignore_disconnects


def main() -> None:
    """Fork workers until Spark closes our input."""
    daemon.worker = ignore_disconnects(daemon.worker)  # type: ignore[assignment]
    daemon.manager()


if __name__ == "__main__":
    main()
