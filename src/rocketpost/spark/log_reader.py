"""Reads a store directory as a table, with no broker involved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from rocketpost.client.compression import decompress
from rocketpost.client.fetch import unwrapped
from rocketpost.codec.record import CRC_MASK, decode_record, encode_record
from rocketpost.errors import RocketpostError
from rocketpost.model.sysflag import BORN_HOST_V6, INNER_BATCH, NEED_UNWRAP
from rocketpost.spark import columns as all_columns
from rocketpost.spark import log_plan
from rocketpost.spark.batches import BATCH_BYTES, BATCH_ROWS
from rocketpost.spark.columns import Column
from rocketpost.spark.decode import decode
from rocketpost.spark.fields import Ints, heads, numbers
from rocketpost.spark.key_lookup import sized
from rocketpost.spark.log_files import (
    Chunk,
    Mask,
    OnCorrupt,
    Stopped,
    chunks,
    damaged,
    splits,
)
from rocketpost.spark.log_options import LogOptions, words_of
from rocketpost.spark.log_plan import LogTask
from rocketpost.spark.predicates import Numbers, Predicates, Texts, extracted
from rocketpost.spark.queue_ranges import Pending, QueueRange, picked, places
from rocketpost.spark.telling import plainly
from rocketpost.spark.visibility import Visibility
from rocketpost.store.layout import Layout

_TEXTS: Final = {
    name: all_columns.projected([(name, "string")]) for name in ("topic", "tags", "keys", "uniqKey")
}
_WRAPPED: Final = INNER_BATCH | NEED_UNWRAP
_NEW: Final = Pending(0, -1)
_NO_TEXT: Final = "\ufffd"
"""What is decoded in place of bytes that are no text; topics have ASCII names."""


def as_decoded(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Show rows as they are."""
    return batch


class LogReader(DataSourceReader):
    """Reads what options ask for of one or several stores."""

    def __init__(
        self,
        options: LogOptions,
        columns: tuple[Column, ...],
        *,
        shown: Callable[[pa.RecordBatch], pa.RecordBatch] = as_decoded,
    ) -> None:
        self.options = options
        self.columns = columns
        self.shown = shown
        self.asked: Predicates = options.asked

    @plainly
    def partitions(self) -> Sequence[InputPartition]:
        """Return what the tasks read; runs on the driver."""
        return [
            task
            for path in self.options.paths
            for task in log_plan.tasks(path, self.options, self.asked)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a task."""
        if not isinstance(partition, LogTask):
            return  # Spark makes one of its own where there is none
        on_corrupt = OnCorrupt(self.options.on_corrupt)
        layout = Layout(partition.root)
        visibility = None
        if self.options.view == "consumer":
            visibility = Visibility(layout, partition.state)
        try:
            for chunk in self._chunks(partition, layout, visibility, on_corrupt):
                for batch in self._batches(chunk, on_corrupt):
                    yield self.shown(batch)
        except Stopped:
            return

    # -- chunks of records that a consumer sees

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
            for some in places(layout, range_, task.window, dead_before):
                for chunk in picked(some, task.segments, on_corrupt):
                    yield _of_queue(chunk, range_, on_corrupt)
        if len(task.positions):
            found = sized(task.positions, task.segments, on_corrupt)
            for chunk in picked(found, task.segments, on_corrupt):
                yield from self._seen(chunk, visibility, on_corrupt)
        if task.pending is not None:
            task = _further_back(task, self.options.split_bytes, on_corrupt)
        for split in task.splits:
            for chunk in chunks(split, on_corrupt):
                if task.pending is not None:
                    chunk = _lacking(chunk, task.pending, on_corrupt)
                yield from self._seen(chunk, visibility, on_corrupt)

    def _seen(
        self, chunk: Chunk, visibility: Visibility | None, on_corrupt: OnCorrupt
    ) -> Iterator[Chunk]:
        """Yield the messages of a chunk that a consumer sees, each as a record of its own."""
        chunk = self._in_bounds(chunk)
        if visibility is not None and len(chunk.starts):
            chunk, topics = _with_topics(chunk, on_corrupt)
            if not self.asked.topics.is_any:
                chosen = _admitted(topics, self.asked.topics)
                chunk = Chunk(chunk.data, chunk.starts[chosen])
                topics = topics.filter(pa.array(chosen))
            chunk = _visible(chunk, topics, visibility)
            wrapped = numbers(chunk.data, chunk.starts + 36, 4) & _WRAPPED == _WRAPPED
            if wrapped.any():
                if self.options.check_crc:  # what is encoded anew has a CRC that is right
                    intact = _intact(chunk.data, chunk.starts, on_corrupt)
                    chunk = Chunk(chunk.data, intact)
                chunk = _unwrapped(chunk, on_corrupt)
        if len(chunk.starts):
            yield chunk

    def _in_bounds(self, chunk: Chunk) -> Chunk:
        """Leave out what lies outside of bounds that the head of a record tells of."""
        data, starts, asked = chunk.data, chunk.starts, self.asked
        if not asked.store_ms.is_any:
            flags = numbers(data, starts + 36, 4)
            at = starts + 56 + np.where(flags & BORN_HOST_V6, 12, 0)
            starts = starts[_within(numbers(data, at, 8), asked.store_ms)]
        for numbers_, at_byte, size in (
            (asked.positions, 28, 8),
            (asked.queue_ids, 12, 4),
        ):
            if not numbers_.is_any:
                starts = starts[_within(numbers(data, starts + at_byte, size), numbers_)]
        return Chunk(data, starts)

    # -- record batches

    def _batches(self, chunk: Chunk, on_corrupt: OnCorrupt) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._decoded(chunk, on_corrupt)
        except RocketpostError:
            readable = [self._is_readable(chunk, at, on_corrupt) for at in chunk.starts.tolist()]
            if all(readable):
                raise
            starts = chunk.starts[np.array(readable, np.bool_)]
            yield from self._decoded(Chunk(chunk.data, starts), on_corrupt)

    def _decoded(self, chunk: Chunk, on_corrupt: OnCorrupt) -> list[pa.RecordBatch]:
        starts = self._chosen(self._in_bounds(chunk))
        if self.options.check_crc:
            starts = _intact(chunk.data, starts, on_corrupt)
        return [
            decode(
                chunk.data,
                some,
                self.columns,
                broker_name=self.options.broker_name or None,
                decompressed=self.options.read_decoded,
            )
            for some in _pieces(starts)
        ]

    def _chosen(self, chunk: Chunk) -> Ints:
        """Return the messages of a chunk that are asked for."""
        asked, (data, starts) = self.asked, chunk
        if not asked.offsets.is_any:
            starts = starts[_within(numbers(data, starts + 20, 8), asked.offsets)]
        for name, texts in (
            ("topic", asked.topics),
            ("tags", asked.tags),
            ("keys", asked.keys),
            ("uniqKey", asked.unique_keys),
        ):
            if not texts.is_any and len(starts):
                starts = starts[_admitted(_column(Chunk(data, starts), name), texts)]
        words = self.options.words
        if words and len(starts):
            keys = _column(Chunk(data, starts), "keys").to_pylist()
            hits = [text is not None and not words.isdisjoint(words_of(text)) for text in keys]
            starts = starts[np.array(hits, np.bool_)]
        return starts

    def _is_readable(self, chunk: Chunk, start: int, on_corrupt: OnCorrupt) -> bool:
        try:
            record = decode_record(chunk.data, start, verify_crc=False)
            if self.options.read_decoded:
                decompress(bytes(record.body), record.sys_flag)
        except RocketpostError as error:
            position = int.from_bytes(chunk.data[start + 28 : start + 36], "big")
            damaged(f"the record at position {position} cannot be read: {error}", on_corrupt)
            return False
        return True


class FilteringLogReader(LogReader):
    """Takes the filters of a query too. Spark allows that only if it is told to."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Note what filters leave to read; Spark applies them to it."""
        self.asked = log_plan.joined(self.options.asked, extracted(filters))
        return filters


def _of_queue(chunk: Chunk, range_: QueueRange, on_corrupt: OnCorrupt) -> Chunk:
    """Leave out what an entry of a queue points at by mistake."""
    chunk, topics = _with_topics(chunk, on_corrupt)
    same = numbers(chunk.data, chunk.starts + 12, 4) == range_.queue_id
    same &= np.asarray(pc.equal(topics, range_.topic))
    return chunk if same.all() else Chunk(chunk.data, chunk.starts[same])


def _lacking(chunk: Chunk, pending: dict[tuple[str, int], Pending], on_corrupt: OnCorrupt) -> Chunk:
    """Return what of a chunk queues lacked."""
    chunk, topics = _with_topics(chunk, on_corrupt)
    ids = numbers(chunk.data, chunk.starts + 12, 4).tolist()
    queues = zip(topics.to_pylist(), ids, strict=True)
    known = np.array([pending.get(queue, _NEW).next_offset for queue in queues], np.int64)
    return Chunk(chunk.data, chunk.starts[numbers(chunk.data, chunk.starts + 20, 8) >= known])


def _further_back(task: LogTask, split_bytes: int, on_corrupt: OnCorrupt) -> LogTask:
    """Return the task that reads from where every queue ends whose next message is missing.

    Queues lack their last messages only up to a place that is known, unless the store was copied
    while a broker ran, and its files at different times.
    """
    assert task.pending is not None
    next_: dict[tuple[str, int], int] = {}
    for split in task.splits:
        for chunk in chunks(split, on_corrupt):
            chunk = _lacking(chunk, task.pending, on_corrupt)
            offsets = numbers(chunk.data, chunk.starts + 20, 8).tolist()
            for queue, offset in zip(_queues(chunk), offsets, strict=True):
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
        for part in splits(segment, split_bytes, low=min(back), high=end)
    ]
    return LogTask(task.root, task.state, (*more, *task.splits), pending=task.pending)


def _queues(chunk: Chunk) -> list[tuple[str, int]]:
    ids = numbers(chunk.data, chunk.starts + 12, 4).tolist()
    return list(zip(_column(chunk, "topic").to_pylist(), ids, strict=True))


def _with_topics(chunk: Chunk, on_corrupt: OnCorrupt) -> tuple[Chunk, pa.Array]:
    """Return records and their topics, without those whose topic is no text."""
    topics = _column(chunk, "topic")
    wrong = np.asarray(pc.match_substring(topics, _NO_TEXT), np.bool_)
    if not wrong.any():
        return chunk, topics
    for position in numbers(chunk.data, chunk.starts[wrong] + 28, 8).tolist():
        damaged(f"the topic of the record at position {position} is no text", on_corrupt)
    return Chunk(chunk.data, chunk.starts[~wrong]), topics.filter(pa.array(~wrong))


def _visible(chunk: Chunk, topics: pa.Array, visibility: Visibility) -> Chunk:
    if not len(chunk.starts):
        return chunk
    fields = heads(chunk.data, chunk.starts)
    visible = visibility.of(
        topics,
        fields["queueId"].astype(np.int64),
        fields["queueOffset"].astype(np.int64),
        fields["position"].astype(np.int64),
        fields["sysFlag"].astype(np.int64),
    )
    return chunk if visible.all() else Chunk(chunk.data, chunk.starts[visible])


def _unwrapped(chunk: Chunk, on_corrupt: OnCorrupt) -> Chunk:
    """Return every message as a record of its own, where batches are stored as one."""
    parts: list[bytes | memoryview] = []
    for start in chunk.starts.tolist():
        record = decode_record(chunk.data, start, verify_crc=False)
        try:
            messages = unwrapped(record, first=0)
        except RocketpostError as error:
            damaged(f"the record at position {record.position} cannot be read: {error}", on_corrupt)
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
    return decode(chunk.data, chunk.starts, _TEXTS[name], broker_name=None).column(0)


def _admitted(array: pa.Array, texts: Texts) -> Mask:
    if texts.is_any:
        return np.ones(len(array), np.bool_)
    hits = pc.starts_with(array, texts.prefix)
    if texts.values is not None:
        hits = pc.and_(hits, pc.is_in(array, pa.array(sorted(texts.values), pa.string())))
    return np.asarray(pc.fill_null(hits, False), np.bool_)


def _within(values: Ints, bounds: Numbers) -> Mask:
    hits = np.ones(len(values), np.bool_)
    if bounds.low is not None:
        hits &= values >= bounds.low
    if bounds.high is not None:
        hits &= values <= bounds.high
    if bounds.values is not None:
        hits &= np.isin(values, sorted(bounds.values))
    return hits


def _pieces(starts: Ints) -> Iterator[Ints]:
    """Cut records into batches, bounded by rows and by bytes."""
    at = 0
    while at < len(starts):
        limit = np.searchsorted(starts, starts[at] + BATCH_BYTES)
        end = max(at + 1, min(int(limit), at + BATCH_ROWS))
        yield starts[at:end]
        at = end


def _intact(data: bytes, starts: Ints, on_corrupt: OnCorrupt) -> Ints:
    """Leave out records whose body fails its CRC."""
    kept = []
    for start in starts.tolist():
        record = decode_record(data, start, verify_crc=False)
        if record.body and crc32(record.body) & CRC_MASK != record.body_crc:
            what = f"the body of the record at position {record.position} fails its CRC"
            damaged(what, on_corrupt)
        else:
            kept.append(start)
    return np.array(kept, np.int64)
