"""Arrow columns to Python values, column by column: what encoders of bodies start from.

A lister makes a list of an array, one value for each slot. Those here put listers of parts together
to listers of wholes; what the formats have of their own is in the listers of their leaves. Only
where a part has nulls is looked at single slots.
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
"""Makes structs of the columns of their fields."""


def as_is(array: pa.Array) -> list[Any]:
    """Return the values of leaves as Arrow gives them."""
    return cast("list[Any]", array.to_pylist())


def cast_to(kind: pa.DataType, where: str, of: Lister = as_is) -> Lister:
    """Return a lister of leaves that get another type first; it raises if one does not fit."""

    def listed(array: pa.Array) -> list[Any]:
        try:
            return of(array if array.type == kind else array.cast(kind))
        except pa.ArrowInvalid as error:
            raise ValueError(f"{where}: {error}") from None

    return listed


def dense(of: Lister) -> Lister:
    """Return a lister that hides nulls from another, which only gets the slots between them."""

    def listed(array: pa.Array) -> list[Any]:
        if not array.null_count:
            return of(array)
        found = iter(of(array.drop_null()))
        return [next(found) if there else None for there in array.is_valid().to_pylist()]

    return listed


def required(of: Lister, where: str) -> Lister:
    """Return a lister that takes no nulls."""

    def listed(array: pa.Array) -> list[Any]:
        if array.null_count:
            raise ValueError(f"{where} is null, which its schema does not allow")
        return of(array)

    return listed


def structs(make: Make, parts: Sequence[Lister]) -> Lister:
    """Return a lister of structs.

    Args:
        make: Gets the columns of the fields, in their order.
        parts: One for each field.
    """

    def listed(array: pa.Array) -> list[Any]:
        return list(make(*(part(array.field(at)) for at, part in enumerate(parts))))

    return dense(listed)


def arrays(of: Lister) -> Lister:
    """Return a lister of arrays."""

    def listed(array: pa.Array) -> list[Any]:
        offsets, start, length = _offsets(array)
        values = of(array.values.slice(start, length))
        return [values[a:b] for a, b in itertools.pairwise(offsets)]

    return dense(listed)


def maps(of_key: Lister, of_value: Lister) -> Lister:
    """Return a lister of maps, as dictionaries."""

    def listed(array: pa.Array) -> list[Any]:
        offsets, start, length = _offsets(array)
        keys = of_key(array.keys.slice(start, length))
        values = of_value(array.items.slice(start, length))
        return [
            dict(zip(keys[a:b], values[a:b], strict=True)) for a, b in itertools.pairwise(offsets)
        ]

    return dense(listed)


def whole_numbers(array: pa.Array) -> npt.NDArray[np.int64]:
    """Return numbers, times or durations without nulls as what they are stored as."""
    if pa.types.is_date32(array.type):
        array = array.cast(pa.int32())
    return cast("npt.NDArray[np.int64]", array.cast(pa.int64()).to_numpy())


def _offsets(array: pa.Array) -> tuple[list[int], int, int]:
    """Return where each array begins, from the first on; and where the first begins in all."""
    offsets = array.offsets.to_numpy()
    start = int(offsets[0]) if len(offsets) else 0
    end = int(offsets[-1]) if len(offsets) else 0
    return (offsets - start).tolist(), start, end - start
