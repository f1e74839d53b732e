"""Who has the store, and whether its last owner left in order.

lock    held while a process has the store open; Java takes the same lock
abort   exists while the store is open; one that is found tells of an unclean stop
"""

from __future__ import annotations

import os

from rocketpost.errors import StoreError, StoreLocked
from rocketpost.store.files import FileSystem, make_directory, write_all
from rocketpost.store.layout import Layout


class Guard:
    """Lock and abort file of one store. Not thread-safe: opening and closing use it."""

    def __init__(self, files: FileSystem, layout: Layout) -> None:
        self._files = files
        self._layout = layout
        self._lock_fd = -1

    @property
    def is_held(self) -> bool:
        """Whether this process has the store."""
        return self._lock_fd >= 0

    @property
    def was_left_in_order(self) -> bool:
        """Whether there is nothing to recover."""
        return self._files.stat(self._layout.abort) is None

    def take_blocking(self) -> None:
        """Make the store's root if need be, and lock it.

        Raises:
            StoreLocked: Another process has it.
            StoreError: It cannot be made or locked.
        """
        root = self._layout.root
        try:
            make_directory(self._files, root)
            self._lock_fd = self._files.lock(self._layout.lock)
        except BlockingIOError as error:
            raise StoreLocked(f"{root} is in use by another process") from error
        except OSError as error:
            raise StoreError(f"{root} cannot be locked: {error}") from error
        write_all(self._files, self._lock_fd, b"lock", 0)

    def mark_open_blocking(self) -> None:
        """Leave the abort file, durably: from here on a crash is noticed."""
        fd = self._files.open(self._layout.abort, create=True)
        try:
            write_all(self._files, fd, str(os.getpid()).encode(), 0)
            self._files.fdatasync(fd)
        finally:
            self._files.close(fd)
        self._files.fsync_dir(self._layout.root)

    def release_blocking(self, *, clean: bool) -> None:
        """Give the store up; with ``clean``, say that there is nothing to recover."""
        if clean:
            self._files.unlink(self._layout.abort)
            self._files.fsync_dir(self._layout.root)
        self._files.close(self._lock_fd)
        self._lock_fd = -1
