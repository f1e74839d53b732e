"""The heap of Spark's Python workers.

A worker is used for one task after the other, and after each it collects garbage: it walks all
that was ever imported, some 40 ms of a core, and finds nothing. Most small tasks take less than
that by themselves. So whatever is loaded when the first task begins is taken out of the
collector's sight; only cycles made later are looked for. A task may load more, as Arrow does with
all of pandas at the first list that it is given: what is loaded by then follows with the next one.

Every batch needs the same few MB as the one before. The C library would give them back to the
system in between, which costs more than the reading: each page is then made anew, and zeroed.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from typing import Final

from rocketpost.spark.workers.end import forked_by

_MODULES_MIN: Final = 50
"""How many modules more are worth it: each time, cycles of that moment are kept for good."""
_FREE_BYTES_MAX: Final = 64 * 1024 * 1024
"""How much free memory stays with a worker."""
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_MMAP_THRESHOLD_MAX: Final = 32 * 1024 * 1024


class _Kept:
    """What this process keeps. Not thread-safe: tasks of a worker begin one after the other."""

    modules = 0


def keep_loaded() -> None:
    """Let this process, if it is a worker of Spark's, keep what it has loaded and has freed."""
    if forked_by() and len(sys.modules) >= _Kept.modules + _MODULES_MIN:
        gc.collect()
        gc.freeze()
        if not _Kept.modules:
            keep_freed()
        _Kept.modules = len(sys.modules)


def keep_freed() -> None:
    """Let freed memory stay with this process, up to a limit; does nothing but with glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, _FREE_BYTES_MAX)
        mallopt(_MMAP_THRESHOLD, _MMAP_THRESHOLD_MAX)
