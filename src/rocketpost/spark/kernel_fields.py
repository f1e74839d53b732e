"""Fields of records by the kernel's loops, each of which fills one buffer of Arrow's."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rocketpost.kernel import record_columns as kernel
from rocketpost.spark.fields import (
    TIME_MAX_MS,
    TIME_MIN_MS,
    Host,
    Ints,
    Part,
    Properties,
    damaged,
    place_of,
)
from rocketpost.spark.numpy_fields import NumpyProperties, text_of, utf8

COMPILED: Final = not str(kernel.__file__).endswith((".py", ".pyc"))
"""Whether the loops are compiled; if not, numpy is the faster way."""

_PLACES: Final = 8
_STORE_AT, _REST_AT, _PARTS_AT = 0, 1, 2
_HOST_TEXT_BYTES: Final = 27
_ID_BYTES: Final = 32
_PAIR_BYTES_MIN: Final = 3


class KernelFields:
    """The fields of a batch of records."""

    def __init__(self, data: bytes | memoryview, starts: Ints) -> None:
        self._data = memoryview(data)
        self._starts = np.ascontiguousarray(starts)
        self._count = len(starts)
        self._places_made: npt.NDArray[np.int64] | None = None

    def number(self, name: str) -> npt.NDArray[np.int32]:
        """Return a field of the head that has 4 bytes."""
        return self._ints(self._starts, place_of(name))

    def long(self, name: str) -> Ints:
        """Return a field of the head that has 8 bytes."""
        return self._longs(self._starts, place_of(name))

    def born_times(self) -> Ints:
        """Return the born times in us."""
        return self._times(self._starts, place_of("bornTime"))

    def store_times(self) -> Ints:
        """Return the store times in us."""
        return self._times(self._places()[_STORE_AT], 0)

    def reconsume_times(self) -> npt.NDArray[np.int32]:
        """Return how often each was consumed in vain."""
        return self._ints(self._places()[_REST_AT], 0)

    def prepared_position(self) -> Ints:
        """Return where the prepared messages of transactions lie."""
        return self._longs(self._places()[_REST_AT], 4)

    def host_places(self, host: Host) -> Ints:
        """Return where addresses lie."""
        return self._starts + 48 if host is Host.BORN else self._places()[_STORE_AT] + 8

    def hosts(self, host: Host) -> pa.Array:
        """Return addresses as text; all of them are IPv4."""
        at, shift = (self._starts, 48) if host is Host.BORN else (self._places()[_STORE_AT], 8)
        offsets = np.empty(self._count + 1, np.int32)
        text = np.empty(self._count * _HOST_TEXT_BYTES, np.uint8)
        kernel.write_hosts(self._data, at.data, shift, offsets.data, text.data)
        return pa.StringArray.from_buffers(self._count, pa.py_buffer(offsets), pa.py_buffer(text))

    def message_ids(self) -> pa.Array:
        """Return message ids; all store hosts are IPv4."""
        text = np.empty(self._count * _ID_BYTES, np.uint8)
        hosts_at, starts = self._places()[_STORE_AT].data, self._starts.data
        kernel.write_ids(self._data, hosts_at, 8, starts, text.data)
        offsets = np.arange(self._count + 1, dtype=np.int32) * _ID_BYTES
        return pa.StringArray.from_buffers(self._count, pa.py_buffer(offsets), pa.py_buffer(text))

    def bodies(self) -> pa.BinaryArray:
        """Return the bodies."""
        return slices(self._data, *self._part(Part.BODY))

    def texts(self, part: Part) -> pa.StringArray:
        """Return topics or property strings."""
        try:
            return texts(self._data, *self._part(part))
        except pa.ArrowInvalid:
            return text_of(slices(self._data, *self._part(part)))

    def properties(self) -> Properties:
        """Return the properties."""
        begins, ends = self._part(Part.PROPERTIES)
        try:
            return KernelProperties(self._data, begins, ends)
        except pa.ArrowInvalid:  # not UTF-8
            return NumpyProperties.one_by_one(slices(self._data, begins, ends))

    def _part(self, part: Part) -> tuple[Ints, Ints]:
        """Return where the parts of one kind begin and end."""
        places, row = self._places(), _PARTS_AT + 2 * part
        return places[row], places[row + 1]

    def _ints(self, at: Ints, shift: int) -> npt.NDArray[np.int32]:
        found = np.empty(self._count, np.int32)
        kernel.read_ints(self._data, at.data, shift, found.data)
        return found

    def _longs(self, at: Ints, shift: int) -> Ints:
        found = np.empty(self._count, np.int64)
        kernel.read_longs(self._data, at.data, shift, found.data)
        return found

    def _times(self, at: Ints, shift: int) -> Ints:
        found = np.empty(self._count, np.int64)
        kernel.read_times(self._data, at.data, shift, TIME_MIN_MS, TIME_MAX_MS, found.data)
        return found

    def _places(self) -> npt.NDArray[np.int64]:
        """Return where the parts of the records lie, as ``lay_out`` says."""
        if self._places_made is None:
            places = np.empty(_PLACES * self._count, np.int64)
            sound = kernel.lay_out(self._data, self._starts.data, places.data)
            if sound < self._count:
                raise damaged(self._data, int(self._starts[sound]))
            self._places_made = places.reshape(_PLACES, self._count)
        return self._places_made


class KernelProperties:
    """The property strings of a batch, split into names and values."""

    def __init__(self, data: memoryview, begins: Ints, ends: Ints) -> None:
        self._data = data
        self._row_ends = np.empty(len(begins) + 1, np.int32)
        room = int((ends - begins).sum()) // _PAIR_BYTES_MIN
        self._pairs = np.empty(4 * room, np.int64)
        count = kernel.split_properties(
            data,
            begins.data,
            ends.data,
            self._row_ends.data,
            self._pairs.data,
        )
        names_at, name_ends, values_at, value_ends = self._pairs.reshape(4, room)[:, :count]
        self._names = texts(data, names_at, name_ends)
        self._values = texts(data, values_at, value_ends)

    def map(self) -> pa.Array:
        """Return names and values."""
        return pa.MapArray.from_arrays(pa.array(self._row_ends), self._names, self._values)

    def values_of(self, name: str) -> pa.Array:
        """Return what each message says for one name, null if nothing."""
        count = len(self._row_ends) - 1
        begins, ends = np.empty((2, count), np.int64)
        found = kernel.find_values(
            self._data,
            name.encode(),
            self._row_ends.data,
            self._pairs.data,
            begins.data,
            ends.data,
        )
        if not found:
            return pa.nulls(count, pa.string())
        return texts(self._data, begins, ends, has_nulls=found < count)


def slices(data: memoryview, begins: Ints, ends: Ints) -> pa.BinaryArray:
    """Return slices of the data."""
    offsets, joined = _joined(data, begins, ends)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(joined)]
    return pa.BinaryArray.from_buffers(pa.binary(), len(begins), buffers)


def texts(data: memoryview, begins: Ints, ends: Ints, *, has_nulls: bool = False) -> pa.StringArray:
    """Return slices of the data as texts; those that begin at -1 are nulls if there are such.

    Raises:
        pa.ArrowInvalid: One is not UTF-8.
    """
    offsets, joined = _joined(data, begins, ends)
    valid = pa.py_buffer(np.packbits(begins >= 0, bitorder="little")) if has_nulls else None
    kind = pa.string() if kernel.is_ascii(joined.data) else pa.binary()
    buffers = [valid, pa.py_buffer(offsets), pa.py_buffer(joined)]
    found = pa.Array.from_buffers(kind, len(begins), buffers)
    return found if kind == pa.string() else utf8(found)


def _joined(
    data: memoryview, begins: Ints, ends: Ints
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    """Return slices one behind the other, and where each begins."""
    offsets = np.empty(len(begins) + 1, np.int32)
    joined = np.empty(kernel.measure(begins.data, ends.data, offsets.data), np.uint8)
    kernel.copy_slices(data, begins.data, offsets.data, joined.data)
    return offsets, joined
