"""The shape of rows of a source: the columns to decode, and the form of bodies.

Without ``bodyFormat`` the columns are those of the user's schema. With it the column ``body`` has
the type of the format, and with ``bodyErrors=keep`` the column ``corruptBody`` has the bytes of
bodies that do not match it.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import DataType, StructField, StructType

from rocketpost.errors import ClientError, ConfigError
from rocketpost.spark.bodies.codec import UNREADABLE, Parser
from rocketpost.spark.bodies.formats import make_codec
from rocketpost.spark.records import columns
from rocketpost.spark.records.columns import Column
from rocketpost.spark.row_options import RowOptions

CORRUPT: Final = Column("corruptBody", pa.binary(), "binary", nullable=True)
_BODY: Final = next(each for each in columns.ALL if each.name == "body")
_PLACE_NAMES: Final = ("topic", "queueid", "queueoffset")
_PLACE: Final = tuple(each for each in columns.ALL if each.name.lower() in _PLACE_NAMES)


def ddl(options: RowOptions) -> str:
    """Return the whole schema of a source as text for Spark.

    Raises:
        ConfigError: The schema of bodies is missing or wrong.
    """
    codec = make_codec(options)
    every = columns.all_columns(options.properties_format)
    if codec is not None:
        body = Column(_BODY.name, _BODY.arrow, codec.words(), nullable=True)
        every = tuple(body if each is _BODY else each for each in every)
        if options.body_errors == "keep":
            every = (*every, CORRUPT)
    return columns.ddl(every)


class Shape:
    """The rows of a query. Pickled into tasks.

    Attributes:
        decoded: The columns to decode from records.
    """

    def __init__(self, schema: StructType, options: RowOptions) -> None:
        self._codec = make_codec(options)
        self._errors = options.body_errors
        self._parse: Parser | None = None
        self._wanted = tuple(map(self._column, schema.fields))
        self.decoded = self._wanted
        self._is_plain = self._codec is None or not any(map(_is_computed, self._wanted))
        if not self._is_plain:
            self._body_type = _body_type(schema)
            self._body_arrow = to_arrow_type(self._body_type, timezone="UTC")
            others = tuple(each for each in self._wanted if not _is_computed(each))
            there = {each.name.lower() for each in others}
            place = tuple(each for each in _PLACE if each.name.lower() not in there)
            self.decoded = (*others, *place, _BODY)

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return decoded columns in the form that the query needs.

        Raises:
            ClientError: A body does not match its schema, and ``bodyErrors`` is ``fail``.
        """
        if self._is_plain:
            return batch
        bodies, corrupt = self._read(batch)
        arrays = []
        for column in self._wanted:
            if column.name.lower() == "body":
                arrays.append(bodies)
            elif _is_computed(column):
                arrays.append(corrupt)
            else:
                arrays.append(batch.column(column.name))
        schema = pa.schema([column.field for column in self._wanted])
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _column(self, field: StructField) -> Column:
        known = self._known(field)
        if known.nullable and not field.nullable:
            raise ConfigError(f"the column {field.name} may be null; remove NOT NULL")
        return known._replace(nullable=field.nullable)

    def _known(self, field: StructField) -> Column:
        words = field.dataType.simpleString()
        if self._codec is not None and field.name.lower() == "body":
            self._codec.check(field.dataType)
            arrow = to_arrow_type(field.dataType, timezone="UTC")
            return Column(field.name, arrow, words, nullable=True)
        if self._errors == "keep" and field.name.lower() == "corruptbody":
            if words != CORRUPT.spark:
                raise ConfigError(f"the column {CORRUPT.name} is {CORRUPT.spark}, not {words}")
            return CORRUPT._replace(name=field.name)
        return columns.select_columns([(field.name, words)])[0]

    def _read(self, batch: pa.RecordBatch) -> tuple[pa.Array, pa.Array]:
        """Return parsed bodies, and the bytes of bodies that do not match the schema."""
        if self._parse is None:
            assert self._codec is not None
            self._parse = self._codec.parser(self._body_type)
        parse = self._parse
        bodies = batch.column(_BODY.name).to_pylist()
        try:
            found = pa.array([parse(body) for body in bodies], self._body_arrow)
        except UNREADABLE:
            return self._find_bad_bodies(parse, bodies, batch)
        return found, pa.nulls(len(bodies), pa.binary())

    def _find_bad_bodies(
        self, parse: Parser, bodies: list[bytes], batch: pa.RecordBatch
    ) -> tuple[pa.Array, pa.Array]:
        """Find the bodies of a batch that do not match their schema."""
        values: list[object] = []
        corrupt: list[bytes | None] = []
        for at, body in enumerate(bodies):
            try:
                value = parse(body)
                pa.array([value], self._body_arrow)
            except UNREADABLE as error:
                if self._errors == "fail":
                    raise ClientError(self._describe_error(batch, at, error)) from None
                values.append(None)
                corrupt.append(body)
            else:
                values.append(value)
                corrupt.append(None)
        return pa.array(values, self._body_arrow), pa.array(corrupt, pa.binary())

    def _describe_error(self, batch: pa.RecordBatch, at: int, error: Exception) -> str:
        assert self._codec is not None
        names = {name.lower(): name for name in batch.schema.names}
        topic, queue, offset = (batch.column(names[name])[at] for name in _PLACE_NAMES)
        return (
            f"the body at offset {offset} of queue {queue} of {topic} does not match its "
            f"schema (bodyFormat={self._codec.name}): "
            f"{str(error) or type(error).__name__}. Set bodyErrors=null to read such "
            "bodies as null, or bodyErrors=keep to get their bytes in corruptBody"
        )


def _is_computed(column: Column) -> bool:
    return column.name.lower() in ("body", "corruptbody")


def _body_type(schema: StructType) -> DataType:
    for field in schema.fields:
        if field.name.lower() == "body":
            return field.dataType
    raise ConfigError("corruptBody can only be read together with body; select both")
