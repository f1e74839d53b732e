"""Values of arrays that are cut, have nulls, or both."""

from __future__ import annotations

import datetime

import pyarrow as pa
import pytest

from rocketpost.spark.bodies import listers

LISTS = pa.array([[1], None, [], [2, None], [3]], pa.list_(pa.int64()))


def test_arrays_are_cut_where_they_begin() -> None:
    listed = listers.list_arrays(listers.list_values)
    for start in range(len(LISTS) + 1):
        assert listed(LISTS.slice(start)) == LISTS.slice(start).to_pylist()


def test_maps_are_dictionaries() -> None:
    found = pa.array([[("a", 1)], None, [("b", None), ("c", 2)]], pa.map_(pa.string(), pa.int64()))
    listed = listers.list_maps(listers.list_values, listers.list_values)
    assert listed(found.slice(1)) == [None, {"b": None, "c": 2}]


def test_a_null_in_a_required_field_is_named_unless_its_struct_is_null() -> None:
    listed = listers.list_structs(zip, [listers.refuse_nulls(listers.list_values, "x.n")])
    kind = pa.struct([("n", pa.int64())])
    assert listed(pa.array([{"n": 1}, None], kind)) == [(1,), None]
    with pytest.raises(ValueError, match=r"x.n is null"):
        listed(pa.array([{"n": 1}, {"n": None}], kind))


def test_values_that_do_not_fit_are_named() -> None:
    listed = listers.cast_and_list(pa.uint32(), "count")
    assert listed(pa.array([1, None])) == [1, None]
    with pytest.raises(ValueError, match="count: Integer value -1 not in range"):
        listed(pa.array([-1]))


def test_dates_and_times_are_the_numbers_that_they_are_stored_as() -> None:
    day = datetime.date(1970, 1, 3)
    assert listers.list_stored_numbers(pa.array([day])).tolist() == [2]
    time = pa.array([5], pa.timestamp("us", tz="UTC"))
    assert listers.list_stored_numbers(time).tolist() == [5]
