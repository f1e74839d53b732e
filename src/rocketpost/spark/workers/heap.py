"""The heap of Spark's Python workers.

A worker runs one task after another and collects garbage after each. The collector walks all
imported modules, which takes some 40 ms of a core and finds nothing; most small tasks take less. So
everything that is loaded when the first task begins is frozen: the collector skips it and looks
only for newer cycles. A task may load more, as Arrow loads all of pandas for the first list that it
gets. Those modules are frozen with the next task.

Every batch needs the same few MB as the one before. The C library would return them to the system
between batches, which costs more than the reading: each page is then mapped and zeroed again.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from typing import Final

from rocketpost.spark.workers.shutdown import worker_daemon

_MODULES_MIN: Final = 50
"""New modules that justify another freeze. Each freeze keeps the present cycles for good."""
_FREE_BYTES_MAX: Final = 64 * 1024 * 1024
"""The limit of free memory that a worker keeps."""
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_MMAP_THRESHOLD_MAX: Final = 32 * 1024 * 1024


class _Frozen:
    """Number of modules at the last freeze. Not thread-safe: a worker runs one task at a time."""

    modules = 0


def keep_heap() -> None:
    """Freeze the heap and keep freed memory if this process is a Python worker of Spark."""
    if worker_daemon() and len(sys.modules) >= _Frozen.modules + _MODULES_MIN:
        gc.collect()
        gc.freeze()
        if not _Frozen.modules:
            keep_freed_memory()
        _Frozen.modules = len(sys.modules)


def keep_freed_memory() -> None:
    """Keep freed memory in this process, up to a limit; works only with glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, _FREE_BYTES_MAX)
        mallopt(_MMAP_THRESHOLD, _MMAP_THRESHOLD_MAX)
