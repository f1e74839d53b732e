"""Free memory is filled with page cache before anything is measured.

A virtual machine gives free memory back to its host, and takes each page from it again at the first
touch. A write to a new page of a file then costs several times what it costs otherwise, by chance
in the turn of one server or another. Pages that hold a file nobody needs are free to be used, too,
but they are still the machine's own.
"""

from __future__ import annotations

import contextlib
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_MORE_BYTES: Final = 1 << 30
"""Bytes beyond the free memory, so that no free page is left that was not touched."""
_READ_BYTES: Final = 8 << 20


@contextlib.contextmanager
def filled_page_cache() -> Iterator[None]:
    """Fill free memory with the pages of a file without content, which is kept meanwhile."""
    found = re.search(r"MemFree: +(\d+) kB", Path("/proc/meminfo").read_text())
    assert found
    size = int(found[1]) * 1024 + _MORE_BYTES
    with tempfile.TemporaryFile(prefix="rocketpost-bench-", buffering=0) as file:
        print(f"filling {size / 1e9:.1f} GB of page cache ...", file=sys.stderr, flush=True)
        file.truncate(size)
        buffer = bytearray(_READ_BYTES)
        while file.readinto(buffer):
            pass
        yield
