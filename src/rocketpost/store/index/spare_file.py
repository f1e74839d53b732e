"""The next file of the key index, allocated whole before it is needed."""

from __future__ import annotations

import posixpath

from rocketpost.store.files import FileSystem


class SpareFile:
    """Allocates a file in a directory of its own. Guarded by the index's lock."""

    def __init__(self, files: FileSystem, directory: str, file_bytes: int) -> None:
        self._files = files
        self._directory = directory
        self._file_bytes = file_bytes
        self._path = posixpath.join(directory, "next")

    @property
    def is_made(self) -> bool:
        """Whether the file is there."""
        return self._files.stat(self._path) is not None

    def make(self) -> None:
        """Allocate the file; it gets its name once it has its full size."""
        self._files.mkdir(self._directory)
        unfinished = posixpath.join(self._directory, "unfinished")
        fd = self._files.open(unfinished, create=True)
        try:
            self._files.fallocate(fd, self._file_bytes)
        except OSError:
            self._files.close(fd)
            self._files.unlink(unfinished)
            raise
        self._files.close(fd)
        self._files.rename(unfinished, self._path)

    def move_to(self, path: str) -> None:
        """Move the file into place, made now if need be."""
        if not self.is_made:
            self.make()
        self._files.rename(self._path, path)

    def discard(self) -> None:
        """Remove the file and its directory."""
        for name in self._files.listdir(self._directory):
            self._files.unlink(posixpath.join(self._directory, name))
        if self._files.stat(self._directory) is not None:
            self._files.rmdir(self._directory)
