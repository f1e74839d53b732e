"""Ownership of a store, and detection of an unclean stop of its last owner.

lock    held while a process has the store open; Java takes the same lock
abort   exists while the store is open; if it exists at a start, the last stop was unclean

The commit log may be elsewhere (``storePathCommitLog``), so two stores may name the same one. It
has its own lock, which names its owner.
"""

from __future__ import annotations

import logging
import os

from rocketpost.errors import StoreError, StoreLocked
from rocketpost.store.files import FileSystem, make_directory, read_whole_blocking, write_all
from rocketpost.store.layout import Layout

logger = logging.getLogger(__name__)


class StoreLock:
    """Lock and abort file of one store. Not thread-safe: used to open and close the store."""

    def __init__(self, files: FileSystem, layout: Layout) -> None:
        self._files = files
        self._layout = layout
        self._lock_fd = -1
        self._log_lock_fd = -1

    @property
    def is_held(self) -> bool:
        """Whether this process holds the store."""
        return self._lock_fd >= 0

    @property
    def was_left_in_order(self) -> bool:
        """Whether there is nothing to recover."""
        return self._files.stat(self._layout.abort) is None

    def take_blocking(self) -> None:
        """Make the store's root and its commit log if need be, and lock both.

        Raises:
            StoreLocked: Another process has locked one of them.
            StoreError: One cannot be made or locked.
        """
        root = self._layout.root
        self._make_directory(root, "storePathRootDir")
        try:
            self._lock_fd = self._files.lock(self._layout.lock)
        except BlockingIOError as error:
            raise StoreLocked(f"{root} is in use by another process") from error
        except OSError as error:
            raise StoreError(f"{root} cannot be locked: {error}") from error
        write_all(self._files, self._lock_fd, b"lock", 0)
        try:
            self._take_log()
        except BaseException:
            self._files.close(self._lock_fd)
            self._lock_fd = -1
            raise

    def _take_log(self) -> None:
        path = self._layout.log_lock
        self._make_directory(self._layout.allocating, "storePathCommitLog")
        try:
            self._log_lock_fd = self._files.lock(path)
        except BlockingIOError as error:
            owner = read_whole_blocking(self._files, path).decode(errors="replace")
            raise StoreLocked(
                f"the commit log {self._layout.commit_log} is in use by {owner or 'another broker'}"
            ) from error
        except OSError as error:
            raise StoreError(f"{self._layout.commit_log} cannot be locked: {error}") from error
        owner = f"the broker with storePathRootDir={self._layout.root}, process {os.getpid()}"
        try:
            self._files.ftruncate(self._log_lock_fd, 0)
            write_all(self._files, self._log_lock_fd, owner.encode(), 0)
        except OSError as error:
            # The text only helps another broker to name the owner; a full disk must not stop us.
            logger.warning(
                "owner of the commit log not recorded path=%s reason=%s", path, error.strerror
            )

    def _make_directory(self, path: str, key: str) -> None:
        try:
            make_directory(self._files, path)
        except OSError as error:
            raise StoreError(
                f"the directory {path} cannot be created: {error.strerror or error}; "
                f"check {key} and the permissions of its parent directory"
            ) from error

    def mark_open_blocking(self) -> None:
        """Write the abort file, durably: from here on a crash is detected."""
        fd = self._files.open(self._layout.abort, create=True)
        try:
            write_all(self._files, fd, str(os.getpid()).encode(), 0)
            self._files.fdatasync(fd)
        finally:
            self._files.close(fd)
        self._files.fsync_dir(self._layout.root)

    def release_blocking(self, *, clean: bool) -> None:
        """Release the store; with ``clean``, mark that there is nothing to recover."""
        if clean:
            self._files.unlink(self._layout.abort)
            self._files.fsync_dir(self._layout.root)
        self._files.close(self._log_lock_fd)
        self._files.close(self._lock_fd)
        self._lock_fd = self._log_lock_fd = -1
