"""A lake as a Delta table that any Delta reader can read, partitioned by topic and date.

Spark writes the files, and one commit of the table adds them. The commit also has the application
transaction ``rocketpost.archive`` with the number of the batch, and the manifest (``rocketpost`` in
its commit information). So the log of the table is the only source of truth: two runs cannot commit
the same batch, and a batch is committed with its offsets or not at all.

Maintenance of the files by other tools keeps the offsets: ``OPTIMIZE`` rewrites files, ``VACUUM``
deletes files that are not valid. Commits are kept forever, because they prove what is archived.
After one of our compactions, earlier commits are no longer needed for that.
"""

from __future__ import annotations

import json
import time
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from rocketpost.errors import StoreError
from rocketpost.spark.lake.lake import (
    COLUMNS,
    DELTA,
    Batch,
    BatchExists,
    DataFile,
    Footer,
    Lake,
    Snapshot,
    valid_batches,
)

APPLICATION: Final = "rocketpost.archive"
MANIFEST: Final = "rocketpost"
PARTITIONED_BY: Final = ("topic", "date")
_CONFIGURATION: Final = {
    "delta.enableExpiredLogCleanup": "false",
    "delta.logRetentionDuration": "interval 36500 days",
}
_UNKNOWN_FEATURES: Final = frozenset({"deletionVectors", "columnMapping"})
"""Table features with which the files alone do not determine the content."""
_HISTORY_READ: Final = 64


class DeltaLake(Lake):
    """A lake whose manifests are in the log of a Delta table."""

    kind = DELTA

    def snapshot(self) -> Snapshot:
        """Return the valid batches.

        Raises:
            StoreError: The table cannot be read, or its log lacks a manifest.
        """
        table = self._table()
        if table is None:
            return Snapshot([], [], 0)
        files = [_data_file(row) for row in _adds(table)]
        return Snapshot(valid_batches(_manifests(table, self.uri)), files, _next_number(table))

    def commit(self, batch: Batch, *, base: Snapshot | None = None) -> None:
        """Make a batch valid, completely and durably.

        Raises:
            BatchExists: The batch was already committed.
            StoreError: Another process changed files.
        """
        table = self._table() or self._create_table()
        if _next_number(table) != batch.number:
            raise BatchExists(
                f"batch {batch.number} of {self.uri} exists already: another run is writing to it"
            )
        known = {_data_file(row).path: row for row in _adds(table)} if base is not None else {}
        if base is not None and set(known) != {file.path for file in base.files}:
            raise StoreError(
                f"the files of {self.uri} changed in the meantime; nothing was compacted"
            )
        fresh = [file for file in batch.files if file.path not in known]
        gone = set(known) - {file.path for file in batch.files}
        footers = self._read_footers([file.path for file in fresh])
        self._sync([file.path for file in fresh])
        is_new_data = not batch.replaces
        actions: list[AddAction | RemoveAction] = [
            _add(file, footer, is_new_data) for file, footer in zip(fresh, footers, strict=True)
        ]
        actions += [_remove(known[path]) for path in sorted(gone)]
        properties = CommitProperties(
            custom_metadata={MANIFEST: json.dumps(batch.to_json())},
            app_transactions=[Transaction(APPLICATION, batch.number)],
        )
        try:
            table.create_write_transaction(
                actions, "append", _SCHEMA, list(PARTITIONED_BY), commit_properties=properties
            )
        except CommitFailedError as error:
            raise BatchExists(
                f"batch {batch.number} of {self.uri} was not committed: another run is "
                f"writing to it ({error})"
            ) from error
        before = table.version()  # of the version that was read; the commit has not changed it
        table.update_incremental()
        self._sync(map(_log_file, range(before + 1, table.version() + 1)))

    def sweep(self, kept: Snapshot) -> None:
        """Delete files that have not been valid for longer than the retention of the table."""
        table = self._table()
        if table is not None:
            table.vacuum(dry_run=False, full=True)

    def _table(self) -> DeltaTable | None:
        try:
            table = DeltaTable(self.uri)
        except TableNotFoundError:
            return None
        except DeltaError as error:
            raise StoreError(f"the Delta table {self.uri} cannot be read: {error}") from error
        unknown = _UNKNOWN_FEATURES & set(table.protocol().reader_features or ())
        if unknown:
            raise StoreError(
                f"the Delta table {self.uri} uses {', '.join(sorted(unknown))}, so its "
                "files alone do not show its contents"
            )
        return table

    def _create_table(self) -> DeltaTable:
        """Create the table; another run may do so at the same time."""
        self._files.create_dir(self._root, recursive=True)
        table = DeltaTable.create(
            self.uri,
            _SCHEMA,
            mode="ignore",
            partition_by=list(PARTITIONED_BY),
            name="messages",
            description="Messages of RocketMQ topics, archived by rocketpost",
            configuration=_CONFIGURATION,
        )
        self._sync([_log_file(0)])
        return table


_SCHEMA: Final = pa.schema(
    [*[column.field for column in COLUMNS], pa.field("date", pa.date32(), nullable=True)]
)


def _manifests(table: DeltaTable, where: str) -> list[Batch]:
    """Return the batches of the log, newest first, back to the first one or a compaction.

    Raises:
        StoreError: A batch is missing.
    """
    wanted = _next_number(table) - 1
    count = _HISTORY_READ
    while True:
        history = table.history(count)
        found = [
            Batch.from_json(commit[MANIFEST], where=f"of version {commit['version']} of {where}")
            for commit in history
            if MANIFEST in commit
        ]
        last = next((index for index, batch in enumerate(found) if batch.replaces), None)
        found = found if last is None else found[: last + 1]
        is_all = last is not None or len(history) < count
        if is_all:
            break
        count *= 8
    numbers = [batch.number for batch in found]
    end = found[-1].number if found and found[-1].replaces else 0
    missing = sorted(set(range(end, wanted + 1)) - set(numbers))
    if missing:
        raise StoreError(
            f"the log of the Delta table {where} has no manifest of batch {missing[0]}, "
            f"although {wanted + 1} were committed; the log may have been cleaned up"
        )
    return found


def _log_file(version: int) -> str:
    return f"_delta_log/{version:020d}.json"


def _next_number(table: DeltaTable) -> int:
    version = table.transaction_version(APPLICATION)
    return 0 if version is None else version + 1


def _adds(table: DeltaTable) -> list[dict[str, Any]]:
    return pa.table(table.get_add_actions(flatten=True)).to_pylist()  # type: ignore[no-any-return]


def _data_file(row: dict[str, Any]) -> DataFile:
    # Paths in the log are URL-encoded.
    return DataFile(unquote(row["path"]), row["size_bytes"], row["num_records"])


def _add(file: DataFile, footer: Footer, is_new_data: bool) -> AddAction:
    stats = {
        "numRecords": footer.rows,
        "minValues": {name: _stat(value) for name, value in footer.lowest.items()},
        "maxValues": {name: _stat(value) for name, value in footer.highest.items()},
        "nullCount": dict.fromkeys(footer.lowest, 0),
    }
    return AddAction(
        path=file.path,
        size=file.bytes,
        partition_values=_partition(file.path),
        modification_time=int(time.time() * 1000),
        data_change=is_new_data,
        stats=json.dumps(stats),
    )


def _remove(row: dict[str, Any]) -> RemoveAction:
    return RemoveAction(
        path=unquote(row["path"]),
        data_change=False,
        deletion_timestamp=int(time.time() * 1000),
        size=row["size_bytes"],
        partition_values={name: str(row[f"partition.{name}"]) for name in PARTITIONED_BY},
    )


def _partition(path: str) -> dict[str, str | None]:
    """Return the partition of a file from the names of its folders."""
    pairs = dict(part.split("=", 1) for part in path.split("/")[:-1] if "=" in part)
    return {name: unquote(pairs[name]) for name in PARTITIONED_BY}


def _stat(value: object) -> object:
    """Return a bound in the form of Delta's JSON, with times truncated to milliseconds."""
    if hasattr(value, "isoformat"):
        return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return value
