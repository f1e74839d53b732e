"""A lake of archived messages: Parquet files, and manifests that say what they hold.

    data/batch=00000007-5f0c2a91/topic=Orders/date=2026-11-16/part-*.parquet

A batch counts when its manifest is committed, which is done at once or not at all: what a killed
run left in ``data`` is in no manifest. A manifest has the offsets of every queue that its batch
covers, so that holes and overlaps can be seen without reading a file, and the next offset to
archive is where the manifests end. One run at a time writes to a lake in a directory: others wait
for their turn, and each deletes first what a killed one left. Elsewhere nobody can be kept waiting:
of two runs that commit the same batch one fails, and goes on behind the other.

Where manifests are, and which files count, is the business of the two kinds of lakes:
``parquet_lake`` and ``delta_lake``. ``open_lake`` finds out which one is there.
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
from rocketpost.spark.lake.file_lock import locked
from rocketpost.spark.records import columns
from rocketpost.spark.source.plan import Offsets, QueueKey, Range, flatten_offsets, nest_offsets
from rocketpost.spark.suggestions import list_similar

VERSION: Final = 1
PARQUET: Final = "parquet"
DELTA: Final = "delta"
FORMATS: Final = (PARQUET, DELTA)
DATA: Final = "data"
COLUMNS: Final = columns.nullable(columns.full())
"""What the files have. None of it is required in any file: so those of all times are alike."""
_BOUNDED: Final = frozenset({"brokerName", "queueId", "queueOffset", "storeTimestamp"})
_FOOTERS_AT_ONCE: Final = 8
_LOCK: Final = ".writing"
_FOLDER: Final = re.compile(r"batch=(\d+)-")

logger = logging.getLogger(__name__)


class DataFile(NamedTuple):
    """One Parquet file; its path is relative to the lake."""

    path: str
    bytes: int
    rows: int | None = None
    """How many messages it has; None if nobody noted it."""


class Footer(NamedTuple):
    """Contents of the end of a Parquet file."""

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
    """What was gone before it could be archived, in words."""
    replaces: tuple[int, ...] = ()
    """The batches that this one was compacted from."""

    def to_json(self) -> dict[str, Any]:
        """Return the manifest, without the files."""
        return {
            "v": VERSION,
            "batch": self.number,
            "from": nest_offsets({piece.queue: piece.start for piece in self.ranges}),
            "until": nest_offsets({piece.queue: piece.end for piece in self.ranges}),
            "rows": self.rows,
            "createdMs": self.created_ms,
            "lost": self.lost,
            "replaces": self.replaces,
        }

    @staticmethod
    def from_json(data: str | bytes, *, where: str) -> Batch:
        """Return the batch of a manifest.

        Raises:
            StoreError: It is none; ``where`` says where it is from.
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


class BatchTaken(StoreError):  # noqa: N818 - named after what happened
    """A batch of this number counts already: another run writes to the same lake."""


class Flaw(NamedTuple):
    """Something that is wrong with a lake, in words."""

    text: str


class Snapshot(NamedTuple):
    """Contents of a lake at one moment: the batches that count, in order, and their files."""

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
            for piece in batch.ranges:
                known = found.get(piece.queue, piece)
                found[piece.queue] = Range(
                    piece.queue, min(known.start, piece.start), max(known.end, piece.end)
                )
        return found

    @property
    def topics(self) -> frozenset[str]:
        """Whose messages were archived."""
        return frozenset(queue.topic for batch in self.batches for queue, *_ in batch.ranges)

    @property
    def watermark(self) -> Offsets:
        """The next offset to archive, for every queue that was archived."""
        return {queue: piece.end for queue, piece in self.ranges.items()}


class Lake(ABC):
    """A lake at a path or URI that Arrow can open."""

    kind: str

    def __init__(self, uri: str) -> None:
        self.uri = uri.rstrip("/")
        self._files, self._root = _opened(self.uri)

    # What the kinds of lakes do differently.

    @abstractmethod
    def snapshot(self) -> Snapshot:
        """Return what counts now; what was compacted is left out.

        Raises:
            StoreError: A manifest cannot be read.
        """

    def check_writable(self) -> None:  # noqa: B027 - most are
        """Refuse a place where two runs cannot be kept apart.

        Raises:
            ConfigError: This is one.
        """

    @abstractmethod
    def commit(self, batch: Batch, *, base: Snapshot | None = None) -> None:
        """Make a batch count, at once and for good.

        Args:
            batch: What was archived; or, if it replaces others, all that the lake then holds.
            base: What the lake held when the files of a replacing batch were written.

        Raises:
            BatchTaken: A batch of this number counts already.
        """

    @abstractmethod
    def sweep(self, kept: Snapshot) -> None:
        """Delete files that do not count and that nobody can be reading any more."""

    # What they have in common.

    @contextlib.contextmanager
    def writing(self, *, is_over: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """Keep other runs from writing while the block lasts, where they can be kept.

        Waits for a run that is at it. Then deletes the folders of batches that do not count: their
        runs are dead. In places other than directories it does nothing.

        Args:
            is_over: Asked now and then whether to stop waiting.

        Raises:
            ClientError: Waiting was stopped.
            StoreError: The lake cannot be locked or cleaned.
        """
        if not isinstance(self._files, fs.LocalFileSystem):
            yield
            return
        try:
            os.makedirs(self._root, exist_ok=True)
            with locked(f"{self._root}/{_LOCK}", is_over=is_over):
                self._discard_leftovers()
                yield
        except OSError as error:
            raise StoreError(f"{self.uri} cannot be written to: {error}") from error

    def _discard_leftovers(self) -> None:
        """Delete the folders of batches of which no file counts, and never will."""
        snapshot = self.snapshot()
        counting = {posixpath.join(*file.path.split("/")[:2]) for file in snapshot.files}
        data = f"{self._root}/{DATA}"
        for name in sorted(os.listdir(data)) if os.path.isdir(data) else []:
            folder = f"{DATA}/{name}"
            number = _FOLDER.match(name)
            # Files that a compaction replaced have lower numbers and may still be read.
            if number and int(number[1]) >= snapshot.next_number and folder not in counting:
                logger.info("deleting what a killed run left: folder=%s", folder)
                self.discard(folder)

    def fresh_folder(self, number: int) -> str:
        """Return a new folder for the files of a batch, relative to the lake.

        No two attempts have the same one, so a second run cannot touch the files of the first.
        """
        return f"{DATA}/batch={number:08d}-{uuid.uuid4().hex[:8]}"

    def uri_of(self, path: str) -> str:
        """Return where something of the lake is, in Spark's words."""
        return f"{self.uri}/{path}" if path else self.uri

    def written(self, folder: str) -> list[DataFile]:
        """Return the files that lie in a folder, with the rows that they have."""
        found = sorted((path, size) for path, size in self._sizes(folder) if _is_data(path))
        footers = self._footers([path for path, _ in found])
        return [
            DataFile(path, size, footer.rows)
            for (path, size), footer in zip(found, footers, strict=True)
        ]

    def discard(self, folder: str) -> None:
        """Delete a folder whose files do not count."""
        path = f"{self._root}/{folder}"
        if self._files.get_file_info(path).type is not fs.FileType.NotFound:
            self._files.delete_dir(path)

    def flaws(self) -> list[Flaw]:
        """Return holes, overlaps, and files that are missing or changed."""
        snapshot = self.snapshot()
        flaws = coverage_flaws(snapshot.batches)
        there = dict(self._sizes(""))
        flaws += [
            Flaw(f"{file.path} is missing or has another size")
            for file in snapshot.files
            if there.get(file.path) != file.bytes
        ]
        noted = [file.rows for file in snapshot.files]
        found = sum(rows for rows in noted if rows is not None)
        if None not in noted and found != snapshot.rows:
            flaws.append(
                Flaw(f"the manifests count {snapshot.rows} messages, the files have {found}")
            )
        return flaws

    def _footers(self, paths: list[str]) -> list[Footer]:
        """Read the ends of files, which also proves that they were written whole."""
        with ThreadPoolExecutor(_FOOTERS_AT_ONCE) as pool:
            return list(pool.map(self._footer, paths))

    def _footer(self, path: str) -> Footer:
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
        """Make files and their folders durable where that is ours to do."""
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

    def _sizes(self, folder: str) -> list[tuple[str, int]]:
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
    """Return the lake at a place, of the kind that it has; a new one is of the wished kind.

    Raises:
        ConfigError: It is of another kind than wished, that kind needs a package, or it is a file.
    """
    if kind and kind not in FORMATS:
        raise ConfigError(f"the format {kind!r} is none of {', '.join(FORMATS)}")
    files, root = _opened(uri.rstrip("/"))
    if files.get_file_info(root).type is fs.FileType.File:
        raise ConfigError(f"{uri} is a file, and a lake is a directory")
    folders = {DELTA: f"{root}/_delta_log", PARQUET: f"{root}/manifest"}
    there = [
        known
        for known, folder in folders.items()
        if files.get_file_info(folder).type is not fs.FileType.NotFound
    ]
    if kind and there and kind not in there:
        raise ConfigError(f"{uri} is a lake of the format {there[0]}, not {kind}")
    if (there or [kind or PARQUET])[0] == PARQUET:
        from rocketpost.spark.lake.parquet import ParquetLake

        return ParquetLake(uri)
    try:
        from rocketpost.spark.lake.delta import DeltaLake
    except ImportError:
        raise ConfigError("Delta tables need a package: pip install 'rocketpost[delta]'") from None
    return DeltaLake(uri)


def check_topics(wanted: Iterable[str], known: Iterable[str], *, where: str) -> None:
    """Refuse topics that a place does not have: nothing would be found wrong with none.

    Raises:
        ConfigError: One is not there; those that are there are named, the most alike first.
    """
    there = sorted(known)
    strange = [topic for topic in wanted if topic not in there]
    if strange:
        names = f"there are {list_similar(strange[0], there)}" if there else "there is none"
        raise ConfigError(f"the {where} has no topic {', '.join(strange)}; {names}")


def coverage_flaws(batches: list[Batch]) -> list[Flaw]:
    """Return holes and overlaps of what batches cover, in their order."""
    flaws: list[Flaw] = []
    ends: Offsets = {}
    for batch in batches:
        for piece in batch.ranges:
            end = ends.get(piece.queue, piece.start)
            if piece.start > end:
                flaws.append(Flaw(f"{piece.queue}: offsets {end} to {piece.start} are missing"))
            elif piece.start < end:
                flaws.append(Flaw(f"{piece.queue}: offsets {piece.start} to {end} are there twice"))
            ends[piece.queue] = max(end, piece.end)
    return flaws


def counting(batches: Iterable[Batch]) -> list[Batch]:
    """Return the batches that no other one replaces, in the order of what they cover."""
    every = list(batches)
    replaced = {number for batch in every for number in batch.replaces}
    return sorted(
        (batch for batch in every if batch.number not in replaced),
        key=lambda batch: min(batch.replaces, default=batch.number),
    )


def _opened(uri: str) -> tuple[fs.FileSystem, str]:
    if "://" in uri or uri.startswith("file:"):
        try:
            files, root = fs.FileSystem.from_uri(uri)
        except pa.ArrowInvalid as error:
            raise ConfigError(f"the lake {uri} cannot be opened: {error}") from None
        return files, root.rstrip("/")
    return fs.LocalFileSystem(), os.path.abspath(uri)


def _is_data(path: str) -> bool:
    return path.endswith(".parquet") and not posixpath.basename(path).startswith(("_", "."))
