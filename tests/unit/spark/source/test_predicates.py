"""A row that passes the filters lies within the bounds, whatever the filters are."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from rocketpost.spark.records.fields import TIME_MAX_MS, TIME_MIN_MS
from rocketpost.spark.source.plan import QueueKey, Range
from rocketpost.spark.source.predicates import (
    NumberBounds,
    Predicates,
    TextBounds,
    extract_predicates,
)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TEXT_COLUMNS = {
    "topic": "topics",
    "brokerName": "brokers",
    "tags": "tags",
    "KEYS": "keys",
    "uniqKey": "unique_keys",
}
NUMBER_COLUMNS = {"queueId": "queue_ids", "queueOffset": "offsets", "commitLogOffset": "positions"}

texts = st.sampled_from(["", "a", "ab", "abc", "b", "B"])
numbers = st.integers(-3, 8)
mad = st.sampled_from([TIME_MIN_MS - 5, TIME_MIN_MS, TIME_MAX_MS, TIME_MAX_MS + 5])
times = st.one_of(
    st.integers(-4, 4).map(lambda half: EPOCH + timedelta(microseconds=500 * half)),
    st.sampled_from([TIME_MIN_MS, TIME_MAX_MS]).map(
        lambda ms: EPOCH + timedelta(microseconds=ms * 1000)
    ),
)
comparisons = st.sampled_from(
    [EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual]
)


def shown(ms: int) -> datetime:
    """Return a store time as its column shows it."""
    return EPOCH + timedelta(milliseconds=min(max(ms, TIME_MIN_MS), TIME_MAX_MS))


def filters_of(column: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Filter]:
    name = st.just((column,))
    plain = st.one_of(
        st.builds(lambda kind, a, v: kind(a, v), comparisons, name, values),
        st.builds(In, name, st.lists(st.one_of(st.none(), values))),
        st.builds(IsNull, name),
        st.builds(IsNotNull, name),
        st.builds(EqualNullSafe, name, st.none()),
    )
    return st.one_of(plain, st.builds(Not, plain))


def text_filters(column: str) -> st.SearchStrategy[Filter]:
    name = st.just((column,))
    kinds = [st.builds(k, name, texts) for k in (StringStartsWith, StringEndsWith, StringContains)]
    return st.one_of(filters_of(column, texts), *kinds)


any_filter = st.one_of(
    *map(text_filters, TEXT_COLUMNS),
    *(filters_of(column, numbers) for column in NUMBER_COLUMNS),
    filters_of("storeTimestamp", times),
    filters_of("storeTimestamp", times),
    # What is not of the column's type, or not of a column.
    st.builds(EqualTo, st.just(("queueId",)), st.sampled_from([True, 1.0, "1", None])),
    st.builds(EqualTo, st.just(("body", "topic")), texts),
)
rows = st.fixed_dictionaries(
    {column: st.one_of(st.none(), texts) for column in TEXT_COLUMNS}
    | dict.fromkeys(NUMBER_COLUMNS, numbers)
    | {"storeTimestamp": st.one_of(st.integers(-2, 2), mad)}
)


def passes(each: Filter, row: dict[str, Any]) -> bool | None:
    """Return what a filter makes of a row, as SQL does; None is unknown."""
    if isinstance(each, Not):
        found = passes(each.child, row)
        return None if found is None else not found
    attribute: tuple[str, ...] = each.attribute  # type: ignore[attr-defined]
    if attribute not in {(column,) for column in row}:
        return True
    value = row[attribute[0]]
    if attribute == ("storeTimestamp",):
        value = shown(value)
    match each:
        case IsNull():
            return value is None
        case IsNotNull():
            return value is not None
        case EqualNullSafe(_, other):
            return bool(value == other)
        case In(_, values):
            if value is None:
                return None
            return True if value in values else (None if None in values else False)
    other = each.value  # type: ignore[attr-defined]
    if value is None or other is None:
        return None
    match each:
        case EqualTo():
            return bool(value == other)
        case GreaterThan():
            return bool(value > other)
        case GreaterThanOrEqual():
            return bool(value >= other)
        case LessThan():
            return bool(value < other)
        case LessThanOrEqual():
            return bool(value <= other)
        case StringStartsWith():
            return bool(value.startswith(other))
        case StringEndsWith():
            return bool(value.endswith(other))
        case StringContains():
            return other in value
    raise AssertionError(each)


@given(st.lists(any_filter, max_size=4), rows)
def test_bounds_never_lose_a_row_that_passes(filters: list[Filter], row: dict[str, Any]) -> None:
    if not all(passes(each, row) for each in filters):
        return
    found = extract_predicates(filters)
    for column, name in (TEXT_COLUMNS | NUMBER_COLUMNS | {"storeTimestamp": "store_ms"}).items():
        assert getattr(found, name).admits(row[column])


@given(st.lists(filters_of("queueOffset", numbers), max_size=3), numbers, numbers)
def test_pruned_ranges_have_every_offset_that_passes(
    filters: list[Filter], start: int, end: int
) -> None:
    queue = QueueKey("T", "a", 0)
    pieces = extract_predicates(filters).prune([Range(queue, start, end)])
    kept = [offset for piece in pieces for offset in range(piece.start, piece.end)]
    assert kept == sorted(set(kept))
    assert set(kept) <= set(range(start, end))
    for offset in range(start, end):
        if all(passes(each, {"queueOffset": offset}) for each in filters):
            assert offset in kept


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([], Predicates()),
        ([EqualTo(("TOPIC",), "T")], Predicates(topics=TextBounds(frozenset({"T"})))),
        (
            [In(("tags",), ("A", "B", None)), EqualTo(("tags",), "A")],
            Predicates(tags=TextBounds(frozenset({"A"}))),
        ),
        (
            [StringStartsWith(("keys",), "or"), StringStartsWith(("keys",), "order-")],
            Predicates(keys=TextBounds(prefix="order-")),
        ),
        (
            [StringStartsWith(("keys",), "a"), StringStartsWith(("keys",), "b")],
            Predicates(keys=TextBounds(frozenset())),
        ),
        (
            [GreaterThan(("queueOffset",), 5), LessThanOrEqual(("queueOffset",), 9)],
            Predicates(offsets=NumberBounds(6, 9)),
        ),
        (
            [LessThan(("storeTimestamp",), EPOCH + timedelta(microseconds=1500))],
            Predicates(store_ms=NumberBounds(None, 1)),
        ),
        (
            [GreaterThanOrEqual(("storeTimestamp",), EPOCH + timedelta(microseconds=1500))],
            Predicates(store_ms=NumberBounds(2, None)),
        ),
        # No store time lies between two milliseconds.
        (
            [EqualTo(("storeTimestamp",), EPOCH + timedelta(microseconds=1))],
            Predicates(store_ms=NumberBounds(1, 0, frozenset())),
        ),
        # A time of no zone could be any.
        ([EqualTo(("storeTimestamp",), datetime(2026, 1, 1))], Predicates()),
        ([Not(EqualTo(("topic",), "T")), IsNull(("tags",))], Predicates()),
    ],
)
def test_filters_become_predicates(filters: list[Filter], expected: Predicates) -> None:
    assert extract_predicates(filters) == expected


def test_queues_are_chosen_by_topic_broker_and_id() -> None:
    every = [
        Range(QueueKey(topic, broker, queue_id), 0, 10)
        for topic in ("T", "U")
        for broker in ("a", "b")
        for queue_id in (0, 1)
    ]
    filters = [
        StringStartsWith(("topic",), "T"),
        EqualTo(("brokerName",), "b"),
        In(("queueId",), (1, 7)),
    ]
    assert extract_predicates(filters).prune(every) == [Range(QueueKey("T", "b", 1), 0, 10)]


def test_offsets_far_apart_are_read_separately() -> None:
    wanted = extract_predicates([In(("queueOffset",), (3, 5, 500, 10_000))])
    assert list(wanted.offsets.intervals(0, 1000)) == [(3, 6), (500, 501)]
    assert list(wanted.offsets.intervals(20, 400)) == []
