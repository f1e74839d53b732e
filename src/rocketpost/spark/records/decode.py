"""Decoding of records into record batches, from bytes of a pull response or a segment.

Only the requested columns are decoded. Rare cases (IPv6 hosts, compressed bodies, bytes that are
not text) use slower code, only for the batch that has them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rocketpost.client.compression import decompress
from rocketpost.model import properties as names
from rocketpost.model.sysflag import BORN_HOST_V6, COMPRESSED, STORE_HOST_V6
from rocketpost.spark.records.chunk import Chunk
from rocketpost.spark.records.columns import Column
from rocketpost.spark.records.fields import Host, Ints, Properties, RecordPart, corrupt_record
from rocketpost.spark.records.numpy_fields import host_text

_TIME: Final = pa.timestamp("us", tz="UTC")
_KEY_COLUMNS: Final = {"uniqkey": names.UNIQUE_KEY, "keys": names.KEYS, "tags": names.TAGS}
_V6_BITS: Final = {Host.BORN: BORN_HOST_V6, Host.STORE: STORE_HOST_V6}


def decode(
    chunk: Chunk,
    columns: tuple[Column, ...],
    *,
    broker_name: str | None,
    decompressed: bool = True,
) -> pa.RecordBatch:
    """Return records as a batch with the given columns.

    Args:
        chunk: The records.
        columns: The columns to decode.
        broker_name: The name of the broker, if known.
        decompressed: Whether compressed bodies are decompressed.

    Raises:
        CorruptRecord: The lengths in a record do not add up.
        RemoteProtocolError: A body is not compressed as its flag says.
    """
    if not columns:  # a count: rows without columns
        return pa.RecordBatch.from_struct_array(pa.array([{}] * len(chunk), pa.struct([])))
    if chunk.fields.count < len(chunk):
        raise corrupt_record(chunk.data, int(chunk.starts[chunk.fields.count]))
    records = _Records(chunk, broker_name, decompressed)
    arrays = [records.column(column) for column in columns]
    # Spark would show arbitrary bytes in place of such a null.
    assert all(
        column.nullable or not array.null_count
        for column, array in zip(columns, arrays, strict=True)
    )
    return pa.RecordBatch.from_arrays(arrays, schema=_schema(columns))


class _Records:
    """The records of one batch, decoded column by column."""

    def __init__(self, chunk: Chunk, broker_name: str | None, decompressed: bool) -> None:
        self._data = chunk.data
        self._count = len(chunk)
        self.fields = chunk.fields
        self._broker_name = broker_name
        self._decompressed = decompressed
        self._flags = chunk.fields.flags()
        self._properties_made: Properties | None = None

    def column(self, column: Column) -> pa.Array:
        """Return one column."""
        name = column.name.lower()
        if name in _KEY_COLUMNS:
            return self._properties().values_of(_KEY_COLUMNS[name])
        if name == "properties":
            is_text = column.arrow == pa.string()
            return self.fields.texts(RecordPart.PROPERTIES) if is_text else self._properties().map()
        return _MAKERS[name](self)

    def broker_name(self) -> pa.Array:
        if self._broker_name is None:
            return pa.nulls(self._count, pa.string())
        return pa.repeat(pa.scalar(self._broker_name, pa.string()), self._count)

    def number(self, field: str) -> pa.Array:
        return _numbers_array(pa.int32(), self.fields.number(field))

    def long(self, field: str) -> pa.Array:
        return _numbers_array(pa.int64(), self.fields.long(field))

    def host(self, host: Host) -> pa.Array:
        if not self._flags & _V6_BITS[host]:
            return self.fields.hosts(host)
        hosts = self._host_bytes(host)
        texts = {each: host_text(each) for each in set(hosts)}
        return pa.array([texts[each] for each in hosts], pa.string())

    def message_id(self) -> pa.Array:
        if not self._flags & STORE_HOST_V6:
            return self.fields.message_ids()
        pairs = zip(self._host_bytes(Host.STORE), self.fields.long("position"), strict=True)
        return pa.array([f"{host.hex().upper()}{at:016X}" for host, at in pairs], pa.string())

    def body(self) -> pa.Array:
        bodies = self.fields.bodies()
        if not self._decompressed or not self._flags & COMPRESSED:
            return bodies
        flags = self.fields.number("sysFlag").tolist()
        plain = [
            decompress(body, flag) for body, flag in zip(bodies.to_pylist(), flags, strict=True)
        ]
        return pa.array(plain, pa.binary())

    def _properties(self) -> Properties:
        if self._properties_made is None:
            self._properties_made = self.fields.properties()
        return self._properties_made

    def _host_bytes(self, host: Host) -> list[bytes]:
        at = self.fields.host_offsets(host).tolist()
        sizes = np.where(self.fields.number("sysFlag") & _V6_BITS[host], 20, 8).tolist()
        return [bytes(self._data[a : a + n]) for a, n in zip(at, sizes, strict=True)]


_MAKERS: Final[dict[str, Callable[[_Records], pa.Array]]] = {
    "topic": lambda records: records.fields.texts(RecordPart.TOPIC),
    "brokername": _Records.broker_name,
    "queueid": lambda records: records.number("queueId"),
    "queueoffset": lambda records: records.long("queueOffset"),
    "commitlogoffset": lambda records: records.long("position"),
    "msgid": _Records.message_id,
    "flag": lambda records: records.number("flag"),
    "sysflag": lambda records: records.number("sysFlag"),
    "bodycrc": lambda records: records.number("bodyCrc"),
    "borntimestamp": lambda records: _numbers_array(_TIME, records.fields.born_times()),
    "bornhost": lambda records: records.host(Host.BORN),
    "storetimestamp": lambda records: _numbers_array(_TIME, records.fields.store_times()),
    "storehost": lambda records: records.host(Host.STORE),
    "reconsumetimes": lambda records: _numbers_array(pa.int32(), records.fields.reconsume_times()),
    "preparedtransactionoffset": lambda records: _numbers_array(
        pa.int64(), records.fields.prepared_position()
    ),
    "storesize": lambda records: records.number("size"),
    "body": _Records.body,
}


def _numbers_array(kind: pa.DataType, values: Ints | npt.NDArray[np.int32]) -> pa.Array:
    """Return numbers as a column, faster than ``pa.array``, which detects the type."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


@functools.cache
def _schema(columns: tuple[Column, ...]) -> pa.Schema:
    return pa.schema([column.field for column in columns])
