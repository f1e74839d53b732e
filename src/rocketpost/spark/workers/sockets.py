"""Unix sockets between Spark's JVM and the Python workers of one machine.

What passes between them costs both sides much less than over TCP. Spark asks nobody for a password
there, so the sockets lie in a directory that only its owner may enter.
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
"""Spark adds the name of a socket, and the system bounds the whole."""


def socket_settings() -> dict[str, str]:
    """Return what Spark must be told; nothing where there are no Unix sockets."""
    if not hasattr(socket, "AF_UNIX"):
        return {}
    parent = tempfile.gettempdir()
    directory_bytes = len(os.fsencode(parent)) + len(f"/{_PREFIX}") + _RANDOM_BYTES
    if directory_bytes > _DIRECTORY_BYTES_MAX:
        return {}
    return {ENABLED: "true", DIRECTORY: str(_directory(parent))}


@functools.cache
def _directory(parent: str) -> Path:
    """Return a directory of this process's own, which goes with it."""
    directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    atexit.register(_remove, directory, os.getpid())
    return directory


def _remove(directory: Path, owner: int) -> None:
    if os.getpid() == owner:  # not in a fork of it
        shutil.rmtree(directory, ignore_errors=True)
