"""Which offsets a query reads, in which tasks. Offsets in, ranges out; no I/O.

An offset always means the next message to read. In Spark's checkpoint they are nested by topic,
broker and queue, with keys in a fixed order, since Spark compares them as text:

    initial   {"v": 1, "initial": true, "queues": {"T": {"broker-a": {"0": 100}}}}
    end       {"v": 1, "queues": {...}}    the first end also has "base": where the query began

Spark asks for the initial offset more than once, and again after a restart, by when ``latest`` has
moved on. So the first end carries the start that it belongs to, and that one counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, Final, NamedTuple

from rocketpost.errors import ConfigError

VERSION: Final = 1
_TOLD_MAX: Final = 4


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
    """What a queue has: from ``first``, before ``end``."""

    first: int
    end: int


class Range(NamedTuple):
    """Messages of one queue: from ``start``, before ``end``."""

    queue: QueueKey
    start: int
    end: int

    @property
    def length(self) -> int:
        """How many offsets it covers."""
        return self.end - self.start


class Loss(NamedTuple):
    """Messages that were wanted and are gone, in words."""

    queue: QueueKey
    text: str


def in_words(queues: Iterable[QueueKey]) -> str:
    """Return queues as a reader wants them told: by topic and broker, the first few of those."""
    by_broker: dict[tuple[str, str], list[int]] = {}
    for queue in sorted(queues):
        by_broker.setdefault((queue.topic, queue.broker), []).append(queue.queue_id)
    said = [
        f"queue{'s' if len(ids) > 1 else ''} {_spans(ids)} of {topic} on {broker}"
        for (topic, broker), ids in by_broker.items()
    ]
    more = len(said) - _TOLD_MAX
    return ", ".join(said[:_TOLD_MAX]) + (f" and more on {more} brokers" if more > 0 else "")


def _spans(ids: list[int]) -> str:
    """Return ascending numbers as text, neighbours as a span."""
    spans: list[list[int]] = []
    for each in ids:
        if spans and each == spans[-1][-1] + 1:
            spans[-1][1:] = [each]
        else:
            spans.append([each])
    return ", ".join("-".join(map(str, span)) for span in spans)


# Offsets as JSON.


def nested(offsets: Mapping[QueueKey, int]) -> Json:
    """Return offsets by topic, broker and queue id."""
    result: Json = {}
    for queue in sorted(offsets):
        by_broker = result.setdefault(queue.topic, {}).setdefault(queue.broker, {})
        by_broker[str(queue.queue_id)] = offsets[queue]
    return result


def flat(value: object, *, what: str) -> Offsets:
    """Return offsets from their nested form.

    Raises:
        ConfigError: It has another form; ``what`` says where it comes from.
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
    """Return the offset at which a query begins."""
    return {"v": VERSION, "initial": True, "queues": nested(start)}


def end_json(start: Json, end: Offsets) -> Json:
    """Return the offset at which a batch ends that begins at ``start``."""
    value: Json = {"v": VERSION, "queues": nested(end)}
    if start.get("initial"):
        value["base"] = start["queues"]
    return value


def range_start(start: Json, end: Json) -> Offsets:
    """Return where the batch between two offsets begins."""
    if start.get("initial") and "base" in end:
        return flat(end["base"], what="the checkpoint's base")
    return queues_of(start)


def queues_of(value: Json) -> Offsets:
    """Return the offsets in a checkpoint's entry.

    Raises:
        ConfigError: It was written by something else, or by a later version.
    """
    if value.get("v") != VERSION:
        raise ConfigError(f"the checkpoint's offset {value!r} is not of this source")
    return flat(value.get("queues"), what="the checkpoint's offset")


# What to read.


def backlog(start: Mapping[QueueKey, int], available: Offsets) -> dict[QueueKey, int]:
    """Return how many messages of each queue are there to read; none of one that is made anew."""
    return {queue: max(end - start.get(queue, end), 0) for queue, end in available.items()}


def admitted(start: Mapping[QueueKey, int], available: Offsets, count_max: int | None) -> Offsets:
    """Return how far to read: everything, or ``count_max`` messages shared by backlog.

    Queues that only ``available`` has begin at their first message, which ``start`` must say.
    Every queue with a backlog moves, so the sum may pass the bound by a message a queue. A queue
    that ends before ``start`` was made anew; its new end is returned, and :func:`ranges` tells.
    """
    waiting = backlog(start, available)
    total = sum(waiting.values())
    ends = dict(available)
    if count_max is not None and total > count_max:
        for queue, count in waiting.items():
            share = -(-count * count_max // total)  # rounded up, so that small queues move
            ends[queue] = available[queue] - count + min(count, share)
    for queue, offset in start.items():
        ends.setdefault(queue, offset)  # a queue that is gone stays where it was
    return ends


def ranges(
    start: Mapping[QueueKey, int], end: Offsets, bounds: Mapping[QueueKey, Bounds]
) -> tuple[list[Range], list[Loss]]:
    """Return what to read between two offsets, and what of it is not there any more.

    A queue that only ``end`` has is new: it is read from its first message.
    """
    found: list[Range] = []
    losses: list[Loss] = []
    for queue in sorted(end):
        until = end[queue]
        bound = bounds.get(queue)
        first = start.get(queue, bound.first if bound is not None else until)
        if first == until:
            continue
        if bound is None:
            losses.append(Loss(queue, f"{queue} is gone, offsets {first} to {until} with it"))
            continue
        if bound.end < max(first, until):
            losses.append(
                Loss(
                    queue,
                    f"{queue} ends at offset {bound.end}, but {max(first, until)} was there: the "
                    f"topic was deleted and made anew, or the broker lost messages",
                )
            )
            first, until = (bound.first if first > until else min(first, bound.end)), bound.end
        if first < bound.first:
            losses.append(
                Loss(
                    queue,
                    f"{queue} begins at offset {bound.first}; "
                    f"{first} to {min(bound.first, until)} were deleted",
                )
            )
            first = bound.first
        if first < until:
            found.append(Range(queue, first, until))
    return found, losses


def tasks(
    pieces: Iterable[Range],
    *,
    count_min: int | None,
    records_max: int | None,
    count_max: int,
) -> list[list[Range]]:
    """Share ranges out among tasks: long ones are split, short ones of a broker put together.

    Args:
        pieces: What to read.
        count_min: Split until there are so many tasks.
        records_max: Split what is longer than this.
        count_max: Put neighbours together until there are so few; 0 for never.
    """
    split = [part for piece in pieces for part in _cut(piece, records_max)]
    if count_min and len(split) < count_min:
        total = sum(piece.length for piece in split)
        goal = max(1, total // count_min)
        split = [part for piece in split for part in _cut(piece, goal)]
    if not count_max or len(split) <= count_max or (count_min and len(split) <= count_min):
        return [[piece] for piece in split]
    return _packed(split, max(count_max, count_min or 0))


def _cut(piece: Range, records_max: int | None) -> list[Range]:
    if not records_max or piece.length <= records_max:
        return [piece]
    parts = -(-piece.length // records_max)
    cuts = [piece.start + piece.length * part // parts for part in range(parts + 1)]
    return [Range(piece.queue, a, b) for a, b in pairwise(cuts)]


def _packed(pieces: list[Range], count_max: int) -> list[list[Range]]:
    """Fill ``count_max`` tasks evenly; the pieces of a task lie side by side."""
    ordered = sorted(pieces, key=lambda piece: (piece.queue.broker, piece.queue, piece.start))
    total = sum(piece.length for piece in ordered)
    bins: list[list[Range]] = [[] for _ in range(count_max)]
    done = 0
    for piece in ordered:
        middle = done + piece.length / 2
        bins[min(count_max - 1, int(middle * count_max / max(total, 1)))].append(piece)
        done += piece.length
    return [each for each in bins if each]
