"""A lake of archived messages: Parquet files, and manifests that say what they hold.

    data/batch=00000007/topic=Orders/date=2026-11-16/part-*.parquet
    manifest/00000007.json

A batch counts when its manifest is there, which is written whole or not at all: what a killed run
left in ``data`` is in no manifest and is replaced by the next run. A manifest has the offsets of
every queue that its batch covers, so that holes and overlaps can be seen without reading a file,
and the next offset to archive is where the manifests end. One run at a time writes to a lake.
"""

from __future__ import annotations

import json
import os
import posixpath
from typing import Any, Final, NamedTuple

import pyarrow.fs as fs

from rocketpost.errors import StoreError
from rocketpost.spark.plan import Offsets, Range, flat, nested

VERSION: Final = 1


class DataFile(NamedTuple):
    """One Parquet file; its path is relative to the lake."""

    path: str
    bytes: int


class Batch(NamedTuple):
    """What one run archived."""

    number: int
    ranges: list[Range]
    rows: int
    files: list[DataFile]
    created_ms: int
    lost: list[str]
    """What was gone before it could be archived, in words."""
    replaces: tuple[int, ...] = ()
    """The batches that this one was compacted from."""

    def to_json(self) -> bytes:
        """Return the manifest."""
        value = {
            "v": VERSION,
            "batch": self.number,
            "from": nested({piece.queue: piece.start for piece in self.ranges}),
            "until": nested({piece.queue: piece.end for piece in self.ranges}),
            "rows": self.rows,
            "files": [file._asdict() for file in self.files],
            "createdMs": self.created_ms,
            "lost": self.lost,
            "replaces": self.replaces,
        }
        return json.dumps(value, indent=1).encode()


class Flaw(NamedTuple):
    """Something that is wrong with a lake, in words."""

    text: str


class Lake:
    """A lake at a path or URI that Arrow can open."""

    def __init__(self, uri: str) -> None:
        self.uri = uri.rstrip("/")
        self._files, self._root = _opened(self.uri)

    @property
    def data_uri(self) -> str:
        """Where data files are, in Spark's words."""
        return f"{self.uri}/data"

    def batch_uri(self, number: int) -> str:
        """Return where the files of a batch go."""
        return f"{self.uri}/{_folder(number)}"

    def batches(self) -> list[Batch]:
        """Return what counts, in order; what was compacted is left out.

        Raises:
            StoreError: A manifest cannot be read.
        """
        every = [self._manifest(path) for path in self._listed("manifest", ".json")]
        replaced = {number for batch in every for number in batch.replaces}
        return sorted(
            (batch for batch in every if batch.number not in replaced),
            key=lambda batch: min(batch.replaces, default=batch.number),
        )

    def watermark(self) -> Offsets:
        """Return the next offset to archive, for every queue that was archived."""
        ends: Offsets = {}
        for batch in self.batches():
            for piece in batch.ranges:
                ends[piece.queue] = max(ends.get(piece.queue, 0), piece.end)
        return ends

    def next_number(self) -> int:
        """Return the number of the next batch."""
        names = self._listed("manifest", ".json")
        return max((int(posixpath.basename(name)[:-5]) for name in names), default=-1) + 1

    def file_uris(self) -> list[str]:
        """Return every data file that counts, in Spark's words."""
        return [f"{self.uri}/{file.path}" for batch in self.batches() for file in batch.files]

    def written(self, number: int) -> list[DataFile]:
        """Return the files that lie in the folder of a batch."""
        found = []
        for path, size in self._sizes(_folder(number)):
            if path.endswith(".parquet"):
                found.append(DataFile(path, size))
        return sorted(found)

    def commit(self, batch: Batch) -> None:
        """Make a batch count, at once and for good.

        Raises:
            StoreError: A batch of this number counts already: somebody else archives here as well.
        """
        path = f"{self._root}/manifest/{batch.number:08d}.json"
        if self._files.get_file_info(path).type is not fs.FileType.NotFound:
            raise StoreError(f"batch {batch.number} of {self.uri} exists; is there a second run?")
        self._files.create_dir(f"{self._root}/manifest", recursive=True)
        fresh = f"{path}.new"
        with self._files.open_output_stream(fresh) as stream:
            stream.write(batch.to_json())
        # Else a power cut could leave a manifest of files that are not there.
        self._sync(*[f"{self._root}/{file.path}" for file in batch.files], fresh)
        self._files.move(fresh, path)
        self._sync(f"{self._root}/manifest")

    def discard(self, number: int) -> None:
        """Delete the files of a batch that does not count."""
        path = f"{self._root}/{_folder(number)}"
        if self._files.get_file_info(path).type is not fs.FileType.NotFound:
            self._files.delete_dir(path)

    def flaws(self) -> list[Flaw]:
        """Return holes, overlaps, and files that are missing or changed."""
        flaws: list[Flaw] = []
        ends: Offsets = {}
        for batch in self.batches():
            for piece in batch.ranges:
                end = ends.get(piece.queue, piece.start)
                if piece.start > end:
                    flaws.append(Flaw(f"{piece.queue}: offsets {end} to {piece.start} are missing"))
                elif piece.start < end:
                    flaws.append(
                        Flaw(f"{piece.queue}: offsets {piece.start} to {end} are there twice")
                    )
                ends[piece.queue] = max(end, piece.end)
            there = dict(self._sizes(_folder(batch.number)))
            flaws += [
                Flaw(f"{file.path} is missing or has another size")
                for file in batch.files
                if there.get(file.path) != file.bytes
            ]
        return flaws

    def _sync(self, *paths: str) -> None:
        """Make files and their folders durable where that is ours to do."""
        if not isinstance(self._files, fs.LocalFileSystem):
            return
        for path in {*paths, *map(posixpath.dirname, paths)}:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def _manifest(self, path: str) -> Batch:
        with self._files.open_input_stream(path) as stream:
            data = stream.read()
        try:
            value: dict[str, Any] = json.loads(data)
            start = flat(value["from"], what=path)
            end = flat(value["until"], what=path)
            return Batch(
                number=value["batch"],
                ranges=[Range(queue, start[queue], end[queue]) for queue in sorted(start)],
                rows=value["rows"],
                files=[DataFile(**file) for file in value["files"]],
                created_ms=value["createdMs"],
                lost=value["lost"],
                replaces=tuple(value["replaces"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(f"the manifest {path} cannot be read: {error}") from error

    def _listed(self, folder: str, suffix: str) -> list[str]:
        selector = fs.FileSelector(f"{self._root}/{folder}", allow_not_found=True)
        found = self._files.get_file_info(selector)
        return sorted(info.path for info in found if info.path.endswith(suffix))

    def _sizes(self, folder: str) -> list[tuple[str, int]]:
        """Return the files under a folder, relative to the lake, with their sizes."""
        selector = fs.FileSelector(f"{self._root}/{folder}", recursive=True, allow_not_found=True)
        found = self._files.get_file_info(selector)
        return [
            (posixpath.relpath(info.path, self._root), info.size)
            for info in found
            if info.type is fs.FileType.File
        ]


def _opened(uri: str) -> tuple[fs.FileSystem, str]:
    if "://" in uri or uri.startswith("file:"):
        files, root = fs.FileSystem.from_uri(uri)
        return files, root.rstrip("/")
    return fs.LocalFileSystem(), uri


def _folder(number: int) -> str:
    return f"data/batch={number:08d}"
