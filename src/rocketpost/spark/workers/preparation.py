"""Preparation of Spark's Python workers, called wherever Spark enters our code in one."""

from __future__ import annotations

from rocketpost.spark.workers.heap import keep_heap
from rocketpost.spark.workers.shutdown import quiet_planning_worker


def prepare_worker() -> None:
    """Prepare this process if it is a Python worker of Spark; do nothing in other processes.

    The worker then ends without a traceback when Spark closes its connection, and keeps its heap
    between tasks. May be called any number of times.
    """
    quiet_planning_worker()
    keep_heap()
