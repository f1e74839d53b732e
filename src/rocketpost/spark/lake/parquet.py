"""A lake of plain Parquet files, with its manifests beside them.

    data/batch=00000007-5f0c2a91/...
    manifest/00000007.json      with the files of the batch

A manifest that exists counts, unless a later one replaces it. A compacted batch may have files of
the batches that it replaces: those that were large already. Such a lake can be read anywhere, and
written to in directories only: a manifest must never replace another one.
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
from rocketpost.spark.lake.lake import DATA, PARQUET, Batch, BatchTaken, Lake, Snapshot, counting

_MANIFESTS: Final = "manifest"
_SUFFIX: Final = ".json"
_LOOKS: Final = 5
_FOLDER: Final = re.compile(rf"{DATA}/batch=(\d+)[-/]")


class ParquetLake(Lake):
    """A lake whose manifests are files."""

    kind = PARQUET

    def snapshot(self) -> Snapshot:
        """Return what counts now; what was compacted is left out.

        Raises:
            StoreError: A manifest cannot be read.
        """
        names, batches = self._batches()
        files = [file for batch in batches for file in batch.files]
        return Snapshot(batches, files, max(map(_number, names), default=-1) + 1)

    def check_writable(self) -> None:
        """Refuse a place where two runs could overwrite each other's manifests.

        Raises:
            ConfigError: It is no directory: Arrow cannot create a file there only if there is none.
        """
        if not isinstance(self._files, fs.LocalFileSystem):
            raise ConfigError(
                f"a lake of plain Parquet files must be in a directory, not at {self.uri}: "
                "elsewhere two runs could overwrite each other's manifests. "
                "Use the format delta there (--format delta)"
            )

    def commit(self, batch: Batch, *, base: Snapshot | None = None) -> None:
        """Make a batch count, at once and for good.

        Raises:
            ConfigError: That cannot be done safely here.
            BatchTaken: A batch of this number counts already.
        """
        self.check_writable()
        path = f"{_MANIFESTS}/{batch.number:08d}{_SUFFIX}"
        self._files.create_dir(f"{self._root}/{_MANIFESTS}", recursive=True)
        fresh = f"{path}.{uuid.uuid4().hex}"
        manifest = batch.to_json() | {"files": [file._asdict() for file in batch.files]}
        with self._files.open_output_stream(f"{self._root}/{fresh}") as stream:
            stream.write(json.dumps(manifest, indent=1).encode())
        # Else a power cut could leave a manifest of files that are not there.
        self._sync([*[file.path for file in batch.files], fresh])
        try:
            self._publish(fresh, path)
        except FileExistsError:
            raise BatchTaken(
                f"batch {batch.number} of {self.uri} exists: another run writes to it"
            ) from None
        self._sync([path])

    def sweep(self, kept: Snapshot) -> None:
        """Delete files and manifests that do not count; ``kept`` is what does.

        What a run is writing now has a number that is not taken yet, and is left alone.
        """
        counts = {file.path for file in kept.files}
        for path, _ in self._sizes(DATA):
            if path not in counts and _is_before(path, kept.next_number):
                self._files.delete_file(f"{self._root}/{path}")
        numbers = {batch.number for batch in kept.batches}
        for name in self._manifests():
            if _number(name) not in numbers and _number(name) < kept.next_number:
                self._files.delete_file(name)

    def _publish(self, fresh: str, path: str) -> None:
        """Give a manifest its name, unless there is one of that name."""
        source, target = f"{self._root}/{fresh}", f"{self._root}/{path}"
        try:
            os.link(source, target)  # which, unlike a rename, fails if the name is taken
        finally:
            os.unlink(source)

    def _batches(self) -> tuple[list[str], list[Batch]]:
        """Return the names of the manifests, and the batches that count."""
        for _ in range(_LOOKS):
            names = self._manifests()
            # Those that a compaction sweeps meanwhile do not count, but who replaces them does.
            with contextlib.suppress(FileNotFoundError):
                return names, counting([self._read(name) for name in names])
        raise StoreError(f"the manifests of {self.uri} vanish while they are read")

    def _manifests(self) -> list[str]:
        selector = fs.FileSelector(f"{self._root}/{_MANIFESTS}", allow_not_found=True)
        found = self._files.get_file_info(selector)
        return sorted(info.path for info in found if info.path.endswith(_SUFFIX))

    def _read(self, path: str) -> Batch:
        with self._files.open_input_stream(path) as stream:
            return Batch.from_json(stream.read(), where=path)


def _number(path: str) -> int:
    return int(posixpath.basename(path).removesuffix(_SUFFIX))


def _is_before(path: str, number: int) -> bool:
    """Tell whether a file is of a batch of a lower number."""
    found = _FOLDER.match(path)
    return found is not None and int(found[1]) < number
