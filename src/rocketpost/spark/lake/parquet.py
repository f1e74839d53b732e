"""A lake of plain Parquet files, with its manifests next to them.

    data/batch=00000007-5f0c2a91/...
    manifest/00000007.json      with the files of the batch

An existing manifest is valid, unless a later one replaces it. A compacted batch may have files of
the batches that it replaces: those that were already large. Such a lake can be read in any file
system, but written only in directories, because a manifest must never overwrite another one.
"""

from __future__ import annotations

import contextlib
import json
import os
import posixpath
import re
import uuid
from typing import Final

import pyarrow.fs as fs

from rocketpost.errors import ConfigError, StoreError
from rocketpost.spark.lake.lake import (
    DATA,
    PARQUET,
    Batch,
    BatchExists,
    Lake,
    Snapshot,
    valid_batches,
)

_MANIFESTS: Final = "manifest"
_SUFFIX: Final = ".json"
_LOOKS: Final = 5
_FOLDER: Final = re.compile(rf"{DATA}/batch=(\d+)[-/]")


class ParquetLake(Lake):
    """A lake whose manifests are files."""

    kind = PARQUET

    def snapshot(self) -> Snapshot:
        """Return the valid batches, without those that were compacted.

        Raises:
            StoreError: A manifest cannot be read.
        """
        names, batches = self._read_batches()
        files = [file for batch in batches for file in batch.files]
        return Snapshot(batches, files, max(map(_number, names), default=-1) + 1)

    def check_writable(self) -> None:
        """Check that two runs cannot overwrite each other's manifests.

        Raises:
            ConfigError: They can: outside of directories, Arrow cannot refuse to overwrite a file.
        """
        if not isinstance(self._files, fs.LocalFileSystem):
            raise ConfigError(
                f"a lake of plain Parquet files must be in a directory, not at {self.uri}: "
                "elsewhere two runs could overwrite each other's manifests. "
                "Use the format delta there (--format delta)"
            )

    def commit(self, batch: Batch, *, base: Snapshot | None = None) -> None:
        """Make a batch valid, completely and durably.

        Raises:
            ConfigError: The file system does not allow that.
            BatchExists: The batch was already committed.
        """
        self.check_writable()
        path = f"{_MANIFESTS}/{batch.number:08d}{_SUFFIX}"
        self._files.create_dir(f"{self._root}/{_MANIFESTS}", recursive=True)
        fresh = f"{path}.{uuid.uuid4().hex}"
        manifest = batch.to_json() | {"files": [file._asdict() for file in batch.files]}
        with self._files.open_output_stream(f"{self._root}/{fresh}") as stream:
            stream.write(json.dumps(manifest, indent=1).encode())
        # Otherwise a power cut could leave a manifest of files that do not exist.
        self._sync([*[file.path for file in batch.files], fresh])
        try:
            self._publish(fresh, path)
        except FileExistsError:
            raise BatchExists(
                f"batch {batch.number} of {self.uri} exists already: another run is writing to it"
            ) from None
        self._sync([path])

    def sweep(self, kept: Snapshot) -> None:
        """Delete files and manifests that are not valid; ``kept`` has the valid ones.

        Files that a run is writing now have a number without a manifest, and are kept.
        """
        counts = {file.path for file in kept.files}
        for path, _ in self._list_sizes(DATA):
            if path not in counts and _is_before(path, kept.next_number):
                self._files.delete_file(f"{self._root}/{path}")
        numbers = {batch.number for batch in kept.batches}
        for name in self._read_manifests():
            if _number(name) not in numbers and _number(name) < kept.next_number:
                self._files.delete_file(name)

    def _publish(self, fresh: str, path: str) -> None:
        """Give a manifest its name, unless that exists."""
        source, target = f"{self._root}/{fresh}", f"{self._root}/{path}"
        try:
            os.link(source, target)  # unlike a rename, this fails if the name exists
        finally:
            os.unlink(source)

    def _read_batches(self) -> tuple[list[str], list[Batch]]:
        """Return the names of the manifests, and the valid batches."""
        for _ in range(_LOOKS):
            names = self._read_manifests()
            # Manifests that a compaction deletes meanwhile are not valid, but their replacement is.
            with contextlib.suppress(FileNotFoundError):
                return names, valid_batches([self._read(name) for name in names])
        raise StoreError(f"the manifests of {self.uri} disappear while they are read")

    def _read_manifests(self) -> list[str]:
        selector = fs.FileSelector(f"{self._root}/{_MANIFESTS}", allow_not_found=True)
        found = self._files.get_file_info(selector)
        return sorted(info.path for info in found if info.path.endswith(_SUFFIX))

    def _read(self, path: str) -> Batch:
        with self._files.open_input_stream(path) as stream:
            return Batch.from_json(stream.read(), where=path)


def _number(path: str) -> int:
    return int(posixpath.basename(path).removesuffix(_SUFFIX))


def _is_before(path: str, number: int) -> bool:
    """Return whether a file belongs to a batch with a lower number."""
    found = _FOLDER.match(path)
    return found is not None and int(found[1]) < number
