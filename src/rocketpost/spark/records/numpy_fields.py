"""Fields of records, read with numpy and Arrow without a loop over messages.

Numbers are gathered from an unaligned view of the bytes. Texts and bodies are selected by Arrow's
``take`` from one binary array that splits the bytes at all boundaries:

    | head | body | length | topic | length | properties | gap to the next record |

Irregular property strings use slower code, only for the batch that has them.
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
from rocketpost.spark.log.queue_files import ENTRY, are_visible
from rocketpost.spark.records.fields import (
    TIME_MAX_MS,
    TIME_MIN_MS,
    Bytes,
    Host,
    Ints,
    Limits,
    Mask,
    Queues,
    RecordPart,
    read_heads,
    read_numbers,
)

_PARTS: Final = 7
_PART_NUMBERS: Final = {RecordPart.BODY: 1, RecordPart.TOPIC: 3, RecordPart.PROPERTIES: 5}
_V6_MORE: Final = 12
_HEX: Final = np.frombuffer("".join(f"{byte:02X}" for byte in range(256)).encode(), np.uint16)
_COUNTED_MAX: Final = 1 << 20


class NumpyFields:
    """The fields of a batch of records."""

    def __init__(self, data: Bytes, starts: Ints) -> None:
        self._data = data
        cuts, are_sound = find_boundaries(data, starts)
        self.count = len(starts) if are_sound.all() else int(np.argmin(are_sound))
        self._starts = starts[: self.count]
        self._cuts = cuts[: self.count]
        self._head = read_heads(data, self._starts)
        self._after_born = _after_born(self._starts, self._head["sysFlag"])
        self._after_store = self._cuts[:, 1] - 16
        self._queues_made: Queues | None = None
        self._parts_made: pa.BinaryArray | None = None

    def number(self, name: str) -> npt.NDArray[np.int32]:
        """Return a field of 4 bytes in the head."""
        return self._head[name].astype(np.int32)

    def long(self, name: str) -> Ints:
        """Return a field of 8 bytes in the head."""
        return self._head[name].astype(np.int64)

    def flags(self) -> int:
        """Return the union of the bits of all sysFlags."""
        return int(np.bitwise_or.reduce(self.number("sysFlag")))

    def queues(self) -> Queues:
        """Return the queues of the records, in the order of their first records."""
        if self._queues_made is None:
            topics: Any = self._part(RecordPart.TOPIC).dictionary_encode()
            both = (topics.indices.to_numpy().astype(np.int64) << 32) + self._head["queueId"]
            coded: Any = pa.array(both).dictionary_encode()
            numbers = coded.indices.to_numpy()
            _, rows = np.unique(numbers, return_index=True)
            lows, highs = np.empty((2, len(rows)), np.int64)
            offsets = self.long("queueOffset")
            lows[:] = highs[:] = offsets[rows]
            np.minimum.at(lows, numbers, offsets)
            np.maximum.at(highs, numbers, offsets)
            texts = self.texts(RecordPart.TOPIC).take(pa.array(rows)).to_pylist()
            names = list(zip(texts, self._head["queueId"][rows].tolist(), strict=True))
            self._queues_made = Queues(names, lows.tolist(), highs.tolist(), numbers)
        return self._queues_made

    def in_queues(self, entries: Bytes, limits: list[Limits]) -> Mask:
        """Return which records their queues point at, or cannot point at yet."""
        every = np.frombuffer(entries, ENTRY)
        base, *others = np.array(limits, np.int64).reshape(-1, 4).T[:, self.queues().numbers]
        at = base + self.long("queueOffset")
        is_inside = (at >= 0) & (at < len(every))
        found = np.zeros(self.count, ENTRY)
        found[is_inside] = every[at[is_inside]]
        return are_visible(found, self.long("queueOffset"), self.long("position"), *others)

    def born_times(self) -> Ints:
        """Return the born times in us."""
        return _clamp_times(self._head["bornTime"].astype(np.int64))

    def store_times(self) -> Ints:
        """Return the store times in us."""
        return _clamp_times(read_numbers(self._data, self._after_born, 8))

    def reconsume_times(self) -> npt.NDArray[np.int32]:
        """Return the reconsume times."""
        return read_numbers(self._data, self._after_store, 4).astype(np.int32)

    def prepared_position(self) -> Ints:
        """Return the positions of the prepared messages of transactions."""
        return read_numbers(self._data, self._after_store + 4, 8)

    def host_offsets(self, host: Host) -> Ints:
        """Return the offsets of hosts in the data."""
        return self._starts + 48 if host is Host.BORN else self._after_born + 8

    def hosts(self, host: Host) -> pa.Array:
        """Return hosts as text; all must be IPv4."""
        places = read_numbers(self._data, self.host_offsets(host), 8)
        distinct, inverse = np.unique(places, return_inverse=True)
        known = [host_text(int(host).to_bytes(8, "big", signed=True)) for host in distinct]
        return pa.array(known, pa.string()).take(pa.array(inverse))

    def message_ids(self) -> pa.Array:
        """Return message ids; all store hosts must be IPv4."""
        raw = np.empty((self.count, 2), ">i8")
        raw[:, 0] = read_numbers(self._data, self.host_offsets(Host.STORE), 8)
        raw[:, 1] = self._head["position"]
        text = _HEX[raw.view(np.uint8)]
        offsets = np.arange(self.count + 1, dtype=np.int32) * 32
        return pa.StringArray.from_buffers(self.count, pa.py_buffer(offsets), pa.py_buffer(text))

    def bodies(self) -> pa.BinaryArray:
        """Return the bodies."""
        return self._part(RecordPart.BODY)

    def texts(self, part: RecordPart) -> pa.StringArray:
        """Return topics or property strings."""
        return decode_text(self._part(part))

    def _part(self, part: RecordPart) -> pa.BinaryArray:
        whole = self._parts()
        places = np.arange(_PART_NUMBERS[part], len(whole), _PARTS)
        return cast(pa.BinaryArray, whole.take(pa.array(places)))

    def properties(self) -> NumpyProperties:
        """Return the properties."""
        return NumpyProperties.of(self._part(RecordPart.PROPERTIES))

    def _parts(self) -> pa.BinaryArray:
        """Return the bytes split at the boundaries of every part of every record."""
        if self._parts_made is None:
            cuts = self._cuts
            ends = np.append(cuts.ravel(), cuts[-1, 6] if self.count else 0)
            self._parts_made = pa.BinaryArray.from_buffers(
                pa.binary(),
                self.count * _PARTS,
                [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(self._data)],
            )
        return self._parts_made


def find_boundaries(data: Bytes, starts: Ints) -> tuple[npt.NDArray[np.int64], Mask]:
    """Return the boundaries of the parts of records, and whether their lengths add up."""
    head = read_heads(data, starts)
    is_v2 = head["magic"] == MAGIC_V2
    cuts = np.empty((len(starts), _PARTS), np.int64)
    ends = starts + head["size"]
    cuts[:, 0] = starts
    cuts[:, 6] = ends
    cuts[:, 1] = _after_born(starts, head["sysFlag"]) + 32
    cuts[:, 1] += np.where(head["sysFlag"] & STORE_HOST_V6, _V6_MORE, 0)
    cuts[:, 2] = cuts[:, 1] + _read_lengths(data, cuts[:, 1], 4, ends)
    cuts[:, 3] = cuts[:, 2] + 1 + is_v2
    short, long = (_read_lengths(data, cuts[:, 3], size, ends) for size in (1, 2))
    cuts[:, 4] = cuts[:, 3] + np.where(is_v2, long, short)
    cuts[:, 5] = cuts[:, 4] + 2
    stated = cuts[:, 5] + _read_lengths(data, cuts[:, 5], 2, ends)
    return cuts, np.asarray((stated == ends) & (np.diff(cuts) >= 0).all(1), np.bool_)


def _after_born(starts: Ints, sys_flags: npt.NDArray[np.int32]) -> Ints:
    """Return the offsets of store times in the data."""
    return starts + 56 + np.where(sys_flags & BORN_HOST_V6, _V6_MORE, 0)


def _read_lengths(data: Bytes, before: Ints, size: int, end: Ints) -> Ints:
    """Return length fields that end at some offsets; -1 if they end after ``end``."""
    if not len(before):
        return before
    kind = {1: "u1", 2: ">i2", 4: ">i4"}[size]
    every = np.ndarray((len(data) - size + 1,), kind, data, strides=(1,))
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
        """Return the properties, with slower code if any string is irregular."""
        try:
            split = cls._split(_terminate(raw))
        except pa.ArrowInvalid:  # not UTF-8
            split = None
        return cls.parse_each(raw) if split is None or split._has_repeats() else split

    @classmethod
    def parse_each(cls, raw: pa.BinaryArray) -> NumpyProperties:
        """Return the properties of irregular strings."""
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
        """Return the value of one property for each message, null if it has none."""
        code = self._known.index(name).as_py()
        found = np.flatnonzero(self._codes == code)
        at = np.full(len(self._ends) - 1, -1, np.int64)
        at[self._rows[found]] = found
        return self._values.take(pa.array(at, mask=at < 0))

    def _has_repeats(self) -> bool:
        """Return whether any string has a name twice; then the last value is used."""
        both = self._rows * (len(self._known) + 1) + self._codes
        if len(both) and both[-1] < _COUNTED_MAX:
            return bool(np.bincount(both).max() > 1)
        return len(np.unique(both)) < len(both)


def utf8(array: pa.Array) -> pa.StringArray:
    """Return bytes as text.

    Raises:
        pa.ArrowInvalid: The bytes are not UTF-8.
    """
    return cast(pa.StringArray, pc.cast(array, pa.string()))


def decode_text(raw: pa.BinaryArray) -> pa.StringArray:
    """Return bytes as text, with U+FFFD for bytes that are not text."""
    try:
        return utf8(raw)
    except pa.ArrowInvalid:
        return pa.array([str(each, "utf-8", "replace") for each in raw.to_pylist()], pa.string())


def host_text(host: bytes) -> str:
    """Return a packed host as text."""
    address, port = unpack_host(host)
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _terminate(raw: pa.BinaryArray) -> pa.BinaryArray:
    """Return property strings with the last separator, which newer Java clients leave out."""
    is_open = pc.invert(pc.or_(pc.ends_with(raw, b"\x02"), pc.equal(pc.binary_length(raw), 0)))
    if not pc.any(is_open).as_py():
        return raw
    ended = pc.binary_join_element_wise(raw, pa.scalar(b""), pa.scalar(b"\x02"))
    return cast(pa.BinaryArray, pc.if_else(is_open, ended, raw))


def _clamp_times(ms: Ints) -> Ints:
    return np.clip(ms, TIME_MIN_MS, TIME_MAX_MS) * 1000
