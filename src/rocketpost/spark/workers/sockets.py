"""Unix sockets between Spark's JVM and the Python workers of one machine.

They cost both sides much less than TCP. Spark asks for no password there, so the sockets are in a
directory that only its owner may enter.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import socket
import tempfile
from pathlib import Path
from typing import Final

ENABLED: Final = "spark.python.unix.domain.socket.enabled"
DIRECTORY: Final = "spark.python.unix.domain.socket.dir"
_PREFIX: Final = "rp-"
_RANDOM_BYTES: Final = 8
_DIRECTORY_BYTES_MAX: Final = 60
"""Spark appends the name of a socket, and the system limits the whole path."""


def socket_settings() -> dict[str, str]:
    """Return Spark's settings for Unix sockets; empty on systems without them."""
    if not hasattr(socket, "AF_UNIX"):
        return {}
    parent = tempfile.gettempdir()
    directory_bytes = len(os.fsencode(parent)) + len(f"/{_PREFIX}") + _RANDOM_BYTES
    if directory_bytes > _DIRECTORY_BYTES_MAX:
        return {}
    return {ENABLED: "true", DIRECTORY: str(_make_directory(parent))}


@functools.cache
def _make_directory(parent: str) -> Path:
    """Return a directory of this process, which is removed when the process ends."""
    directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    atexit.register(_remove, directory, os.getpid())
    return directory


def _remove(directory: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked child must not remove it
        shutil.rmtree(directory, ignore_errors=True)
