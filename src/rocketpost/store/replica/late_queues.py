"""The file ``late-queues``: it exists if queues of this store may begin at any offset.

A follower's log may begin in the middle of its leader's. Then the first record of a queue may come
at any time, with any offset, since the records before it had expired. Recovery must know that:
elsewhere a new queue that does not begin at 0 is a sign of damage.
"""

from __future__ import annotations

from rocketpost.errors import StoreFull
from rocketpost.store.files import FileSystem, write_whole_blocking


class LateQueues:
    """Knows whether the file exists. Owned by the loop thread."""

    def __init__(self, files: FileSystem, path: str) -> None:
        self._files = files
        self._path = path
        self._is_noted = False

    def load_blocking(self) -> bool:
        """Tell whether queues may begin at any offset."""
        self._is_noted = self._files.stat(self._path) is not None
        return self._is_noted

    def note(self) -> None:
        """Make the file, durably, if it does not exist; that happens once in the life of a store.

        Raises:
            StoreFull: It cannot be made.
        """
        if self._is_noted:
            return
        try:
            write_whole_blocking(self._files, self._path, b"")
        except OSError as error:
            raise StoreFull(f"{self._path} cannot be written: {error.strerror}") from error
        self._is_noted = True
