"""Plan of a query: the offsets that it reads, and the tasks that read them. Pure.

An offset is always that of the next message to read. Spark's checkpoint has offsets nested by
topic, broker and queue, with keys in a fixed order, because Spark compares them as text:

    initial   {"v": 1, "initial": true, "queues": {"T": {"broker-a": {"0": 100}}}}
    end       {"v": 1, "queues": {...}}    the first end also has "base": the start of the query

Spark asks for the initial offset more than once, and again after a restart, when ``latest`` has
changed. So the first end contains the start that it belongs to, and that start is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, Final, NamedTuple

from rocketpost.errors import ConfigError

VERSION: Final = 1
_BROKERS_NAMED_MAX: Final = 4


class QueueKey(NamedTuple):
    """One queue of one broker."""

    topic: str
    broker: str
    queue_id: int

    def __str__(self) -> str:
        return f"queue {self.queue_id} of {self.topic} on {self.broker}"


Offsets = dict[QueueKey, int]
"""The next message to read, by queue."""
Json = dict[str, Any]


class Bounds(NamedTuple):
    """The offsets of the messages in a queue: from ``first``, before ``end``."""

    first: int
    end: int


class Range(NamedTuple):
    """Messages of one queue: from ``start``, before ``end``."""

    queue: QueueKey
    start: int
    end: int

    @property
    def length(self) -> int:
        """The number of offsets."""
        return self.end - self.start


class DataLoss(NamedTuple):
    """A loss of messages that a query should read, and its description."""

    queue: QueueKey
    text: str


def describe_more_queues(count: int) -> str:
    """Return the number of queues that a text leaves out, in parentheses; "" if there are none."""
    return f" (and {count} more queue{'s' if count > 1 else ''})" if count else ""


def describe_queues(queues: Iterable[QueueKey]) -> str:
    """Return queues as text, by topic and broker; only the first few brokers."""
    by_broker: dict[tuple[str, str], list[int]] = {}
    for queue in sorted(queues):
        by_broker.setdefault((queue.topic, queue.broker), []).append(queue.queue_id)
    texts = [
        f"queue{'s' if len(ids) > 1 else ''} {_spans_text(ids)} of {topic} on {broker}"
        for (topic, broker), ids in by_broker.items()
    ]
    more = len(texts) - _BROKERS_NAMED_MAX
    return ", ".join(texts[:_BROKERS_NAMED_MAX]) + (
        f" and others on {more} brokers" if more > 0 else ""
    )


def _spans_text(ids: list[int]) -> str:
    """Return ascending numbers as text, with adjacent numbers as a span."""
    spans: list[list[int]] = []
    for each in ids:
        if spans and each == spans[-1][-1] + 1:
            spans[-1][1:] = [each]
        else:
            spans.append([each])
    return ", ".join("-".join(map(str, span)) for span in spans)


# Offsets as JSON.


def nest_offsets(offsets: Mapping[QueueKey, int]) -> Json:
    """Return offsets by topic, broker and queue id."""
    result: Json = {}
    for queue in sorted(offsets):
        by_broker = result.setdefault(queue.topic, {}).setdefault(queue.broker, {})
        by_broker[str(queue.queue_id)] = offsets[queue]
    return result


def flatten_offsets(value: object, *, what: str) -> Offsets:
    """Return offsets from their nested form.

    Raises:
        ConfigError: The value has another form; ``what`` names it.
    """
    offsets: Offsets = {}
    try:
        for topic, brokers in value.items():  # type: ignore[attr-defined]
            for broker, queues in brokers.items():
                for queue_id, offset in queues.items():
                    if isinstance(offset, bool) or not isinstance(offset, int):
                        raise TypeError(offset)
                    offsets[QueueKey(topic, broker, int(queue_id))] = offset
    except (AttributeError, TypeError, ValueError):
        raise ConfigError(
            f'{what} must look like {{"Topic": {{"broker-a": {{"0": 100}}}}}}, not {value!r}'
        ) from None
    return offsets


def initial_json(start: Offsets) -> Json:
    """Return the checkpoint entry for the start of a query."""
    return {"v": VERSION, "initial": True, "queues": nest_offsets(start)}


def end_json(start: Json, end: Offsets) -> Json:
    """Return the checkpoint entry for the end of a batch that begins at ``start``."""
    value: Json = {"v": VERSION, "queues": nest_offsets(end)}
    if start.get("initial"):
        value["base"] = start["queues"]
    return value


def range_start(start: Json, end: Json) -> Offsets:
    """Return the start of the batch between two checkpoint entries."""
    if start.get("initial") and "base" in end:
        return flatten_offsets(end["base"], what="the checkpoint's base")
    return checkpoint_offsets(start)


def checkpoint_offsets(value: Json) -> Offsets:
    """Return the offsets in a checkpoint entry.

    Raises:
        ConfigError: Another source or a later version wrote it.
    """
    if value.get("v") != VERSION:
        raise ConfigError(f"the checkpoint's offset {value!r} was not written by this source")
    return flatten_offsets(value.get("queues"), what="the checkpoint's offset")


# Ranges and tasks.


def count_backlog(start: Mapping[QueueKey, int], available: Offsets) -> dict[QueueKey, int]:
    """Return the number of messages to read in each queue; 0 for a queue that was created again."""
    return {queue: max(end - start.get(queue, end), 0) for queue, end in available.items()}


def limit_ends(start: Mapping[QueueKey, int], available: Offsets, count_max: int | None) -> Offsets:
    """Return the ends of a batch: all messages, or ``count_max`` of them in proportion to backlogs.

    ``start`` must have the first offset of queues that are new in ``available``. Every queue with a
    backlog advances, so the sum may exceed the limit by one message per queue. A queue that ends
    before ``start`` was created again; its new end is returned, and :func:`plan_ranges` reports it.
    """
    waiting = count_backlog(start, available)
    total = sum(waiting.values())
    ends = dict(available)
    if count_max is not None and total > count_max:
        for queue, count in waiting.items():
            share = -(-count * count_max // total)  # rounded up, so that small queues advance
            ends[queue] = available[queue] - count + min(count, share)
    for queue, offset in start.items():
        ends.setdefault(queue, offset)  # a queue that is gone keeps its offset
    return ends


def plan_ranges(
    start: Mapping[QueueKey, int], end: Offsets, bounds: Mapping[QueueKey, Bounds]
) -> tuple[list[Range], list[DataLoss]]:
    """Return the ranges to read between two offsets, and the messages lost from them.

    A queue that only ``end`` has is new: it is read from its first message.
    """
    found: list[Range] = []
    losses: list[DataLoss] = []
    for queue in sorted(end):
        until = end[queue]
        bound = bounds.get(queue)
        first = start.get(queue, bound.first if bound is not None else until)
        if first == until:
            continue
        if bound is None:
            losses.append(
                DataLoss(queue, f"{queue} no longer exists, nor do its offsets {first} to {until}")
            )
            continue
        if bound.end < max(first, until):
            losses.append(
                DataLoss(
                    queue,
                    f"{queue} ends at offset {bound.end}, but offset {max(first, until)} "
                    "existed: the topic was deleted and created again, or the broker lost "
                    "messages",
                )
            )
            first, until = (bound.first if first > until else min(first, bound.end)), bound.end
        if first < bound.first:
            losses.append(
                DataLoss(
                    queue,
                    f"{queue} begins at offset {bound.first}; "
                    f"{first} to {min(bound.first, until)} were deleted",
                )
            )
            first = bound.first
        if first < until:
            found.append(Range(queue, first, until))
    return found, losses


def plan_tasks(
    ranges: Iterable[Range],
    *,
    count_min: int | None,
    records_max: int | None,
    count_max: int,
) -> list[list[Range]]:
    """Assign ranges to tasks: split long ones, and join short ones of a broker.

    Args:
        ranges: The ranges to read.
        count_min: Ranges are split until there are this many tasks.
        records_max: Ranges longer than this are split.
        count_max: Ranges are joined until there are this few tasks; 0 for no limit.
    """
    split = [part for each in ranges for part in _split_range(each, records_max)]
    if count_min and len(split) < count_min:
        total = sum(each.length for each in split)
        goal = max(1, total // count_min)
        split = [part for each in split for part in _split_range(each, goal)]
    if not count_max or len(split) <= count_max or (count_min and len(split) <= count_min):
        return [[each] for each in split]
    return _pack_ranges(split, max(count_max, count_min or 0))


def _split_range(whole: Range, records_max: int | None) -> list[Range]:
    if not records_max or whole.length <= records_max:
        return [whole]
    count = -(-whole.length // records_max)
    cuts = [whole.start + whole.length * number // count for number in range(count + 1)]
    return [Range(whole.queue, a, b) for a, b in pairwise(cuts)]


def _pack_ranges(ranges: list[Range], count_max: int) -> list[list[Range]]:
    """Fill ``count_max`` tasks evenly with adjacent ranges."""
    ordered = sorted(ranges, key=lambda each: (each.queue.broker, each.queue, each.start))
    total = sum(each.length for each in ordered)
    bins: list[list[Range]] = [[] for _ in range(count_max)]
    done = 0
    for each in ordered:
        middle = done + each.length / 2
        bins[min(count_max - 1, int(middle * count_max / max(total, 1)))].append(each)
        done += each.length
    return [task for task in bins if task]
