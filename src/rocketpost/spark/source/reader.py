"""Readers of topics, once or as a stream: their methods on the driver and in tasks."""

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
from rocketpost.spark.broker_session import BrokerSession
from rocketpost.spark.options import SourceOptions, replace_options
from rocketpost.spark.source import plan
from rocketpost.spark.source.batches import decode_batches
from rocketpost.spark.source.offset_resolution import (
    report_losses,
    resolve_end,
    resolve_start,
    tags_expression,
)
from rocketpost.spark.source.plan import Json, Offsets, QueueKey, Range
from rocketpost.spark.source.predicates import Predicates, extract_predicates
from rocketpost.spark.source.time_bounds import narrow_by_time
from rocketpost.spark.user_errors import user_facing_errors
from rocketpost.spark.workers.preparation import prepare_worker


@dataclass
class TaskRanges(InputPartition):
    """The ranges of one task."""

    ranges: tuple[Range, ...]

    def __init__(self, ranges: Sequence[Range]) -> None:
        super().__init__(None)
        self.ranges = tuple(ranges)


class _RangeReader:
    """The common part of batch and stream readers."""

    def __init__(self, options: SourceOptions, shape: Shape) -> None:
        self.options = options
        self.shape = shape

    def _partitions(
        self, broker_session: BrokerSession, start: Offsets, end: Offsets
    ) -> list[TaskRanges]:
        options = self.options
        changed = {queue for queue, until in end.items() if start.get(queue, -1) != until}
        known = {*start, *end}
        present = (
            set(broker_session.queues(known=known, given_up=known - changed)) if changed else set()
        )
        bounds = broker_session.bounds(changed & present)
        ranges, losses = plan.plan_ranges(start, {q: end[q] for q in changed}, bounds)
        report_losses(losses, fail=options.fail_on_data_loss)
        return [
            TaskRanges(task)
            for task in plan.plan_tasks(
                self._select(broker_session, ranges),
                count_min=options.partitions_min,
                records_max=options.partition_records_max,
                count_max=options.partitions_max,
            )
        ]

    def _select(self, broker_session: BrokerSession, ranges: list[Range]) -> list[Range]:
        """Return the parts of ranges that have to be read."""
        return ranges

    def _read(self, partition: TaskRanges) -> Iterator[pa.RecordBatch]:
        prepare_worker()
        options = self.options
        tags: frozenset[str] = frozenset()
        if options.expression_type == "TAG":
            tags = parse_tags("", options.expression, version=0).tags_set or tags
        with BrokerSession(options) as broker_session:
            for wanted in partition.ranges:
                # A query with a limit may stop anywhere; pulls under way end before the session.
                with closing(broker_session.pull(wanted)) as pulled:
                    for batch in decode_batches(
                        pulled,
                        wanted,
                        self.shape.decoded,
                        tags=tags,
                        decompressed=options.read_decoded,
                    ):
                        yield self.shape.convert(batch)


class BatchReader(_RangeReader, DataSourceReader):
    """Reads the messages between two offsets."""

    def __init__(self, options: SourceOptions, shape: Shape) -> None:
        options.check_batch()
        super().__init__(options, shape)

    @user_facing_errors
    def partitions(self) -> Sequence[InputPartition]:
        """Return the ranges of the tasks; runs on the driver."""
        with BrokerSession(self.options) as broker_session:
            start = resolve_start(broker_session, self.options, default="earliest")
            end = resolve_end(broker_session, self.options, broker_session.bounds(start))
            return self._partitions(broker_session, start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a task."""
        # Spark creates an empty partition if there is nothing to read.
        return self._read(partition) if isinstance(partition, TaskRanges) else iter(())


class FilteringReader(BatchReader):
    """Skips messages that the filters of a query exclude; Spark applies them to the rest."""

    predicates = Predicates()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Store filters, and return all of them to Spark."""
        self.predicates = extract_predicates(filters)
        expression = tags_expression(self.options, self.predicates.tags)
        self.options = replace_options(self.options, expression=expression)
        return filters

    def _select(self, broker_session: BrokerSession, ranges: list[Range]) -> list[Range]:
        if self.predicates.tags.values == frozenset():
            return []
        return narrow_by_time(
            broker_session,
            self.predicates.prune(ranges),
            self.predicates.store_ms,
            step_ms=self.options.clock_step_ms,
        )


class StreamReader(_RangeReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads present and future messages. Lives in the driver while a query runs."""

    def __init__(self, options: SourceOptions, shape: Shape) -> None:
        options.check_stream()
        super().__init__(options, shape)
        self._initial: Json | None = None
        self._target: Offsets | None = None
        self._stored: Json | None = None
        """The entry whose offsets were last stored for the group."""
        self._planned_at: float | None = None
        """The time at which the last batch was planned."""
        self._begun: Offsets = {}
        """The end of planned batches."""
        self._given_up: set[QueueKey] = set()
        """Queues that did not return in time."""
        self._known: list[QueueKey] = []
        self._known_until = 0.0
        """The time until which the list of queues is not fetched again."""

    @user_facing_errors
    def initialOffset(self) -> Json:  # noqa: N802 - Spark's name
        """Return the start of a new query; the same for every call of this reader."""
        if self._initial is None:
            with BrokerSession(self.options) as broker_session:
                start = resolve_start(broker_session, self.options, default="latest")
            self._initial = plan.initial_json(start)
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of a batch."""
        if self.options.offsets_max is not None:
            return ReadMaxRows(self.options.offsets_max)
        if self.options.offsets_min is not None:
            return ReadMinRows(self.options.offsets_min)
        if self.options.bytes_max is not None:
            return ReadMaxBytes(self.options.bytes_max)
        return ReadAllAvailable()

    @user_facing_errors
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Store the ends of queues that "available now" means."""
        with BrokerSession(self.options) as broker_session:
            self._target = self._ends(broker_session, broker_session.queues())

    @user_facing_errors
    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:  # noqa: N802
        """Return the end of the next batch; ``start`` itself if there is nothing new.

        Spark calls this when every batch up to ``start`` is done, also after the last batch of an
        "available now" run.
        """
        begun = self._begun = plan.checkpoint_offsets(start)
        with BrokerSession(self.options) as broker_session:
            if self.options.commit_offsets:
                self._commit(broker_session, start)
            available = self._available(broker_session)
            new = set(available) - set(begun)
            firsts = {queue: bound.first for queue, bound in broker_session.bounds(new).items()}
            if self._is_too_early({**firsts, **begun}, available, limit):
                return start
            count_max = self._count_max(broker_session, {**firsts, **begun}, available, limit)
        end = plan.limit_ends({**firsts, **begun}, available, count_max)
        if all(end[queue] == begun.get(queue, firsts.get(queue, 0)) for queue in end):
            return start
        self._planned_at = time.monotonic()
        return plan.end_json(start, end)

    @user_facing_errors
    def reportLatestOffset(self) -> Json | None:  # noqa: N802
        """Return the present ends of queues, for the progress that Spark reports."""
        with BrokerSession(self.options) as broker_session:
            ends = self._ends(broker_session, self._list_present(broker_session))
        return {"v": plan.VERSION, "queues": plan.nest_offsets(ends)}

    @user_facing_errors
    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        """Return the ranges of the tasks of a batch."""
        with BrokerSession(self.options) as broker_session:
            return self._partitions(
                broker_session, plan.range_start(start, end), plan.checkpoint_offsets(end)
            )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a task."""
        # Spark creates an empty partition if there is nothing to read.
        return self._read(partition) if isinstance(partition, TaskRanges) else iter(())

    def _commit(self, broker_session: BrokerSession, done: Json) -> None:
        """Store the offsets of completed batches for the group, once; not the start of a query."""
        if not done.get("initial") and done != self._stored:
            offsets = plan.checkpoint_offsets(done)
            present = set(self._list_present(broker_session))
            broker_session.commit({queue: at for queue, at in offsets.items() if queue in present})
            self._stored = done

    def _is_too_early(self, start: Offsets, available: Offsets, limit: ReadLimit) -> bool:
        """Return whether the next batch waits for more messages."""
        count_min = self.options.offsets_min
        # A trigger that runs once, or for "available now", does not wait.
        if count_min is None or self._target is not None or isinstance(limit, ReadAllAvailable):
            return False
        if (
            sum(plan.count_backlog(start, available).values()) >= count_min
            or self._planned_at is None
        ):
            return False
        return time.monotonic() - self._planned_at < self.options.trigger_delay_seconds

    def _available(self, broker_session: BrokerSession) -> Offsets:
        """Return the ends of the messages to read."""
        present = self._list_present(broker_session)
        if self._target is None:
            return self._ends(broker_session, present)
        # Include brokers that were down when the target was stored.
        late = [queue for queue in present if queue in self._begun and queue not in self._target]
        self._target |= self._ends(broker_session, late)
        return self._target

    def _list_present(self, broker_session: BrokerSession) -> list[QueueKey]:
        """Return the existing queues; wait once for missing ones that batches have read.

        Raises:
            ClientError: A queue did not return, and the options make that an error.
        """
        if time.monotonic() < self._known_until:
            return self._known
        found = broker_session.queues(known=self._begun, given_up=self._given_up)
        gone = set(filter(self.options.selects, self._begun)) - set(found)
        report_losses(
            [
                plan.DataLoss(
                    queue,
                    f"{queue} no longer exists, nor do its messages after offset "
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

    def _ends(self, broker_session: BrokerSession, queues: Iterable[QueueKey]) -> Offsets:
        return {queue: bound.end for queue, bound in broker_session.bounds(queues).items()}

    def _count_max(
        self, broker_session: BrokerSession, start: Offsets, available: Offsets, limit: ReadLimit
    ) -> int | None:
        if isinstance(limit, ReadAllAvailable):
            return None  # no option limits the batch, or Spark reads all anyway
        count_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        if self.options.bytes_max is not None:
            size = self._mean_size(broker_session, start, available)
            fitting = max(1, self.options.bytes_max // size) if size else None
            if fitting is not None:
                count_max = fitting if count_max is None else min(count_max, fitting)
        return count_max

    def _mean_size(self, broker_session: BrokerSession, start: Offsets, available: Offsets) -> int:
        """Return the mean size of messages sampled from the longest backlogs."""
        backlog = {queue: end - start.get(queue, end) for queue, end in available.items()}
        longest = sorted((q for q in backlog if backlog[q] > 0), key=lambda q: -backlog[q])[:4]
        sizes = [broker_session.mean_size(queue, start[queue]) for queue in longest]
        return sum(sizes) // len(sizes) if sizes else 0
