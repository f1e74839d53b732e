"""Listers: functions that turn Arrow columns into Python values, for encoders of bodies.

A lister makes a list from an array, one value per slot. This module combines listers of parts into
listers of structs, arrays and maps; the listers of leaves belong to the formats. Single slots are
examined only if a part has nulls.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Lister = Callable[[pa.Array], list[Any]]
Make = Callable[..., Iterable[Any]]
"""Makes structs from the columns of their fields."""


def list_values(array: pa.Array) -> list[Any]:
    """Return the values of leaves as Arrow converts them."""
    return cast("list[Any]", array.to_pylist())


def cast_and_list(kind: pa.DataType, where: str, of: Lister = list_values) -> Lister:
    """Return a lister of leaves that casts to another type, or raises if a value does not fit."""

    def list_slots(array: pa.Array) -> list[Any]:
        try:
            return of(array if array.type == kind else array.cast(kind))
        except pa.ArrowInvalid as error:
            raise ValueError(f"{where}: {error}") from None

    return list_slots


def skip_nulls(of: Lister) -> Lister:
    """Return a lister that gives another lister only the slots that are not null."""

    def list_slots(array: pa.Array) -> list[Any]:
        if not array.null_count:
            return of(array)
        found = iter(of(array.drop_null()))
        return [next(found) if there else None for there in array.is_valid().to_pylist()]

    return list_slots


def refuse_nulls(of: Lister, where: str) -> Lister:
    """Return a lister that raises for nulls."""

    def list_slots(array: pa.Array) -> list[Any]:
        if array.null_count:
            raise ValueError(f"{where} is null, which its schema does not allow")
        return of(array)

    return list_slots


def list_structs(make: Make, parts: Sequence[Lister]) -> Lister:
    """Return a lister of structs.

    Args:
        make: Makes structs from the columns of the fields, in their order.
        parts: The lister of each field.
    """

    def list_slots(array: pa.Array) -> list[Any]:
        return list(make(*(part(array.field(at)) for at, part in enumerate(parts))))

    return skip_nulls(list_slots)


def list_arrays(of: Lister) -> Lister:
    """Return a lister of arrays."""

    def list_slots(array: pa.Array) -> list[Any]:
        offsets, start, length = _offsets(array)
        values = of(array.values.slice(start, length))
        return [values[a:b] for a, b in itertools.pairwise(offsets)]

    return skip_nulls(list_slots)


def list_maps(of_key: Lister, of_value: Lister) -> Lister:
    """Return a lister of maps, as dictionaries."""

    def list_slots(array: pa.Array) -> list[Any]:
        offsets, start, length = _offsets(array)
        keys = of_key(array.keys.slice(start, length))
        values = of_value(array.items.slice(start, length))
        return [
            dict(zip(keys[a:b], values[a:b], strict=True)) for a, b in itertools.pairwise(offsets)
        ]

    return skip_nulls(list_slots)


def list_stored_numbers(array: pa.Array) -> npt.NDArray[np.int64]:
    """Return numbers, times or durations without nulls as their stored integers."""
    if pa.types.is_date32(array.type):
        array = array.cast(pa.int32())
    return cast("npt.NDArray[np.int64]", array.cast(pa.int64()).to_numpy())


def _offsets(array: pa.Array) -> tuple[list[int], int, int]:
    """Return the starts of arrays relative to the first, and the start of the first."""
    offsets = array.offsets.to_numpy()
    start = int(offsets[0]) if len(offsets) else 0
    end = int(offsets[-1]) if len(offsets) else 0
    return (offsets - start).tolist(), start, end - start
