"""Fields of records by numpy and Arrow: nothing here loops over messages.

Every number is gathered from an unaligned view of the bytes, and every text or body by Arrow's
``take`` from one binary array that cuts the bytes at all boundaries:

    | head | body | length | topic | length | properties | gap to the next record |

Irregular property strings leave the fast way, and only for the batch that has them.
"""

from __future__ import annotations

from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rocketpost.codec.properties import decode_properties
from rocketpost.codec.record import MAGIC_V2, unpack_host
from rocketpost.model.sysflag import BORN_HOST_V6, STORE_HOST_V6
from rocketpost.spark.fields import (
    TIME_MAX_MS,
    TIME_MIN_MS,
    Host,
    Ints,
    Part,
    damaged,
    heads,
    numbers,
)

_PARTS: Final = 7
_PLACES: Final = {Part.BODY: 1, Part.TOPIC: 3, Part.PROPERTIES: 5}
_V6_MORE: Final = 12
_HEX: Final = np.frombuffer("".join(f"{byte:02X}" for byte in range(256)).encode(), np.uint16)
_COUNTED_MAX: Final = 1 << 20


class NumpyFields:
    """The fields of a batch of records."""

    def __init__(self, data: bytes | memoryview, starts: Ints) -> None:
        self._data = data
        self._starts = starts
        self._count = len(starts)
        self._head = heads(data, starts)
        sys_flag = self._head["sysFlag"]
        self._after_born = starts + 56 + np.where(sys_flag & BORN_HOST_V6, _V6_MORE, 0)
        self._after_store = self._after_born + 16 + np.where(sys_flag & STORE_HOST_V6, _V6_MORE, 0)
        self._cuts_made: npt.NDArray[np.int64] | None = None
        self._parts_made: pa.BinaryArray | None = None

    def number(self, name: str) -> npt.NDArray[np.int32]:
        """Return a field of the head that has 4 bytes."""
        return self._head[name].astype(np.int32)

    def long(self, name: str) -> Ints:
        """Return a field of the head that has 8 bytes."""
        return self._head[name].astype(np.int64)

    def born_times(self) -> Ints:
        """Return the born times in us."""
        return _times(self._head["bornTime"].astype(np.int64))

    def store_times(self) -> Ints:
        """Return the store times in us."""
        self._cuts()  # flags that lie lead out of a record
        return _times(numbers(self._data, self._after_born, 8))

    def reconsume_times(self) -> npt.NDArray[np.int32]:
        """Return how often each was consumed in vain."""
        self._cuts()
        return numbers(self._data, self._after_store, 4).astype(np.int32)

    def prepared_position(self) -> Ints:
        """Return where the prepared messages of transactions lie."""
        self._cuts()
        return numbers(self._data, self._after_store + 4, 8)

    def host_places(self, host: Host) -> Ints:
        """Return where addresses lie."""
        if host is Host.BORN:
            return self._starts + 48
        self._cuts()
        return self._after_born + 8

    def hosts(self, host: Host) -> pa.Array:
        """Return addresses as text; all of them are IPv4."""
        places = numbers(self._data, self.host_places(host), 8)
        distinct, inverse = np.unique(places, return_inverse=True)
        known = [host_text(int(host).to_bytes(8, "big", signed=True)) for host in distinct]
        return pa.array(known, pa.string()).take(pa.array(inverse))

    def message_ids(self) -> pa.Array:
        """Return message ids; all store hosts are IPv4."""
        raw = np.empty((self._count, 2), ">i8")
        raw[:, 0] = numbers(self._data, self.host_places(Host.STORE), 8)
        raw[:, 1] = self._head["position"]
        text = _HEX[raw.view(np.uint8)]
        offsets = np.arange(self._count + 1, dtype=np.int32) * 32
        return pa.StringArray.from_buffers(self._count, pa.py_buffer(offsets), pa.py_buffer(text))

    def bodies(self) -> pa.BinaryArray:
        """Return the bodies."""
        return self._part(Part.BODY)

    def texts(self, part: Part) -> pa.StringArray:
        """Return topics or property strings."""
        return text_of(self._part(part))

    def _part(self, part: Part) -> pa.BinaryArray:
        whole = self._parts()
        places = np.arange(_PLACES[part], len(whole), _PARTS)
        return cast(pa.BinaryArray, whole.take(pa.array(places)))

    def properties(self) -> NumpyProperties:
        """Return the properties."""
        return NumpyProperties.of(self._part(Part.PROPERTIES))

    def _parts(self) -> pa.BinaryArray:
        """Return the bytes cut at the boundaries of every part of every record."""
        if self._parts_made is None:
            cuts = self._cuts()
            ends = np.append(cuts.ravel(), cuts[-1, 6] if self._count else 0)
            self._parts_made = pa.BinaryArray.from_buffers(
                pa.binary(),
                self._count * _PARTS,
                [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(self._data)],
            )
        return self._parts_made

    def _cuts(self) -> npt.NDArray[np.int64]:
        """Return where the parts of every record begin, and what comes after the last."""
        if self._cuts_made is not None:
            return self._cuts_made
        is_v2 = self._head["magic"] == MAGIC_V2
        cuts = np.empty((self._count, _PARTS), np.int64)
        cuts[:, 0] = self._starts
        cuts[:, 6] = cuts[:, 0] + self._head["size"]
        cuts[:, 1] = self._after_store + 16
        cuts[:, 2] = cuts[:, 1] + self._length(cuts[:, 1], 4, cuts[:, 6])
        cuts[:, 3] = cuts[:, 2] + 1 + is_v2
        short, long = (self._length(cuts[:, 3], size, cuts[:, 6]) for size in (1, 2))
        cuts[:, 4] = cuts[:, 3] + np.where(is_v2, long, short)
        cuts[:, 5] = cuts[:, 4] + 2
        ends = cuts[:, 5] + self._length(cuts[:, 5], 2, cuts[:, 6])
        wrong = (ends != cuts[:, 6]) | (np.diff(cuts) < 0).any(1)
        if wrong.any():
            raise damaged(self._data, int(self._starts[np.argmax(wrong)]))
        self._cuts_made = cuts
        return cuts

    def _length(self, before: Ints, size: int, end: Ints) -> Ints:
        """Return the numbers of some bytes that end at places; -1 if they end behind ``end``."""
        if not len(before):
            return before
        kind = {1: "u1", 2: ">i2", 4: ">i4"}[size]
        every = np.ndarray((len(self._data) - size + 1,), kind, self._data, strides=(1,))
        is_inside = (before <= end) & (before >= size)
        found = every[np.where(is_inside, before - size, 0)].astype(np.int64)
        return np.where(is_inside, found, -1)


class NumpyProperties:
    """The property strings of a batch, split into names and values."""

    def __init__(self, ends: Ints, names: pa.StringArray, values: pa.StringArray) -> None:
        self._ends = ends
        self._names = names
        self._values = values
        coded: Any = names.dictionary_encode()
        self._known = coded.dictionary
        self._codes = coded.indices.to_numpy()
        self._rows = np.repeat(np.arange(len(ends) - 1), np.diff(ends))

    @classmethod
    def of(cls, raw: pa.BinaryArray) -> NumpyProperties:
        """Return the properties, the plain way if any string is irregular."""
        try:
            split = cls._split(_ended(raw))
        except pa.ArrowInvalid:  # not UTF-8
            split = None
        return cls.one_by_one(raw) if split is None or split._has_repeats() else split

    @classmethod
    def one_by_one(cls, raw: pa.BinaryArray) -> NumpyProperties:
        """Return the properties of strings, however odd."""
        every = [decode_properties(text) for text in raw.to_pylist()]
        return cls(
            np.cumsum([0, *map(len, every)]),
            pa.array([name for pairs in every for name in pairs], pa.string()),
            pa.array([value for pairs in every for value in pairs.values()], pa.string()),
        )

    @classmethod
    def _split(cls, raw: pa.BinaryArray) -> NumpyProperties | None:
        """Return the properties if all strings are regular: name, 1, value, 2, and so on."""
        offsets = np.frombuffer(raw.buffers()[1], np.int32)[: len(raw) + 1].astype(np.int64)
        data = raw.buffers()[2]
        text = np.frombuffer(data, np.uint8)[: offsets[-1]] if data else np.empty(0, np.uint8)
        marks = np.flatnonzero(text - np.uint8(1) < 2)  # 1 and 2; 0 wraps around
        ones, twos = marks[0::2], marks[1::2]
        filled = offsets[1:][offsets[1:] > offsets[:-1]]
        if (
            len(ones) != len(twos)
            or (text[ones] != 1).any()
            or (text[twos] != 2).any()
            or (text[filled - 1] != 2).any()
        ):
            return None
        cuts = np.empty((len(ones), 4), np.int32)
        cuts[:1, 0] = 0
        cuts[1:, 0] = twos[:-1] + 1
        cuts[:, 1] = ones
        cuts[:, 2] = ones + 1
        cuts[:, 3] = twos
        if (cuts[:, 0] == cuts[:, 1]).any() or (cuts[:, 2] == cuts[:, 3]).any():
            return None  # a name or a value is empty
        ends = np.append(cuts.ravel(), np.int32(offsets[-1]))
        pairs = pa.BinaryArray.from_buffers(
            pa.binary(), 4 * len(ones), [None, pa.py_buffer(ends), data or pa.py_buffer(b"")]
        )
        names = utf8(pairs.take(pa.array(np.arange(0, len(pairs), 4))))
        values = utf8(pairs.take(pa.array(np.arange(2, len(pairs), 4))))
        return cls(np.searchsorted(twos, offsets), names, values)

    def map(self) -> pa.Array:
        """Return names and values."""
        offsets = pa.array(self._ends.astype(np.int32))
        return pa.MapArray.from_arrays(offsets, self._names, self._values)

    def values_of(self, name: str) -> pa.Array:
        """Return what each message says for one name, null if nothing."""
        code = self._known.index(name).as_py()
        found = np.flatnonzero(self._codes == code)
        at = np.full(len(self._ends) - 1, -1, np.int64)
        at[self._rows[found]] = found
        return self._values.take(pa.array(at, mask=at < 0))

    def _has_repeats(self) -> bool:
        """Whether any string says a name twice; the last one counts then."""
        both = self._rows * (len(self._known) + 1) + self._codes
        if len(both) and both[-1] < _COUNTED_MAX:
            return bool(np.bincount(both).max() > 1)
        return len(np.unique(both)) < len(both)


def utf8(array: pa.Array) -> pa.StringArray:
    """Return bytes as text.

    Raises:
        pa.ArrowInvalid: They are not UTF-8.
    """
    return cast(pa.StringArray, pc.cast(array, pa.string()))


def text_of(raw: pa.BinaryArray) -> pa.StringArray:
    """Return bytes as text, with U+FFFD for what is none."""
    try:
        return utf8(raw)
    except pa.ArrowInvalid:
        return pa.array([str(each, "utf-8", "replace") for each in raw.to_pylist()], pa.string())


def host_text(host: bytes) -> str:
    """Return a packed host as text."""
    address, port = unpack_host(host)
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _ended(raw: pa.BinaryArray) -> pa.BinaryArray:
    """Return property strings with the last separator, which Java's newer clients leave out."""
    is_open = pc.invert(pc.or_(pc.ends_with(raw, b"\x02"), pc.equal(pc.binary_length(raw), 0)))
    if not pc.any(is_open).as_py():
        return raw
    ended = pc.binary_join_element_wise(raw, pa.scalar(b""), pa.scalar(b"\x02"))
    return cast(pa.BinaryArray, pc.if_else(is_open, ended, raw))


def _times(ms: Ints) -> Ints:
    return np.clip(ms, TIME_MIN_MS, TIME_MAX_MS) * 1000
