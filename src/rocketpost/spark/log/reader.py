"""Readers of store directories, without a broker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from rocketpost.client.compression import decompress
from rocketpost.client.consumer.fetch import unwrap_batch
from rocketpost.codec.record import CRC_MASK, decode_record, encode_record
from rocketpost.errors import RocketpostError
from rocketpost.model.properties import split_keys
from rocketpost.model.sysflag import INNER_BATCH, NEED_UNWRAP
from rocketpost.spark.log import plan as log_plan
from rocketpost.spark.log.files import (
    OnCorrupt,
    Stopped,
    handle_damage,
    read_chunks,
    split_segment,
)
from rocketpost.spark.log.key_lookup import read_sizes
from rocketpost.spark.log.options import LogOptions
from rocketpost.spark.log.plan import LogTask
from rocketpost.spark.log.queue_reads import Pending, QueueRange, find_places, read_places
from rocketpost.spark.log.visibility import Visibility
from rocketpost.spark.records import columns as all_columns
from rocketpost.spark.records.chunk import Chunk
from rocketpost.spark.records.columns import Column
from rocketpost.spark.records.decode import decode
from rocketpost.spark.records.fields import Host, Ints, Mask, read_numbers
from rocketpost.spark.source.batches import BATCH_BYTES, BATCH_ROWS
from rocketpost.spark.source.predicates import (
    NumberBounds,
    Predicates,
    TextBounds,
    extract_predicates,
)
from rocketpost.spark.user_errors import user_facing_errors
from rocketpost.spark.workers.preparation import prepare_worker
from rocketpost.store.layout import Layout

_TEXTS: Final = {
    name: all_columns.select_columns([(name, "string")])
    for name in ("topic", "tags", "keys", "uniqKey")
}
_WRAPPED: Final = INNER_BATCH | NEED_UNWRAP
_NEW: Final = Pending(0, -1)
_NO_TEXT: Final = "\ufffd"
"""The character that replaces bytes that are not text; topics have ASCII names."""


def keep_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch without changes."""
    return batch


class LogReader(DataSourceReader):
    """Reads the requested messages of one or several stores."""

    def __init__(
        self,
        options: LogOptions,
        columns: tuple[Column, ...],
        *,
        shown: Callable[[pa.RecordBatch], pa.RecordBatch] = keep_batch,
    ) -> None:
        self.options = options
        self.columns = columns
        self.shown = shown
        self.requested_bounds: Predicates = options.requested_bounds

    @user_facing_errors
    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks; runs on the driver."""
        return [
            task
            for path in self.options.paths
            for task in log_plan.plan_tasks(path, self.options, self.requested_bounds)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a task."""
        if not isinstance(partition, LogTask):
            return  # Spark creates a partition if there is none
        prepare_worker()
        on_corrupt = OnCorrupt(self.options.on_corrupt)
        layout = Layout(partition.root)
        visibility = None
        if self.options.view == "consumer":
            visibility = Visibility(layout, partition.state, on_corrupt)
        try:
            for chunk in self._chunks(partition, layout, visibility, on_corrupt):
                for batch in self._batches(chunk, on_corrupt):
                    yield self.shown(batch)
        except Stopped:
            return

    # Chunks of visible records.

    def _chunks(
        self,
        task: LogTask,
        layout: Layout,
        visibility: Visibility | None,
        on_corrupt: OnCorrupt,
    ) -> Iterator[Chunk]:
        for range_ in task.ranges:
            assert task.window is not None
            dead_before = task.state.dead_before.get(range_.topic, 0)
            for some in find_places(layout, range_, task.window, dead_before):
                for chunk in read_places(some, task.segments, on_corrupt):
                    yield _drop_wrong_queue(chunk, range_, on_corrupt)
        if len(task.positions):
            found = read_sizes(task.positions, task.segments, on_corrupt)
            for chunk in read_places(found, task.segments, on_corrupt):
                yield from self._select_visible(chunk, visibility, on_corrupt)
        if task.pending is not None:
            task = _extend_task(task, on_corrupt)
        for split in task.splits:
            for chunk in read_chunks(split, on_corrupt):
                if task.pending is not None:
                    chunk = _select_lacking(chunk, task.pending, on_corrupt)
                yield from self._select_visible(chunk, visibility, on_corrupt)

    def _select_visible(
        self, chunk: Chunk, visibility: Visibility | None, on_corrupt: OnCorrupt
    ) -> Iterator[Chunk]:
        """Yield the visible messages of a chunk, each as a record of its own."""
        chunk = self._select_in_bounds(chunk)
        if visibility is not None and len(chunk):
            chunk = _drop_unreadable_topics(chunk, on_corrupt)
            if not self.requested_bounds.topics.is_any:
                queues = chunk.fields.queues()
                topics = pa.array([topic for topic, _ in queues.names], pa.string())
                chunk = chunk.only(
                    _matches_texts(topics, self.requested_bounds.topics)[queues.numbers]
                )
            chunk = chunk.only(visibility.of(chunk.fields))
            if _has_batches(chunk):
                if self.options.check_crc:  # records that were encoded again have the right CRC
                    chunk = _drop_corrupt_bodies(chunk, on_corrupt)
                chunk = _unwrap_batches(chunk, on_corrupt)
        if len(chunk):
            yield chunk

    def _select_in_bounds(self, chunk: Chunk) -> Chunk:
        """Drop records outside of bounds of fields in their heads."""
        asked = self.requested_bounds
        if not asked.store_ms.is_any:
            chunk = chunk.only(_matches_numbers(_store_ms(chunk), asked.store_ms))
        if not asked.positions.is_any:
            chunk = chunk.only(_matches_numbers(chunk.fields.long("position"), asked.positions))
        if not asked.queue_ids.is_any:
            chunk = chunk.only(_matches_numbers(chunk.fields.number("queueId"), asked.queue_ids))
        return chunk

    # Record batches.

    def _batches(self, chunk: Chunk, on_corrupt: OnCorrupt) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._decode(chunk, on_corrupt)
        except RocketpostError:
            readable = [self._is_readable(chunk, at, on_corrupt) for at in chunk.starts.tolist()]
            if all(readable):
                raise
            yield from self._decode(chunk.only(np.array(readable, np.bool_)), on_corrupt)

    def _decode(self, chunk: Chunk, on_corrupt: OnCorrupt) -> list[pa.RecordBatch]:
        chunk = self._select_requested(self._select_in_bounds(chunk))
        if self.options.check_crc:
            chunk = _drop_corrupt_bodies(chunk, on_corrupt)
        return [
            decode(
                some,
                self.columns,
                broker_name=self.options.broker_name or None,
                decompressed=self.options.read_decoded,
            )
            for some in _split_chunk(chunk)
        ]

    def _select_requested(self, chunk: Chunk) -> Chunk:
        """Return the requested messages of a chunk."""
        asked = self.requested_bounds
        if not asked.offsets.is_any:
            chunk = chunk.only(_matches_numbers(chunk.fields.long("queueOffset"), asked.offsets))
        for name, texts in (
            ("topic", asked.topics),
            ("tags", asked.tags),
            ("keys", asked.keys),
            ("uniqKey", asked.unique_keys),
        ):
            if not texts.is_any and len(chunk):
                chunk = chunk.only(_matches_texts(_column(chunk, name), texts))
        words = self.options.words
        if words and len(chunk):
            keys = _column(chunk, "keys").to_pylist()
            hits = [text is not None and not words.isdisjoint(split_keys(text)) for text in keys]
            chunk = chunk.only(np.array(hits, np.bool_))
        return chunk

    def _is_readable(self, chunk: Chunk, start: int, on_corrupt: OnCorrupt) -> bool:
        try:
            record = decode_record(chunk.data, start, verify_crc=False)
            if self.options.read_decoded:
                decompress(bytes(record.body), record.sys_flag)
        except RocketpostError as error:
            position = int.from_bytes(chunk.data[start + 28 : start + 36], "big")
            handle_damage(f"the record at position {position} cannot be read: {error}", on_corrupt)
            return False
        return True


class FilteringLogReader(LogReader):
    """A reader that takes filters of a query, which Spark allows only by a setting."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Store the bounds of filters; Spark applies the filters to the rows."""
        self.requested_bounds = log_plan.intersect_predicates(
            self.options.requested_bounds, extract_predicates(filters)
        )
        return filters


def _drop_wrong_queue(chunk: Chunk, range_: QueueRange, on_corrupt: OnCorrupt) -> Chunk:
    """Drop records that belong to another queue than their entries."""
    chunk = _drop_unreadable_topics(chunk, on_corrupt)
    queues = chunk.fields.queues()
    is_it = np.array([name == (range_.topic, range_.queue_id) for name in queues.names], np.bool_)
    return chunk.only(is_it[queues.numbers])


def _select_lacking(
    chunk: Chunk, pending: dict[tuple[str, int], Pending], on_corrupt: OnCorrupt
) -> Chunk:
    """Return the records of a chunk that queues lack."""
    chunk = _drop_unreadable_topics(chunk, on_corrupt)
    queues = chunk.fields.queues()
    known = np.array([pending.get(name, _NEW).next_offset for name in queues.names], np.int64)
    return chunk.only(chunk.fields.long("queueOffset") >= known[queues.numbers])


def _extend_task(task: LogTask, on_corrupt: OnCorrupt) -> LogTask:
    """Return the task extended to the ends of queues whose next messages are missing.

    Queues lack only messages after a known position, unless the store was copied while a broker
    ran, and its files at different times.
    """
    assert task.pending is not None
    next_: dict[tuple[str, int], int] = {}
    for split in task.splits:
        for chunk in read_chunks(split, on_corrupt):
            queues = _select_lacking(chunk, task.pending, on_corrupt).fields.queues()
            for queue, offset in zip(queues.names, queues.lows, strict=True):
                if queue in task.pending:
                    next_[queue] = min(next_.get(queue, offset), offset)
    back = [
        task.pending[queue].newest
        for queue, offset in next_.items()
        if offset > task.pending[queue].next_offset
    ]
    if not back:
        return task
    first = task.splits[0]
    end = first.segment.start + first.begin
    more = [
        part
        for segment in task.segments
        for part in split_segment(segment, segment.limit, low=min(back), high=end)
    ]
    return LogTask(task.root, task.state, (*more, *task.splits), pending=task.pending)


def _drop_unreadable_topics(chunk: Chunk, on_corrupt: OnCorrupt) -> Chunk:
    """Drop records whose topic is not text."""
    queues = chunk.fields.queues()
    wrong = [_NO_TEXT in topic for topic, _ in queues.names]
    if not any(wrong):
        return chunk
    is_wrong = np.array(wrong, np.bool_)[queues.numbers]
    for position in chunk.fields.long("position")[is_wrong].tolist():
        handle_damage(f"the topic of the record at position {position} is not text", on_corrupt)
    return chunk.only(~is_wrong)


def _store_ms(chunk: Chunk) -> Ints:
    return read_numbers(chunk.data, chunk.fields.host_offsets(Host.STORE) - 8, 8)


def _has_batches(chunk: Chunk) -> bool:
    """Return whether any record is a batch of messages."""
    if chunk.fields.flags() & _WRAPPED != _WRAPPED:
        return False
    return bool((chunk.fields.number("sysFlag") & _WRAPPED == _WRAPPED).any())


def _unwrap_batches(chunk: Chunk, on_corrupt: OnCorrupt) -> Chunk:
    """Return a record for every message of batches that are stored as one record."""
    parts: list[bytes | memoryview] = []
    for start in chunk.starts.tolist():
        record = decode_record(chunk.data, start, verify_crc=False)
        try:
            messages = unwrap_batch(record, first=0)
        except RocketpostError as error:
            handle_damage(
                f"the record at position {record.position} cannot be read: {error}", on_corrupt
            )
            continue
        for message in messages:
            parts += encode_record(message)
    data = b"".join(parts)
    starts, at = [], 0
    while at < len(data):
        starts.append(at)
        at += int.from_bytes(data[at : at + 4], "big")
    return Chunk(data, np.array(starts, np.int64))


def _column(chunk: Chunk, name: str) -> pa.Array:
    return decode(chunk, _TEXTS[name], broker_name=None).column(0)


def _matches_texts(array: pa.Array, texts: TextBounds) -> Mask:
    if texts.is_any:
        return np.ones(len(array), np.bool_)
    hits = pc.starts_with(array, texts.prefix)
    if texts.values is not None:
        hits = pc.and_(hits, pc.is_in(array, pa.array(sorted(texts.values), pa.string())))
    return np.asarray(pc.fill_null(hits, False), np.bool_)


def _matches_numbers(values: Ints | npt.NDArray[np.int32], bounds: NumberBounds) -> Mask:
    hits = np.ones(len(values), np.bool_)
    if bounds.low is not None:
        hits &= values >= bounds.low
    if bounds.high is not None:
        hits &= values <= bounds.high
    if bounds.values is not None:
        hits &= np.isin(values, sorted(bounds.values))
    return hits


def _split_chunk(chunk: Chunk) -> Iterator[Chunk]:
    """Split records into groups, limited by rows and by bytes."""
    starts, at = chunk.starts, 0
    while at < len(starts):
        limit = np.searchsorted(starts, starts[at] + BATCH_BYTES)
        end = max(at + 1, min(int(limit), at + BATCH_ROWS))
        yield Chunk(chunk.data, starts[at:end]) if end - at < len(starts) else chunk
        at = end


def _drop_corrupt_bodies(chunk: Chunk, on_corrupt: OnCorrupt) -> Chunk:
    """Drop records whose bodies do not match their CRCs."""
    intact = np.ones(len(chunk), np.bool_)
    for row, start in enumerate(chunk.starts.tolist()):
        record = decode_record(chunk.data, start, verify_crc=False)
        if record.body and crc32(record.body) & CRC_MASK != record.body_crc:
            what = f"the body of the record at position {record.position} fails its CRC"
            handle_damage(what, on_corrupt)
            intact[row] = False
    return chunk.only(intact)
