"""Columns to Protobuf messages: what is null stays unset."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from rocketpost.errors import ConfigError
from rocketpost.spark.bodies import listing
from rocketpost.spark.bodies.fitting import arrow_of, check_fits, check_names, inside
from rocketpost.spark.bodies.listing import Lister
from rocketpost.spark.bodies.protobuf_types import (
    TIMESTAMP,
    WRAPPERS,
    is_map,
    kind_of,
    single_of,
    type_name,
)
from rocketpost.spark.records.fields import TIME_MAX_MS, TIME_MIN_MS

_UNSIGNED_ARROW: Final = {
    "FIXED32": pa.uint32(),
    "FIXED64": pa.uint64(),
    "UINT32": pa.uint32(),
    "UINT64": pa.uint64(),
}


def messages(descriptor: Any, given: StructType, where: str) -> Lister:
    """Return what makes messages of structs.

    Raises:
        ConfigError: A column is unknown, missing, or of a type that does not fit.
    """
    from google.protobuf.message_factory import GetMessageClass

    _check_fields(descriptor, given, where)
    fields = descriptor.fields_by_name
    parts = [
        _lister(fields[each.name], each.dataType, inside(where, each.name)) for each in given.fields
    ]
    message = GetMessageClass(descriptor)
    names = given.names
    choices = _choices(descriptor, names)

    def make(*columns: list[Any]) -> Iterator[Any]:
        for values in zip(*columns, strict=True):
            for at in choices:
                _check_choice([names[each] for each in at if values[each] is not None], where)
            yield message(**dict(zip(names, values, strict=True)))

    return listing.structs(make, parts)


def _check_fields(descriptor: Any, given: StructType, where: str) -> None:
    check_names(given, where)
    fields, kind = descriptor.fields_by_name, descriptor.full_name
    for name in given.names:
        if name not in fields:
            raise ConfigError(
                f"{kind} has no field for the column {inside(where, name)}; "
                f"it has {', '.join(fields)}"
            )
    for field in descriptor.fields:
        if field.is_required and field.name not in given.names:
            raise ConfigError(f"there is no column {inside(where, field.name)}, which {kind} needs")


def _choices(descriptor: Any, names: list[str]) -> list[list[int]]:
    """Return which columns are fields of which only one can be set, by their numbers."""
    found = []
    for choice in descriptor.oneofs:
        at = [names.index(field.name) for field in choice.fields if field.name in names]
        if len(at) > 1:
            found.append(at)
    return found


def _check_choice(names: list[str], where: str) -> None:
    if len(names) > 1:
        columns = " and ".join(inside(where, name) for name in names)
        raise ValueError(f"{columns} are set, and only one of them can be")


def _lister(field: Any, given: DataType, where: str) -> Lister:
    if is_map(field) and isinstance(given, MapType):
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        values = listing.required(_lister_of_one(value, given.valueType, where), where)
        return listing.maps(_lister_of_one(key, given.keyType, where), values)
    if field.is_repeated and not is_map(field) and isinstance(given, ArrayType):
        single = _lister_of_one(field, given.elementType, where)
        return listing.arrays(listing.required(single, where))
    if field.is_repeated:
        check_fits(given, kind_of(field, where, ()), where)
    single = _lister_of_one(field, given, where)
    return listing.required(single, where) if field.is_required else single


def _lister_of_one(field: Any, given: DataType, where: str) -> Lister:
    wanted = single_of(field, where, ())
    if isinstance(wanted, StructType) and isinstance(given, StructType):
        return messages(field.message_type, given, where)
    check_fits(given, wanted, where)
    if field.message_type is None:
        arrow = _UNSIGNED_ARROW.get(type_name(field)) or arrow_of(wanted)
        names = _enum_numbers(field.enum_type, where) if field.enum_type is not None else None
        return listing.cast_to(arrow, where, names or listing.as_is)
    return listing.dense(listing.cast_to(arrow_of(wanted), where, _known(field, where)))


def _known(field: Any, where: str) -> Lister:
    """Return what makes messages of Google's own of the types that Spark has for them."""
    from google.protobuf.message_factory import GetMessageClass

    message = GetMessageClass(field.message_type)
    name = field.message_type.full_name
    if name in WRAPPERS:
        inner = field.message_type.fields_by_name["value"]
        arrow = _UNSIGNED_ARROW.get(type_name(inner))
        listed = listing.cast_to(arrow, where) if arrow is not None else listing.as_is
        return lambda array: [message(value=value) for value in listed(array)]

    def times(array: pa.Array) -> list[Any]:
        micros = listing.whole_numbers(array)
        if name == TIMESTAMP:
            _check_years(micros, where)
            seconds, rest = np.divmod(micros, 1_000_000)
        else:  # both parts of a duration have its sign
            rest = np.fmod(micros, 1_000_000)
            seconds = (micros - rest) // 1_000_000
        return list(map(_timed(message), seconds.tolist(), (rest * 1000).tolist()))

    return times


def _timed(message: Any) -> Callable[[int, int], Any]:
    return lambda seconds, nanos: message(seconds=seconds, nanos=nanos)


def _check_years(micros: Any, where: str) -> None:
    if len(micros) and not (
        micros.min() >= TIME_MIN_MS * 1000 and micros.max() < (TIME_MAX_MS + 1) * 1000
    ):
        raise ValueError(f"{where} lies outside the years 1 to 9999")


def _enum_numbers(kind: Any, where: str) -> Lister:
    """Return what lists names of an enum as numbers, and digits too, as they are read."""
    numbers = {name: value.number for name, value in kind.values_by_name.items()}

    def number_of(name: str | None) -> int | None:
        if name is None or name in numbers:
            return numbers[name] if name is not None else None
        try:
            return int(name)
        except ValueError:
            raise ValueError(f"{where} is {name!r}, which {kind.full_name} does not have") from None

    return lambda array: list(map(number_of, listing.as_is(array)))
