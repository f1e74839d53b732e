"""Bodies of a sink: the columns that become the body, and their encoding.

With ``bodyFormat``, a column ``body`` is a struct that the format encodes. Without such a column,
all columns that have no other meaning for the sink are the fields of the body.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from rocketpost.errors import ConfigError, MessageRefused
from rocketpost.spark.bodies import listers
from rocketpost.spark.bodies.codec import UNREADABLE, Encoder, StructCodec
from rocketpost.spark.bodies.formats import make_codec
from rocketpost.spark.sink.options import COLUMNS, SinkOptions

_ROUTING: Final = frozenset(name.lower() for name in COLUMNS) - {"body"}


class SinkBodies:
    """The columns of a sink, and the encoding of its bodies. Pickled into tasks.

    Attributes:
        columns: Names and types of the columns after bodies are encoded.
    """

    def __init__(self, schema: StructType, options: SinkOptions) -> None:
        """Check the columns.

        Raises:
            ConfigError: A column cannot be encoded in this format, or is missing.
        """
        self.columns = [(each.name, each.dataType.simpleString()) for each in schema]
        self._codec = None
        self._encode: Encoder | None = None
        if options.has_fields:
            codec = make_codec(options)
            assert isinstance(codec, StructCodec)
            self._codec = codec
            self._select_body(schema)
            codec.encoder(self._given, self._where)  # the error says what does not fit

    def pack(self, batch: pa.RecordBatch, first_row: int) -> pa.RecordBatch:
        """Return rows with bodies of bytes.

        Args:
            batch: The rows.
            first_row: The number of the first row in its task.

        Raises:
            MessageRefused: A row has a value that its schema does not allow.
        """
        if self._codec is None:
            return batch
        names = batch.schema.names
        if self._where:
            structs = batch.column(self._where)
        else:
            parts = [batch.column(name) for name in self._given.names]
            structs = pa.StructArray.from_arrays(parts, names=self._given.names)
        routing = [name for name in names if name.lower() in _ROUTING]
        columns = [*map(batch.column, routing), self._bodies(structs, first_row)]
        return pa.RecordBatch.from_arrays(columns, names=[*routing, "body"])

    def _select_body(self, schema: StructType) -> None:
        """Select the columns of the body."""
        bodies = [each for each in schema if each.name.lower() == "body"]
        routing = [each for each in self.columns if each[0].lower() in _ROUTING]
        rest = [each for each in schema if each.name.lower() not in _ROUTING]
        self._where = ""
        if not bodies:
            self._given = _body_fields(rest)
        elif len(rest) == 1:
            self._where, self._given = bodies[0].name, _struct_type(bodies[0])
        else:
            stray = next(each.name for each in rest if each.name.lower() != "body")
            raise ConfigError(
                f"the sink cannot use the column {stray} beside body; put it into body, "
                "or leave out body: then all columns that do not route messages become "
                "the body"
            )
        self.columns = [*routing, ("body", "binary")]

    def _bodies(self, structs: pa.StructArray, first_row: int) -> pa.Array:
        assert self._codec is not None
        if self._encode is None:
            self._encode = self._codec.encoder(self._given, self._where)
        encode: listers.Lister = self._encode
        try:
            return pa.array(listers.skip_nulls(encode)(structs), pa.binary())
        except UNREADABLE:
            for at in range(len(structs)):
                self._try(encode, structs.slice(at, 1), first_row + at)
            raise

    def _try(self, encode: listers.Lister, one: pa.StructArray, row: int) -> None:
        assert self._codec is not None
        try:
            listers.skip_nulls(encode)(one)
        except UNREADABLE as error:
            raise MessageRefused(
                f"row {row} of the task cannot be written as {self._codec.name}: "
                f"{str(error) or type(error).__name__}"
            ) from None


def _body_fields(rest: list[StructField]) -> StructType:
    if not rest:
        raise ConfigError("the body needs a column: body, or those that become its fields")
    return StructType(rest)


def _struct_type(body: StructField) -> Any:
    if not isinstance(body.dataType, StructType):
        raise ConfigError(
            f"the column {body.name} is {body.dataType.simpleString()}; with bodyFormat it must be "
            "a struct"
        )
    return body.dataType
