"""Fields of records, read by loops of the kernel that each fill one Arrow buffer."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rocketpost.kernel import property_columns
from rocketpost.kernel import record_columns as kernel
from rocketpost.spark.records.fields import (
    TIME_MAX_MS,
    TIME_MIN_MS,
    Bytes,
    Host,
    Ints,
    Limits,
    Mask,
    Properties,
    Queues,
    RecordPart,
)
from rocketpost.spark.records.numpy_fields import NumpyProperties, decode_text, utf8

COMPILED: Final = not str(kernel.__file__).endswith((".py", ".pyc"))
"""Whether the loops are compiled; if not, numpy is faster."""

_LONGS: Final = {"queueOffset": 0, "position": 1}
_BORN_TIME, _STORE_TIME, _PREPARED = 2, 3, 4
_INTS: Final = {"size": 0, "bodyCrc": 1, "queueId": 2, "flag": 3, "sysFlag": 4}
_RECONSUMED: Final = 5
_STORE_AT, _PARTS_AT = 0, 1
_HOST_TEXT_BYTES: Final = 27
_ID_BYTES: Final = 32
_PAIR_BYTES_MIN: Final = 3


class KernelFields:
    """The fields of a batch of records."""

    def __init__(self, data: Bytes, starts: Ints) -> None:
        self._data = memoryview(data)
        size = len(starts)
        starts = np.ascontiguousarray(starts)
        places = np.empty((7, size), np.int64)
        longs = np.empty((5, size), np.int64)
        ints = np.empty((6, size), np.int32)
        self.count = kernel.lay_out(
            self._data,
            starts.data,
            TIME_MIN_MS,
            TIME_MAX_MS,
            places.reshape(-1).data,
            longs.reshape(-1).data,
            ints.reshape(-1).data,
        )
        self._starts = starts[: self.count]
        self._places: list[Ints] = list(places[:, : self.count])
        self._longs: list[Ints] = list(longs[:, : self.count])
        self._ints: list[npt.NDArray[np.int32]] = list(ints[:, : self.count])
        self._flags: int | None = None
        self._queues_made: Queues | None = None

    def number(self, name: str) -> npt.NDArray[np.int32]:
        """Return a field of 4 bytes in the head."""
        return self._ints[_INTS[name]]

    def long(self, name: str) -> Ints:
        """Return a field of 8 bytes in the head."""
        return self._longs[_LONGS[name]]

    def flags(self) -> int:
        """Return the union of the bits of all sysFlags."""
        if self._flags is None:
            self._flags = int(np.bitwise_or.reduce(self.number("sysFlag")))
        return self._flags

    def queues(self) -> Queues:
        """Return the queues of the records, in the order of their first records."""
        if self._queues_made is None:
            self._queues_made = self._number_queues()
        return self._queues_made

    def _number_queues(self) -> Queues:
        topics_at, topic_ends = self._part(RecordPart.TOPIC)
        ids = self.number("queueId")
        slots = np.zeros(2 << self.count.bit_length(), np.int32)
        numbers = np.empty(self.count, np.int32)
        found = np.empty((3, self.count), np.int64)
        count = kernel.number_queues(
            self._data,
            topics_at.data,
            topic_ends.data,
            ids.data,
            self.long("queueOffset").data,
            slots.data,
            numbers.data,
            found.reshape(-1).data,
        )
        rows, lows, highs = found[:, :count].tolist()
        names = [
            (str(self._data[topics_at[row] : topic_ends[row]], "utf-8", "replace"), int(ids[row]))
            for row in rows
        ]
        return Queues(names, lows, highs, numbers)

    def in_queues(self, entries: Bytes, limits: list[Limits]) -> Mask:
        """Return which records their queues point at, or cannot point at yet."""
        visible = np.empty(self.count, np.bool_)
        kernel.find_in_queues(
            memoryview(entries),
            self.queues().numbers.data,
            self.long("queueOffset").data,
            self.long("position").data,
            np.array(limits, np.int64).T.ravel().data,
            visible.view(np.uint8).data,
        )
        return visible

    def born_times(self) -> Ints:
        """Return the born times in us."""
        return self._longs[_BORN_TIME]

    def store_times(self) -> Ints:
        """Return the store times in us."""
        return self._longs[_STORE_TIME]

    def reconsume_times(self) -> npt.NDArray[np.int32]:
        """Return the reconsume times."""
        return self._ints[_RECONSUMED]

    def prepared_position(self) -> Ints:
        """Return the positions of the prepared messages of transactions."""
        return self._longs[_PREPARED]

    def host_offsets(self, host: Host) -> Ints:
        """Return the offsets of hosts in the data."""
        return self._starts + 48 if host is Host.BORN else self._places[_STORE_AT] + 8

    def hosts(self, host: Host) -> pa.Array:
        """Return hosts as text; all must be IPv4."""
        at, shift = (self._starts, 48) if host is Host.BORN else (self._places[_STORE_AT], 8)
        offsets = np.empty(self.count + 1, np.int32)
        text = np.empty(self.count * _HOST_TEXT_BYTES, np.uint8)
        kernel.write_hosts(self._data, at.data, shift, offsets.data, text.data)
        return pa.StringArray.from_buffers(self.count, pa.py_buffer(offsets), pa.py_buffer(text))

    def message_ids(self) -> pa.Array:
        """Return message ids; all store hosts must be IPv4."""
        text = np.empty(self.count * _ID_BYTES, np.uint8)
        hosts_at, starts = self._places[_STORE_AT].data, self._starts.data
        kernel.write_ids(self._data, hosts_at, 8, starts, text.data)
        offsets = np.arange(self.count + 1, dtype=np.int32) * _ID_BYTES
        return pa.StringArray.from_buffers(self.count, pa.py_buffer(offsets), pa.py_buffer(text))

    def bodies(self) -> pa.BinaryArray:
        """Return the bodies."""
        return slices(self._data, *self._part(RecordPart.BODY))

    def texts(self, part: RecordPart) -> pa.StringArray:
        """Return topics or property strings."""
        try:
            return texts(self._data, *self._part(part))
        except pa.ArrowInvalid:
            return decode_text(slices(self._data, *self._part(part)))

    def properties(self) -> Properties:
        """Return the properties."""
        begins, ends = self._part(RecordPart.PROPERTIES)
        try:
            return KernelProperties(self._data, begins, ends)
        except pa.ArrowInvalid:  # not UTF-8
            return NumpyProperties.parse_each(slices(self._data, begins, ends))

    def _part(self, part: RecordPart) -> tuple[Ints, Ints]:
        """Return the starts and ends of one part of all records."""
        row = _PARTS_AT + 2 * part
        return self._places[row], self._places[row + 1]


class KernelProperties:
    """The property strings of a batch, split into names and values."""

    def __init__(self, data: memoryview, begins: Ints, ends: Ints) -> None:
        size = int((ends - begins).sum())
        room = size // _PAIR_BYTES_MIN + 1
        self._row_ends = np.empty(len(begins) + 1, np.int32)
        self._name_ends, self._value_ends = np.empty((2, room), np.int32)
        self._name_bytes, self._value_bytes = np.empty((2, size), np.uint8)
        self._alike = np.empty(len(begins), np.uint8)
        count = property_columns.split_properties(
            data,
            begins.data,
            ends.data,
            self._row_ends.data,
            self._name_ends.data,
            self._name_bytes.data,
            self._value_ends.data,
            self._value_bytes.data,
            self._alike.data,
        )
        self._names = as_text(count, self._name_ends, self._name_bytes)
        self._values = as_text(count, self._value_ends, self._value_bytes)

    def map(self) -> pa.Array:
        """Return names and values."""
        return pa.MapArray.from_arrays(pa.array(self._row_ends), self._names, self._values)

    def values_of(self, name: str) -> pa.Array:
        """Return the value of one property for each message, null if it has none."""
        count = len(self._row_ends) - 1
        begins, ends = np.empty((2, count), np.int64)
        found = property_columns.find_values(
            name.encode(),
            self._row_ends.data,
            self._name_ends.data,
            self._name_bytes.data,
            self._value_ends.data,
            self._alike.data,
            begins.data,
            ends.data,
        )
        if not found:
            return pa.nulls(count, pa.string())
        return texts(self._value_bytes.data, begins, ends, has_nulls=found < count)


def slices(data: memoryview, begins: Ints, ends: Ints) -> pa.BinaryArray:
    """Return slices of the data."""
    offsets, joined = _join_slices(data, begins, ends)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(joined)]
    return pa.BinaryArray.from_buffers(pa.binary(), len(begins), buffers)


def texts(data: memoryview, begins: Ints, ends: Ints, *, has_nulls: bool = False) -> pa.StringArray:
    """Return slices of the data as texts; a slice that begins at -1 is null.

    Raises:
        pa.ArrowInvalid: A text is not UTF-8.
    """
    offsets, joined = _join_slices(data, begins, ends)
    valid = pa.py_buffer(np.packbits(begins >= 0, bitorder="little")) if has_nulls else None
    return as_text(len(begins), offsets, joined, valid)


def as_text(
    count: int,
    offsets: npt.NDArray[np.int32],
    joined: npt.NDArray[np.uint8],
    valid: pa.Buffer | None = None,
) -> pa.StringArray:
    """Return an array of adjacent texts.

    Raises:
        pa.ArrowInvalid: A text is not UTF-8.
    """
    kind = pa.string() if kernel.is_ascii(joined[: offsets[count]].data) else pa.binary()
    buffers = [valid, pa.py_buffer(offsets), pa.py_buffer(joined)]
    found = pa.Array.from_buffers(kind, count, buffers)
    return found if kind == pa.string() else utf8(found)


def _join_slices(
    data: memoryview, begins: Ints, ends: Ints
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    """Return joined slices, and the start of each."""
    offsets = np.empty(len(begins) + 1, np.int32)
    joined = np.empty(kernel.measure(begins.data, ends.data, offsets.data), np.uint8)
    kernel.copy_slices(data, begins.data, offsets.data, joined.data)
    return offsets, joined
