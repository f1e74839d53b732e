"""A lock on a file, released when the process that holds it ends."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator
from typing import Final

from rocketpost.errors import ClientError

logger = logging.getLogger(__name__)


_LOOK_SECONDS: Final = 0.2


@contextlib.contextmanager
def hold_lock(path: str, *, is_over: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Hold the lock of a file while the block runs; wait for another process that has it.

    The file names the holder. A process that is killed releases the lock.

    Args:
        path: The file; it is created if necessary, and kept.
        is_over: Called from time to time; true stops the waiting.

    Raises:
        ClientError: Waiting was stopped.
        OSError: The file cannot be created or locked.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _take_lock(descriptor, path, is_over)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _take_lock(descriptor: int, path: str, is_over: Callable[[], bool]) -> None:
    told = False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip()
        if not told:
            logger.warning(
                "waiting for another run that is writing: lock=%s holder=%s", path, holder
            )
            told = True
        if is_over():
            raise ClientError(
                f"stopped while waiting for {holder}, which is writing to the same lake"
            )
        # While it waits in flock itself, the process could not react to a signal.
        time.sleep(_LOOK_SECONDS)
