"""The heap of Spark's Python workers.

A worker is used for one task after the other, and after each it collects garbage: it walks all
that was ever imported, some 40 ms of a core, and finds nothing. Most small tasks take less than
that by themselves. So whatever is loaded when the first task begins is taken out of the
collector's sight; only cycles made later are looked for.
"""

from __future__ import annotations

import functools
import gc
import sys
from typing import Final

_FORKED_BY: Final = "pyspark.daemon"


@functools.cache
def keep_loaded() -> None:
    """Let this process, if it is a worker of Spark's, not look again at what it has loaded."""
    if is_worker():
        gc.collect()
        gc.freeze()


def is_worker() -> bool:
    """Whether this process is one that Spark uses again and again."""
    started_as = getattr(sys.modules["__main__"], "__spec__", None)
    return started_as is not None and started_as.name == _FORKED_BY
