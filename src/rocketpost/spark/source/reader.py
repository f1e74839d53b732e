"""Reads a topic once, or as a stream: what Spark calls on the driver, and what runs in tasks."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from rocketpost.model.group import parse_tags
from rocketpost.spark.bodies.shape import Shape
from rocketpost.spark.broker_session import Link
from rocketpost.spark.options import SourceOptions, replaced
from rocketpost.spark.source import plan, resolve
from rocketpost.spark.source.batches import batches
from rocketpost.spark.source.narrowing import narrowed
from rocketpost.spark.source.plan import Json, Offsets, QueueKey, Range
from rocketpost.spark.source.predicates import Predicates, extracted
from rocketpost.spark.telling import plainly
from rocketpost.spark.workers.heap import keep_loaded


@dataclass
class Ranges(InputPartition):
    """What one task reads."""

    ranges: tuple[Range, ...]

    def __init__(self, ranges: Sequence[Range]) -> None:
        super().__init__(None)
        self.ranges = tuple(ranges)


class _Tasks:
    """What batches and streams share."""

    def __init__(self, options: SourceOptions, shape: Shape) -> None:
        self.options = options
        self.shape = shape

    def _partitions(self, link: Link, start: Offsets, end: Offsets) -> list[Ranges]:
        options = self.options
        concerned = {queue for queue, until in end.items() if start.get(queue, -1) != until}
        known = {*start, *end}
        there = set(link.queues(known=known, given_up=known - concerned)) if concerned else set()
        bounds = link.bounds(concerned & there)
        pieces, losses = plan.ranges(start, {q: end[q] for q in concerned}, bounds)
        resolve.report(losses, fail=options.fail_on_data_loss)
        return [
            Ranges(task)
            for task in plan.tasks(
                self._wanted(link, pieces),
                count_min=options.partitions_min,
                records_max=options.partition_records_max,
                count_max=options.partitions_max,
            )
        ]

    def _wanted(self, link: Link, pieces: list[Range]) -> list[Range]:
        """Return what of ranges is read at all."""
        return pieces

    def _read(self, partition: Ranges) -> Iterator[pa.RecordBatch]:
        keep_loaded()
        options = self.options
        tags: frozenset[str] = frozenset()
        if options.expression_type == "TAG":
            tags = parse_tags("", options.expression, version=0).tags_set or tags
        with Link(options) as link:
            for wanted in partition.ranges:
                # A query with a limit leaves off anywhere; what is under way ends before the link.
                with closing(link.pull(wanted)) as pulled:
                    for batch in batches(
                        pulled,
                        wanted,
                        self.shape.decoded,
                        tags=tags,
                        decompressed=options.read_decoded,
                    ):
                        yield self.shape.shown(batch)


class BatchReader(_Tasks, DataSourceReader):
    """Reads what is there between two offsets."""

    def __init__(self, options: SourceOptions, shape: Shape) -> None:
        options.check_batch()
        super().__init__(options, shape)

    @plainly
    def partitions(self) -> Sequence[InputPartition]:
        """Return what the tasks read; runs on the driver."""
        with Link(self.options) as link:
            start = resolve.starting(link, self.options, default="earliest")
            end = resolve.ending(link, self.options, link.bounds(start))
            return self._partitions(link, start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a task."""
        # Spark makes a part of its own when there is nothing to read.
        return self._read(partition) if isinstance(partition, Ranges) else iter(())


class FilteringReader(BatchReader):
    """Leaves out what the filters of a query rule out; Spark applies them to the rest."""

    predicates = Predicates()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Take note of filters; all of them are left to Spark too."""
        self.predicates = extracted(filters)
        expression = resolve.tags_expression(self.options, self.predicates.tags)
        self.options = replaced(self.options, expression=expression)
        return filters

    def _wanted(self, link: Link, pieces: list[Range]) -> list[Range]:
        if self.predicates.tags.values == frozenset():
            return []
        return narrowed(
            link,
            self.predicates.pruned(pieces),
            self.predicates.store_ms,
            step_ms=self.options.clock_step_ms,
        )


class StreamReader(_Tasks, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads on and on. Lives in one driver process for as long as a query runs."""

    def __init__(self, options: SourceOptions, shape: Shape) -> None:
        options.check_stream()
        super().__init__(options, shape)
        self._initial: Json | None = None
        self._target: Offsets | None = None
        self._stored: Json | None = None
        """What was last stored for the group."""
        self._planned_at: float | None = None
        """When the last batch was planned."""
        self._begun: Offsets = {}
        """How far batches were planned."""
        self._given_up: set[QueueKey] = set()
        """What was waited for in vain."""
        self._known: list[QueueKey] = []
        self._known_until = 0.0
        """How long the queues that are known count as all."""

    @plainly
    def initialOffset(self) -> Json:  # noqa: N802 - Spark's name
        """Return where a new query begins; the same at every call of this reader."""
        if self._initial is None:
            with Link(self.options) as link:
                start = resolve.starting(link, self.options, default="latest")
            self._initial = plan.initial_json(start)
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return how much a batch reads."""
        if self.options.offsets_max is not None:
            return ReadMaxRows(self.options.offsets_max)
        if self.options.offsets_min is not None:
            return ReadMinRows(self.options.offsets_min)
        if self.options.bytes_max is not None:
            return ReadMaxBytes(self.options.bytes_max)
        return ReadAllAvailable()

    @plainly
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Settle what "available now" means."""
        with Link(self.options) as link:
            self._target = self._ends(link, link.queues())

    @plainly
    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:  # noqa: N802
        """Return where the next batch ends; ``start`` itself if there is nothing new.

        Spark asks when every batch up to ``start`` is done, also after the last one of a run over
        what is available now.
        """
        begun = self._begun = plan.queues_of(start)
        with Link(self.options) as link:
            if self.options.commit_offsets:
                self._commit(link, start)
            available = self._available(link)
            new = set(available) - set(begun)
            firsts = {queue: bound.first for queue, bound in link.bounds(new).items()}
            if self._is_too_early({**firsts, **begun}, available, limit):
                return start
            count_max = self._count_max(link, {**firsts, **begun}, available, limit)
        end = plan.admitted({**firsts, **begun}, available, count_max)
        if all(end[queue] == begun.get(queue, firsts.get(queue, 0)) for queue in end):
            return start
        self._planned_at = time.monotonic()
        return plan.end_json(start, end)

    @plainly
    def reportLatestOffset(self) -> Json | None:  # noqa: N802
        """Return where the queues end now, for the progress that Spark reports."""
        with Link(self.options) as link:
            ends = self._ends(link, self._there(link))
        return {"v": plan.VERSION, "queues": plan.nested(ends)}

    @plainly
    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        """Return what the tasks of a batch read."""
        with Link(self.options) as link:
            return self._partitions(link, plan.range_start(start, end), plan.queues_of(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a task."""
        # Spark makes a part of its own when there is nothing to read.
        return self._read(partition) if isinstance(partition, Ranges) else iter(())

    def _commit(self, link: Link, done: Json) -> None:
        """Store for the group what is done, once; where a query begins is not done by it."""
        if not done.get("initial") and done != self._stored:
            offsets = plan.queues_of(done)
            there = set(self._there(link))
            link.commit({queue: at for queue, at in offsets.items() if queue in there})
            self._stored = done

    def _is_too_early(self, start: Offsets, available: Offsets, limit: ReadLimit) -> bool:
        """Tell whether the next batch waits for more messages."""
        count_min = self.options.offsets_min
        # A trigger that runs once, or over what is available now, waits for nothing.
        if count_min is None or self._target is not None or isinstance(limit, ReadAllAvailable):
            return False
        if sum(plan.backlog(start, available).values()) >= count_min or self._planned_at is None:
            return False
        return time.monotonic() - self._planned_at < self.options.trigger_delay_seconds

    def _available(self, link: Link) -> Offsets:
        """Return how far there is something to read."""
        there = self._there(link)
        if self._target is None:
            return self._ends(link, there)
        # Brokers that were away when the target was settled are not left out of this run.
        late = [queue for queue in there if queue in self._begun and queue not in self._target]
        self._target |= self._ends(link, late)
        return self._target

    def _there(self, link: Link) -> list[QueueKey]:
        """Return the queues that there are; those that batches began with are waited for, once.

        Raises:
            ClientError: One did not come back, and that is a loss that must not be.
        """
        if time.monotonic() < self._known_until:
            return self._known
        found = link.queues(known=self._begun, given_up=self._given_up)
        gone = set(filter(self.options.takes, self._begun)) - set(found)
        resolve.report(
            [
                plan.Loss(
                    queue,
                    f"{queue} was there and is gone, with what it has after offset "
                    f"{self._begun[queue]}",
                )
                for queue in sorted(gone - self._given_up)
            ],
            fail=self.options.fail_on_data_loss,
        )
        self._given_up = gone
        self._known = found
        self._known_until = time.monotonic() + self.options.metadata_ttl_ms / 1000
        return found

    def _ends(self, link: Link, queues: Iterable[QueueKey]) -> Offsets:
        return {queue: bound.end for queue, bound in link.bounds(queues).items()}

    def _count_max(
        self, link: Link, start: Offsets, available: Offsets, limit: ReadLimit
    ) -> int | None:
        if isinstance(limit, ReadAllAvailable):
            return None  # no option bounds it, or Spark wants all the same
        count_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        if self.options.bytes_max is not None:
            size = self._mean_size(link, start, available)
            fitting = max(1, self.options.bytes_max // size) if size else None
            if fitting is not None:
                count_max = fitting if count_max is None else min(count_max, fitting)
        return count_max

    def _mean_size(self, link: Link, start: Offsets, available: Offsets) -> int:
        """Return the mean size of a message, by samples from the longest backlogs."""
        backlog = {queue: end - start.get(queue, end) for queue, end in available.items()}
        longest = sorted((q for q in backlog if backlog[q] > 0), key=lambda q: -backlog[q])[:4]
        sizes = [link.mean_size(queue, start[queue]) for queue in longest]
        return sum(sizes) // len(sizes) if sizes else 0
