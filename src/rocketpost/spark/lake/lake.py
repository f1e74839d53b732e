"""A lake of archived messages: Parquet files, and manifests that list them.

    data/batch=00000007-5f0c2a91/topic=Orders/date=2026-11-16/part-*.parquet

A batch becomes valid when its manifest is committed, completely or not at all. Files that a killed
run left in ``data`` are in no manifest. A manifest has the offsets of every queue of its batch. So
gaps and overlaps are visible without reading a file, and the next offset to archive is the end of
the manifests. In a directory one run at a time writes to a lake: others wait, and each deletes
first the files of a killed run. In other file systems runs cannot wait for each other. If two runs
commit the same batch, one of them fails and continues after the other.

The two kinds of lakes, ``lake.parquet`` and ``lake.delta``, differ in where manifests are and which
files are valid. ``open_lake`` detects the kind.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import posixpath
import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.fs as fs
import pyarrow.parquet as pq

from rocketpost.errors import ConfigError, StoreError
from rocketpost.spark.lake.file_lock import hold_lock
from rocketpost.spark.records import columns
from rocketpost.spark.source.plan import Offsets, QueueKey, Range, flatten_offsets, nest_offsets
from rocketpost.spark.suggestions import list_similar

VERSION: Final = 1
PARQUET: Final = "parquet"
DELTA: Final = "delta"
FORMATS: Final = (PARQUET, DELTA)
DATA: Final = "data"
COLUMNS: Final = columns.make_nullable(columns.all_columns())
"""The columns of the files, all nullable, so that old and new files have the same schema."""
_BOUNDED: Final = frozenset({"brokerName", "queueId", "queueOffset", "storeTimestamp"})
_CONCURRENT_FOOTERS: Final = 8
_LOCK: Final = ".write_lock"
_FOLDER: Final = re.compile(r"batch=(\d+)-")

logger = logging.getLogger(__name__)


class DataFile(NamedTuple):
    """One Parquet file; its path is relative to the lake."""

    path: str
    bytes: int
    rows: int | None = None
    """The number of messages; None if unknown."""


class Footer(NamedTuple):
    """The footer of a Parquet file."""

    rows: int
    lowest: dict[str, Any]
    highest: dict[str, Any]


class Batch(NamedTuple):
    """Messages that one run archived."""

    number: int
    ranges: list[Range]
    rows: int
    files: list[DataFile]
    created_ms: int
    lost: list[str]
    """Descriptions of messages that were deleted before they could be archived."""
    replaces: tuple[int, ...] = ()
    """The numbers of the batches that this one replaces."""

    def to_json(self) -> dict[str, Any]:
        """Return the manifest, without the files."""
        return {
            "v": VERSION,
            "batch": self.number,
            "from": nest_offsets({each.queue: each.start for each in self.ranges}),
            "until": nest_offsets({each.queue: each.end for each in self.ranges}),
            "rows": self.rows,
            "createdMs": self.created_ms,
            "lost": self.lost,
            "replaces": self.replaces,
        }

    @staticmethod
    def from_json(data: str | bytes, *, where: str) -> Batch:
        """Return the batch of a manifest.

        Raises:
            StoreError: The value is not a manifest; ``where`` names its origin.
        """
        try:
            value: dict[str, Any] = json.loads(data)
            start = flatten_offsets(value["from"], what=where)
            end = flatten_offsets(value["until"], what=where)
            return Batch(
                number=value["batch"],
                ranges=[Range(queue, start[queue], end[queue]) for queue in sorted(start)],
                rows=value["rows"],
                files=[DataFile(**file) for file in value.get("files", ())],
                created_ms=value["createdMs"],
                lost=value["lost"],
                replaces=tuple(value["replaces"]),
            )
        except (ValueError, KeyError, TypeError, ConfigError) as error:
            raise StoreError(f"the manifest {where} cannot be read: {error}") from error


class BatchExists(StoreError):  # noqa: N818 - named after what happened
    """The batch was already committed: another run writes to the same lake."""


class Flaw(NamedTuple):
    """A description of something that is wrong with a lake."""

    text: str


class Snapshot(NamedTuple):
    """Contents of a lake at one moment: the valid batches in order, and their files."""

    batches: list[Batch]
    files: list[DataFile]
    next_number: int

    @property
    def rows(self) -> int:
        """Number of messages, by the manifests."""
        return sum(batch.rows for batch in self.batches)

    @property
    def ranges(self) -> dict[QueueKey, Range]:
        """Archived offsets of every queue, from its first offset on."""
        found: dict[QueueKey, Range] = {}
        for batch in self.batches:
            for each in batch.ranges:
                known = found.get(each.queue, each)
                found[each.queue] = Range(
                    each.queue, min(known.start, each.start), max(known.end, each.end)
                )
        return found

    @property
    def topics(self) -> frozenset[str]:
        """The archived topics."""
        return frozenset(queue.topic for batch in self.batches for queue, *_ in batch.ranges)

    @property
    def watermark(self) -> Offsets:
        """The next offset to archive, for every queue that was archived."""
        return {queue: each.end for queue, each in self.ranges.items()}


class Lake(ABC):
    """A lake at a path or URI that Arrow can open."""

    kind: str

    def __init__(self, uri: str) -> None:
        self.uri = uri.rstrip("/")
        self._files, self._root = _open_file_system(self.uri)

    # Methods that differ between the kinds of lakes.

    @abstractmethod
    def snapshot(self) -> Snapshot:
        """Return the valid batches, without those that were compacted.

        Raises:
            StoreError: A manifest cannot be read.
        """

    def check_writable(self) -> None:  # noqa: B027 - most lakes are
        """Check that concurrent runs cannot overwrite each other here.

        Raises:
            ConfigError: They can.
        """

    @abstractmethod
    def commit(self, batch: Batch, *, base: Snapshot | None = None) -> None:
        """Make a batch valid, completely and durably.

        Args:
            batch: The archived batch; if it replaces others, the whole content of the lake.
            base: The content of the lake when the files of a replacing batch were written.

        Raises:
            BatchExists: The batch was already committed.
        """

    @abstractmethod
    def sweep(self, kept: Snapshot) -> None:
        """Delete files that are not valid and that no query can be reading any more."""

    # Methods of all lakes.

    @contextlib.contextmanager
    def write_lock(self, *, is_over: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """Prevent other runs from writing while the block runs, if the file system is local.

        Waits for a run that is writing. Then deletes the folders of batches that are not valid,
        because their runs are dead. Does nothing in other file systems.

        Args:
            is_over: Called from time to time; true stops the waiting.

        Raises:
            ClientError: Waiting was stopped.
            StoreError: The lake cannot be locked or cleaned.
        """
        if not isinstance(self._files, fs.LocalFileSystem):
            yield
            return
        try:
            os.makedirs(self._root, exist_ok=True)
            with hold_lock(f"{self._root}/{_LOCK}", is_over=is_over):
                self._discard_leftovers()
                yield
        except OSError as error:
            raise StoreError(f"{self.uri} cannot be written to: {error}") from error

    def _discard_leftovers(self) -> None:
        """Delete the folders of batches that were never committed."""
        snapshot = self.snapshot()
        valid = {posixpath.join(*file.path.split("/")[:2]) for file in snapshot.files}
        data = f"{self._root}/{DATA}"
        for name in sorted(os.listdir(data)) if os.path.isdir(data) else []:
            folder = f"{DATA}/{name}"
            number = _FOLDER.match(name)
            # Files that a compaction replaced have lower numbers and may still be read.
            if number and int(number[1]) >= snapshot.next_number and folder not in valid:
                logger.info("deleting files of a killed run: folder=%s", folder)
                self.discard(folder)

    def make_folder_name(self, number: int) -> str:
        """Return a new folder for the files of a batch, relative to the lake.

        No two attempts have the same one, so a second run cannot touch the files of the first.
        """
        return f"{DATA}/batch={number:08d}-{uuid.uuid4().hex[:8]}"

    def uri_for(self, path: str) -> str:
        """Return the URI of a path in the lake, for Spark."""
        return f"{self.uri}/{path}" if path else self.uri

    def list_files(self, folder: str) -> list[DataFile]:
        """Return the data files in a folder, with their numbers of rows."""
        found = sorted((path, size) for path, size in self._list_sizes(folder) if _is_data(path))
        footers = self._read_footers([path for path, _ in found])
        return [
            DataFile(path, size, footer.rows)
            for (path, size), footer in zip(found, footers, strict=True)
        ]

    def discard(self, folder: str) -> None:
        """Delete a folder whose files are not valid."""
        path = f"{self._root}/{folder}"
        if self._files.get_file_info(path).type is not fs.FileType.NotFound:
            self._files.delete_dir(path)

    def find_flaws(self) -> list[Flaw]:
        """Return gaps, overlaps, and files that are missing or changed."""
        snapshot = self.snapshot()
        flaws = coverage_flaws(snapshot.batches)
        present = dict(self._list_sizes(""))
        flaws += [
            Flaw(f"{file.path} is missing or has another size")
            for file in snapshot.files
            if present.get(file.path) != file.bytes
        ]
        counts = [file.rows for file in snapshot.files]
        found = sum(rows for rows in counts if rows is not None)
        if None not in counts and found != snapshot.rows:
            flaws.append(
                Flaw(f"the manifests count {snapshot.rows} messages, the files have {found}")
            )
        return flaws

    def _read_footers(self, paths: list[str]) -> list[Footer]:
        """Read the footers of files, which also proves that the files are complete."""
        with ThreadPoolExecutor(_CONCURRENT_FOOTERS) as pool:
            return list(pool.map(self._read_footer, paths))

    def _read_footer(self, path: str) -> Footer:
        with self._files.open_input_file(f"{self._root}/{path}") as file:
            metadata = pq.read_metadata(file)
        lowest: dict[str, Any] = {}
        highest: dict[str, Any] = {}
        for group in range(metadata.num_row_groups):
            for index in range(metadata.num_columns):
                column = metadata.row_group(group).column(index)
                name = column.path_in_schema
                stats = column.statistics if name in _BOUNDED else None
                if stats is not None and stats.has_min_max:
                    lowest[name] = min(lowest.get(name, stats.min), stats.min)
                    highest[name] = max(highest.get(name, stats.max), stats.max)
        return Footer(metadata.num_rows, lowest, highest)

    def _sync(self, paths: Iterable[str]) -> None:
        """Make files and their folders durable, if the file system is local."""
        if not isinstance(self._files, fs.LocalFileSystem):
            return
        full = {f"{self._root}/{path}" for path in paths}
        folders = {self._root}
        for path in full:
            while (path := posixpath.dirname(path)) not in folders:
                folders.add(path)
        for path in [*sorted(full), *sorted(folders, reverse=True)]:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def _list_sizes(self, folder: str) -> list[tuple[str, int]]:
        """Return the files under a folder, relative to the lake, with their sizes."""
        selector = fs.FileSelector(
            f"{self._root}/{folder}".rstrip("/"), recursive=True, allow_not_found=True
        )
        found = self._files.get_file_info(selector)
        return [
            (posixpath.relpath(info.path, self._root), info.size)
            for info in found
            if info.type is fs.FileType.File
        ]


def open_lake(uri: str, kind: str = "") -> Lake:
    """Return the lake at a URI; ``kind`` is the kind of a new lake.

    Raises:
        ConfigError: The lake is of another kind, the kind needs a package, or the URI is a file.
    """
    if kind and kind not in FORMATS:
        raise ConfigError(f"the format {kind!r} must be one of {', '.join(FORMATS)}")
    files, root = _open_file_system(uri.rstrip("/"))
    if files.get_file_info(root).type is fs.FileType.File:
        raise ConfigError(f"{uri} is a file, but a lake is a directory")
    folders = {DELTA: f"{root}/_delta_log", PARQUET: f"{root}/manifest"}
    present = [
        known
        for known, folder in folders.items()
        if files.get_file_info(folder).type is not fs.FileType.NotFound
    ]
    if kind and present and kind not in present:
        raise ConfigError(f"{uri} is a lake of the format {present[0]}, not {kind}")
    if (present or [kind or PARQUET])[0] == PARQUET:
        from rocketpost.spark.lake.parquet import ParquetLake

        return ParquetLake(uri)
    try:
        from rocketpost.spark.lake.delta import DeltaLake
    except ImportError:
        raise ConfigError("Delta tables need a package: pip install 'rocketpost[delta]'") from None
    return DeltaLake(uri)


def check_topics(wanted: Iterable[str], known: Iterable[str], *, where: str) -> None:
    """Check that all topics exist, because checks of a missing topic would find nothing.

    Raises:
        ConfigError: A topic is missing; the text lists the existing ones, the most similar first.
    """
    present = sorted(known)
    missing = [topic for topic in wanted if topic not in present]
    if missing:
        names = f"there are {list_similar(missing[0], present)}" if present else "there is none"
        raise ConfigError(f"the {where} has no topic {', '.join(missing)}; {names}")


def coverage_flaws(batches: list[Batch]) -> list[Flaw]:
    """Return the gaps and overlaps between the ranges of batches."""
    flaws: list[Flaw] = []
    ends: Offsets = {}
    for batch in batches:
        for each in batch.ranges:
            end = ends.get(each.queue, each.start)
            if each.start > end:
                flaws.append(Flaw(f"{each.queue}: offsets {end} to {each.start} are missing"))
            elif each.start < end:
                flaws.append(Flaw(f"{each.queue}: offsets {each.start} to {end} exist twice"))
            ends[each.queue] = max(end, each.end)
    return flaws


def valid_batches(batches: Iterable[Batch]) -> list[Batch]:
    """Return the batches that no other batch replaces, in the order of their ranges."""
    every = list(batches)
    replaced = {number for batch in every for number in batch.replaces}
    return sorted(
        (batch for batch in every if batch.number not in replaced),
        key=lambda batch: min(batch.replaces, default=batch.number),
    )


def _open_file_system(uri: str) -> tuple[fs.FileSystem, str]:
    if "://" in uri or uri.startswith("file:"):
        try:
            files, root = fs.FileSystem.from_uri(uri)
        except pa.ArrowInvalid as error:
            raise ConfigError(f"the lake {uri} cannot be opened: {error}") from None
        return files, root.rstrip("/")
    return fs.LocalFileSystem(), os.path.abspath(uri)


def _is_data(path: str) -> bool:
    return path.endswith(".parquet") and not posixpath.basename(path).startswith(("_", "."))
