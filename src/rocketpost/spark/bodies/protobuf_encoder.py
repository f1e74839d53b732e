"""Encoding of columns as Protobuf messages; nulls stay unset."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from rocketpost.errors import ConfigError
from rocketpost.spark.bodies import listers
from rocketpost.spark.bodies.listers import Lister
from rocketpost.spark.bodies.protobuf_types import (
    TIMESTAMP,
    WRAPPERS,
    element_type,
    field_type,
    is_map,
    type_name,
)
from rocketpost.spark.bodies.type_checks import arrow_type, check_fits, check_names, column_path
from rocketpost.spark.records.fields import TIME_MAX_MS, TIME_MIN_MS

_UNSIGNED_ARROW: Final = {
    "FIXED32": pa.uint32(),
    "FIXED64": pa.uint64(),
    "UINT32": pa.uint32(),
    "UINT64": pa.uint64(),
}


def make_message_encoder(descriptor: Any, given: StructType, where: str) -> Lister:
    """Return a function that makes messages from structs.

    Raises:
        ConfigError: A column is unknown, missing, or of another type.
    """
    from google.protobuf.message_factory import GetMessageClass

    _check_fields(descriptor, given, where)
    fields = descriptor.fields_by_name
    parts = [
        _make_lister(fields[each.name], each.dataType, column_path(where, each.name))
        for each in given.fields
    ]
    message = GetMessageClass(descriptor)
    names = given.names
    choices = _find_oneofs(descriptor, names)

    def make(*columns: list[Any]) -> Iterator[Any]:
        for values in zip(*columns, strict=True):
            for at in choices:
                _check_oneof([names[each] for each in at if values[each] is not None], where)
            yield message(**dict(zip(names, values, strict=True)))

    return listers.list_structs(make, parts)


def _check_fields(descriptor: Any, given: StructType, where: str) -> None:
    check_names(given, where)
    fields, kind = descriptor.fields_by_name, descriptor.full_name
    for name in given.names:
        if name not in fields:
            raise ConfigError(
                f"{kind} has no field for the column {column_path(where, name)}; "
                f"it has {', '.join(fields)}"
            )
    for field in descriptor.fields:
        if field.is_required and field.name not in given.names:
            raise ConfigError(
                f"there is no column {column_path(where, field.name)}, which {kind} needs"
            )


def _find_oneofs(descriptor: Any, names: list[str]) -> list[list[int]]:
    """Return the columns of each group of fields of which only one can be set."""
    found = []
    for choice in descriptor.oneofs:
        at = [names.index(field.name) for field in choice.fields if field.name in names]
        if len(at) > 1:
            found.append(at)
    return found


def _check_oneof(names: list[str], where: str) -> None:
    if len(names) > 1:
        columns = " and ".join(column_path(where, name) for name in names)
        raise ValueError(f"{columns} are set, but only one of them can be")


def _make_lister(field: Any, given: DataType, where: str) -> Lister:
    if is_map(field) and isinstance(given, MapType):
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        values = listers.refuse_nulls(_make_single_lister(value, given.valueType, where), where)
        return listers.list_maps(_make_single_lister(key, given.keyType, where), values)
    if field.is_repeated and not is_map(field) and isinstance(given, ArrayType):
        single = _make_single_lister(field, given.elementType, where)
        return listers.list_arrays(listers.refuse_nulls(single, where))
    if field.is_repeated:
        check_fits(given, field_type(field, where, ()), where)
    single = _make_single_lister(field, given, where)
    return listers.refuse_nulls(single, where) if field.is_required else single


def _make_single_lister(field: Any, given: DataType, where: str) -> Lister:
    wanted = element_type(field, where, ())
    if isinstance(wanted, StructType) and isinstance(given, StructType):
        return make_message_encoder(field.message_type, given, where)
    check_fits(given, wanted, where)
    if field.message_type is None:
        arrow = _UNSIGNED_ARROW.get(type_name(field)) or arrow_type(wanted)
        names = _make_enum_lister(field.enum_type, where) if field.enum_type is not None else None
        return listers.cast_and_list(arrow, where, names or listers.list_values)
    return listers.skip_nulls(
        listers.cast_and_list(arrow_type(wanted), where, _make_google_lister(field, where))
    )


def _make_google_lister(field: Any, where: str) -> Lister:
    """Return the lister of Google's well-known messages from their Spark types."""
    from google.protobuf.message_factory import GetMessageClass

    message = GetMessageClass(field.message_type)
    name = field.message_type.full_name
    if name in WRAPPERS:
        inner = field.message_type.fields_by_name["value"]
        arrow = _UNSIGNED_ARROW.get(type_name(inner))
        listed = listers.cast_and_list(arrow, where) if arrow is not None else listers.list_values
        return lambda array: [message(value=value) for value in listed(array)]

    def times(array: pa.Array) -> list[Any]:
        micros = listers.list_stored_numbers(array)
        if name == TIMESTAMP:
            _check_years(micros, where)
            seconds, rest = np.divmod(micros, 1_000_000)
        else:  # both parts of a duration have its sign
            rest = np.fmod(micros, 1_000_000)
            seconds = (micros - rest) // 1_000_000
        return list(map(_set_time(message), seconds.tolist(), (rest * 1000).tolist()))

    return times


def _set_time(message: Any) -> Callable[[int, int], Any]:
    return lambda seconds, nanos: message(seconds=seconds, nanos=nanos)


def _check_years(micros: Any, where: str) -> None:
    if len(micros) and not (
        micros.min() >= TIME_MIN_MS * 1000 and micros.max() < (TIME_MAX_MS + 1) * 1000
    ):
        raise ValueError(f"{where} is outside the years 1 to 9999")


def _make_enum_lister(kind: Any, where: str) -> Lister:
    """Return the lister of enum names, or digits, as numbers."""
    numbers = {name: value.number for name, value in kind.values_by_name.items()}

    def number_of(name: str | None) -> int | None:
        if name is None or name in numbers:
            return numbers[name] if name is not None else None
        try:
            return int(name)
        except ValueError:
            raise ValueError(f"{where} is {name!r}, which {kind.full_name} does not have") from None

    return lambda array: list(map(number_of, listers.list_values(array)))
