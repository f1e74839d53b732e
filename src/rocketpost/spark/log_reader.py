"""Reads a store directory as a table, with no broker involved."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, InputPartition

from rocketpost.codec.record import CRC_MASK, decode_record
from rocketpost.errors import CorruptRecord
from rocketpost.model.group import parse_tags
from rocketpost.spark import columns as all_columns
from rocketpost.spark.batches import BATCH_BYTES, BATCH_ROWS
from rocketpost.spark.columns import Column
from rocketpost.spark.decode import decode
from rocketpost.spark.fields import Ints, heads, numbers
from rocketpost.spark.log_files import (
    Chunk,
    OnCorrupt,
    Segment,
    Split,
    chunks,
    first_store_ms,
    layout_of,
    segments,
    splits,
)
from rocketpost.spark.log_options import LogOptions
from rocketpost.spark.visibility import Visibility, dispatched, known_topics, topic_spans
from rocketpost.store.layout import Layout

_TOPIC = all_columns.projected([("topic", "string")])
_TAGS = all_columns.projected([("tags", "string")])


def as_decoded(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Show rows as they are."""
    return batch


class LogSplit(InputPartition):
    """What one task reads: a split of a segment, and what is known of its store."""

    def __init__(self, root: str, split: Split, known: frozenset[str]) -> None:
        super().__init__(None)
        self.root = root
        self.split = split
        self.known = known


class LogReader(DataSourceReader):
    """Reads whole segments, cut into splits."""

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

    def partitions(self) -> Sequence[InputPartition]:
        """Return the splits that may hold something wanted."""
        options = self.options
        found: list[LogSplit] = []
        for path in options.paths:
            layout = layout_of(path)
            known = known_topics(layout)
            some = _with_topics(_in_time(segments(layout), options), options, layout)
            found += [
                LogSplit(layout.root, split, known)
                for segment in some
                for split in splits(segment, options.split_bytes)
            ]
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a split."""
        if not isinstance(partition, LogSplit):
            return  # Spark makes one of its own where there is none
        options = self.options
        layout = layout_of(partition.root)
        visibility = Visibility(layout, partition.known) if options.view == "consumer" else None
        for chunk in chunks(partition.split, OnCorrupt(options.on_corrupt)):
            starts = self._chosen(chunk, visibility)
            if options.check_crc:
                _check(chunk.data, starts, partition.split.segment)
            for some in _pieces(chunk.data, starts):
                batch = decode(
                    chunk.data,
                    some,
                    self.columns,
                    broker_name=options.broker_name or None,
                    decompressed=options.read_decoded,
                )
                yield self.shown(batch)

    def _chosen(self, chunk: Chunk, visibility: Visibility | None) -> Ints:
        """Return the records of a chunk that the options ask for."""
        options, data, starts = self.options, chunk.data, chunk.starts
        if options.starting_timestamp is not None or options.ending_timestamp is not None:
            sys_flags = numbers(data, starts + 36, 4)
            stored = numbers(data, starts + 56 + np.where(sys_flags & 0x10, 12, 0), 8)
            low = -(2**63) if options.starting_timestamp is None else options.starting_timestamp
            high = 2**63 - 1 if options.ending_timestamp is None else options.ending_timestamp
            starts = starts[(stored >= low) & (stored < high)]
        if options.topics and len(starts):
            topics = decode(data, starts, _TOPIC, broker_name=None).column(0)
            starts = starts[np.asarray(pc.is_in(topics, pa.array(sorted(options.topics))))]
        if options.tags != "*" and len(starts):
            tags = parse_tags("", options.tags, version=0).tags_set or frozenset()
            found = decode(data, starts, _TAGS, broker_name=None).column(0)
            starts = starts[np.asarray(pc.is_in(found, pa.array(sorted(tags), pa.string())))]
        if visibility is not None and len(starts):
            topics = decode(data, starts, _TOPIC, broker_name=None).column(0)
            fields = heads(data, starts)
            visible = visibility.of(
                topics,
                fields["queueId"].astype(np.int64),
                fields["queueOffset"].astype(np.int64),
                fields["position"].astype(np.int64),
                fields["sysFlag"].astype(np.int64),
            )
            if not visible.all():
                starts = starts[visible]
        return starts


def _in_time(every: list[Segment], options: LogOptions) -> list[Segment]:
    """Leave out segments that were written before or after the times that are asked for."""
    if options.starting_timestamp is None and options.ending_timestamp is None:
        return every
    times = [first_store_ms(segment) for segment in every]
    wanted = []
    for at, segment in enumerate(every):
        began, ended = times[at], times[at + 1] if at + 1 < len(every) else None
        if began is None:
            continue
        if options.ending_timestamp is not None and began >= options.ending_timestamp:
            continue
        if ended is not None and ended < (options.starting_timestamp or 0):
            continue
        wanted.append(segment)
    return wanted


def _with_topics(every: list[Segment], options: LogOptions, layout: Layout) -> list[Segment]:
    """Leave out segments that hold nothing of the topics that are asked for."""
    if not options.topics or options.view != "consumer":
        return every
    spans = [span for topic in options.topics for span in topic_spans(layout, topic)]
    newest = dispatched(layout)  # what lies behind it may be of any topic
    return [
        segment
        for segment in every
        if segment.start + segment.size > newest
        or any(low < segment.start + segment.size and high >= segment.start for low, high in spans)
    ]


def _pieces(data: bytes, starts: Ints) -> Iterator[Ints]:
    """Cut records into batches, bounded by rows and by bytes."""
    at = 0
    while at < len(starts):
        limit = np.searchsorted(starts, starts[at] + BATCH_BYTES)
        end = max(at + 1, min(int(limit), at + BATCH_ROWS))
        yield starts[at:end]
        at = end


def _check(data: bytes, starts: Ints, segment: Segment) -> None:
    for start in starts.tolist():
        record = decode_record(data, start, verify_crc=False)
        if record.body and crc32(record.body) & CRC_MASK != record.body_crc:
            raise CorruptRecord(
                f"the body of the record at position {record.position} fails its CRC "
                f"({segment.path})"
            )
