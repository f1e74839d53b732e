"""The heap of Spark's Python workers.

A worker is used for one task after the other, and after each it collects garbage: it walks all
that was ever imported, some 40 ms of a core, and finds nothing. Most small tasks take less than
that by themselves. So whatever is loaded when the first task begins is taken out of the
collector's sight; only cycles made later are looked for. A task may load more, as Arrow does with
all of pandas at the first list that it is given: what is loaded by then follows with the next one.
"""

from __future__ import annotations

import gc
import sys
from typing import Final

_FORKED_BY: Final = "pyspark.daemon"
_MODULES_MIN: Final = 50
"""How many modules more are worth it: each time, cycles of that moment are kept for good."""


class _Kept:
    """What this process keeps. Not thread-safe: tasks of a worker begin one after the other."""

    modules = 0


def keep_loaded() -> None:
    """Let this process, if it is a worker of Spark's, not look again at what it has loaded."""
    if is_worker() and len(sys.modules) >= _Kept.modules + _MODULES_MIN:
        gc.collect()
        gc.freeze()
        _Kept.modules = len(sys.modules)


def is_worker() -> bool:
    """Whether this process is one that Spark uses again and again."""
    started_as = getattr(sys.modules["__main__"], "__spec__", None)
    return started_as is not None and started_as.name == _FORKED_BY
