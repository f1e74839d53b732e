"""Records to Arrow: the bytes of a pull response or of a segment become a record batch.

Nothing here loops over messages. Every number is gathered from an unaligned view of the bytes, and
every text or body by Arrow's ``take`` from one binary array that cuts the bytes at all boundaries:

    | head | body | length | topic | length | properties | gap to the next record |

Only what a projection asks for is looked at. Odd cases (IPv6 hosts, irregular property strings,
compressed bodies) leave the fast way, and only for the batch that has them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rocketpost.client.compression import decompress
from rocketpost.codec.properties import decode_properties
from rocketpost.codec.record import MAGIC_V2, unpack_host
from rocketpost.model import properties as names
from rocketpost.model.sysflag import BORN_HOST_V6, COMPRESSED, STORE_HOST_V6
from rocketpost.spark.columns import Column

Ints = npt.NDArray[np.int64]

_PARTS: Final = 7
_BODY, _TOPIC, _PROPERTIES = 1, 3, 5
_V6_MORE: Final = 12
_HEAD_FIELDS: Final = {
    "size": (">i4", 0),
    "magic": (">i4", 4),
    "bodyCrc": (">i4", 8),
    "queueId": (">i4", 12),
    "flag": (">i4", 16),
    "queueOffset": (">i8", 20),
    "position": (">i8", 28),
    "sysFlag": (">i4", 36),
    "bornTime": (">i8", 40),
}
"""Where fields lie that no address comes before."""
_HEAD: Final = np.dtype(
    {
        "names": list(_HEAD_FIELDS),
        "formats": [kind for kind, _ in _HEAD_FIELDS.values()],
        "offsets": [at for _, at in _HEAD_FIELDS.values()],
        "itemsize": 48,
    }
)
TIME_MIN_MS: Final = -62_135_596_800_000
TIME_MAX_MS: Final = 253_402_300_799_999
_HEX: Final = np.frombuffer("".join(f"{byte:02X}" for byte in range(256)).encode(), np.uint16)
_COUNTED_MAX: Final = 1 << 20
_KEY_COLUMNS: Final = {"uniqkey": names.UNIQUE_KEY, "keys": names.KEYS, "tags": names.TAGS}


def decode(
    data: bytes | memoryview,
    starts: Ints,
    columns: tuple[Column, ...],
    *,
    broker_name: str | None,
    decompressed: bool = True,
) -> pa.RecordBatch:
    """Return records as a batch with the given columns.

    Args:
        data: Where the records lie; under 2 GiB.
        starts: Where each begins, ascending; every one is whole.
        columns: What is wanted of them.
        broker_name: The broker that has them, if that is known.
        decompressed: Whether bodies are unpacked if their senders packed them.

    Raises:
        RemoteProtocolError: A body is not compressed as its flag says.
    """
    records = _Records(data, starts, broker_name=broker_name, decompressed=decompressed)
    arrays = [records.column(column) for column in columns]
    schema = pa.schema([pa.field(column.name, column.arrow) for column in columns])
    if not columns:  # a count: rows without columns
        return pa.RecordBatch.from_struct_array(pa.array([{}] * len(starts), pa.struct([])))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class _Records:
    """The records of one batch, looked at column by column."""

    def __init__(
        self,
        data: bytes | memoryview,
        starts: Ints,
        *,
        broker_name: str | None,
        decompressed: bool,
    ) -> None:
        self._data = data
        self._starts = starts
        self._count = len(starts)
        self._broker_name = broker_name
        self._decompressed = decompressed
        self._head = heads(data, starts)
        self._sys_flag = self._head["sysFlag"].astype(np.int64)
        born_more = np.where(self._sys_flag & BORN_HOST_V6, _V6_MORE, 0)
        store_more = np.where(self._sys_flag & STORE_HOST_V6, _V6_MORE, 0)
        self._born_v6, self._store_v6 = bool(born_more.any()), bool(store_more.any())
        self._after_born = starts + 56 + born_more
        self._after_store = self._after_born + 16 + store_more
        self._parts_made: pa.BinaryArray | None = None
        self._properties_made: _Properties | None = None

    def column(self, column: Column) -> pa.Array:
        """Return one column."""
        name = column.name.lower()
        if name in _KEY_COLUMNS:
            return self._properties().values_of(_KEY_COLUMNS[name])
        if name == "properties":
            is_text = column.arrow == pa.string()
            return self._properties().text() if is_text else self._properties().map()
        return _MAKERS[name](self)

    def ints(self, at: Ints) -> Ints:
        """Return the 4-byte numbers at some places."""
        return numbers(self._data, at, 4)

    def longs(self, at: Ints) -> Ints:
        """Return the 8-byte numbers at some places."""
        return numbers(self._data, at, 8)

    def topic(self) -> pa.Array:
        return _utf8(self._part(_TOPIC))

    def broker_name(self) -> pa.Array:
        if self._broker_name is None:
            return pa.nulls(self._count, pa.string())
        return pa.repeat(pa.scalar(self._broker_name, pa.string()), self._count)

    def number(self, field: str) -> pa.Array:
        return pa.array(self._head[field].astype(np.int32))

    def long(self, field: str) -> pa.Array:
        return pa.array(self._head[field].astype(np.int64))

    def sys_flag(self) -> pa.Array:
        return pa.array(self._sys_flag.astype(np.int32))

    def born_time(self) -> pa.Array:
        return _times(self._head["bornTime"].astype(np.int64))

    def store_time(self) -> pa.Array:
        return _times(self.longs(self._after_born))

    def born_host(self) -> pa.Array:
        return self._hosts(self._starts + 48, BORN_HOST_V6, has_v6=self._born_v6)

    def store_host(self) -> pa.Array:
        return self._hosts(self._after_born + 8, STORE_HOST_V6, has_v6=self._store_v6)

    def reconsume_times(self) -> pa.Array:
        return pa.array(self.ints(self._after_store).astype(np.int32))

    def prepared_position(self) -> pa.Array:
        return pa.array(self.longs(self._after_store + 4))

    def message_id(self) -> pa.Array:
        positions = self._head["position"]
        if self._store_v6:
            hosts = self._host_bytes(self._after_born + 8, STORE_HOST_V6)
            pairs = zip(hosts, positions.tolist(), strict=True)
            return pa.array([f"{host.hex().upper()}{at:016X}" for host, at in pairs], pa.string())
        raw = np.empty((self._count, 2), ">i8")
        raw[:, 0] = self.longs(self._after_born + 8)
        raw[:, 1] = positions
        text = _HEX[raw.view(np.uint8)]
        offsets = np.arange(self._count + 1, dtype=np.int32) * 32
        return pa.StringArray.from_buffers(self._count, pa.py_buffer(offsets), pa.py_buffer(text))

    def body(self) -> pa.Array:
        bodies = self._part(_BODY)
        packed = self._sys_flag & COMPRESSED
        if not self._decompressed or not packed.any():
            return bodies
        flags = self._sys_flag.tolist()
        plain = [
            decompress(body, flag) for body, flag in zip(bodies.to_pylist(), flags, strict=True)
        ]
        return pa.array(plain, pa.binary())

    def _properties(self) -> _Properties:
        if self._properties_made is None:
            self._properties_made = _Properties.of(self._part(_PROPERTIES))
        return self._properties_made

    def _part(self, part: int) -> pa.BinaryArray:
        whole = self._parts()
        return cast(pa.BinaryArray, whole.take(pa.array(np.arange(part, len(whole), _PARTS))))

    def _parts(self) -> pa.BinaryArray:
        """Return the bytes cut at the boundaries of every part of every record."""
        if self._parts_made is None:
            is_v2 = self._head["magic"] == MAGIC_V2
            cuts = np.empty((self._count, _PARTS), np.int64)
            cuts[:, 0] = self._starts
            cuts[:, 1] = self._after_store + 16
            cuts[:, 2] = cuts[:, 1] + self.ints(cuts[:, 1] - 4)
            cuts[:, 3] = cuts[:, 2] + 1 + is_v2
            low = _bytes(self._data)[cuts[:, 3] - 1].astype(np.int64)
            high = np.where(is_v2, _bytes(self._data)[cuts[:, 2]].astype(np.int64), 0)
            cuts[:, 4] = cuts[:, 3] + (high << 8) + low
            cuts[:, 5] = cuts[:, 4] + 2
            cuts[:, 6] = cuts[:, 0] + self._head["size"]
            ends = np.append(cuts.ravel(), cuts[-1, 6] if self._count else 0)
            self._parts_made = pa.BinaryArray.from_buffers(
                pa.binary(),
                self._count * _PARTS,
                [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(self._data)],
            )
        return self._parts_made

    def _hosts(self, at: Ints, v6_bit: int, *, has_v6: bool) -> pa.Array:
        if has_v6:
            hosts = self._host_bytes(at, v6_bit)
            texts = {host: _host_text(host) for host in set(hosts)}
            return pa.array([texts[host] for host in hosts], pa.string())
        distinct, inverse = np.unique(self.longs(at), return_inverse=True)
        known = [_host_text(int(host).to_bytes(8, "big", signed=True)) for host in distinct]
        return pa.array(known, pa.string()).take(pa.array(inverse))

    def _host_bytes(self, at: Ints, v6_bit: int) -> list[bytes]:
        sizes = np.where(self._sys_flag & v6_bit, 20, 8).tolist()
        data = self._data
        return [bytes(data[a : a + n]) for a, n in zip(at.tolist(), sizes, strict=True)]


_MAKERS: Final[dict[str, Callable[[_Records], pa.Array]]] = {
    "topic": _Records.topic,
    "brokername": _Records.broker_name,
    "queueid": lambda records: records.number("queueId"),
    "queueoffset": lambda records: records.long("queueOffset"),
    "commitlogoffset": lambda records: records.long("position"),
    "msgid": _Records.message_id,
    "flag": lambda records: records.number("flag"),
    "sysflag": _Records.sys_flag,
    "bodycrc": lambda records: records.number("bodyCrc"),
    "borntimestamp": _Records.born_time,
    "bornhost": _Records.born_host,
    "storetimestamp": _Records.store_time,
    "storehost": _Records.store_host,
    "reconsumetimes": _Records.reconsume_times,
    "preparedtransactionoffset": _Records.prepared_position,
    "storesize": lambda records: records.number("size"),
    "body": _Records.body,
}


class _Properties:
    """The property strings of a batch, split into names and values."""

    def __init__(
        self, raw: pa.BinaryArray, ends: Ints, names: pa.StringArray, values: pa.StringArray
    ) -> None:
        self._raw = raw
        self._ends = ends
        self._names = names
        self._values = values
        coded: Any = names.dictionary_encode()
        self._known = coded.dictionary
        self._codes = coded.indices.to_numpy()
        self._rows = np.repeat(np.arange(len(ends) - 1), np.diff(ends))

    @classmethod
    def of(cls, raw: pa.BinaryArray) -> _Properties:
        """Return the properties, the plain way if any string is irregular."""
        try:
            split = cls._split(raw)
        except pa.ArrowInvalid:  # not UTF-8
            split = None
        return cls._one_by_one(raw) if split is None or split._has_repeats() else split

    @classmethod
    def _one_by_one(cls, raw: pa.BinaryArray) -> _Properties:
        every = [decode_properties(text) for text in raw.to_pylist()]
        return cls(
            raw,
            np.cumsum([0, *map(len, every)]),
            pa.array([name for pairs in every for name in pairs], pa.string()),
            pa.array([value for pairs in every for value in pairs.values()], pa.string()),
        )

    @classmethod
    def _split(cls, raw: pa.BinaryArray) -> _Properties | None:
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
        names = _utf8(pairs.take(pa.array(np.arange(0, len(pairs), 4))))
        values = _utf8(pairs.take(pa.array(np.arange(2, len(pairs), 4))))
        return cls(raw, np.searchsorted(twos, offsets), names, values)

    def text(self) -> pa.Array:
        """Return the strings as they are stored."""
        try:
            return _utf8(self._raw)
        except pa.ArrowInvalid:
            plain = [str(text, "utf-8", "replace") for text in self._raw.to_pylist()]
            return pa.array(plain, pa.string())

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


def heads(data: bytes | memoryview, starts: Ints) -> npt.NDArray[np.void]:
    """Return the first fields of records, gathered at once."""
    if len(data) < _HEAD.itemsize:
        return np.empty(0, _HEAD)
    every = np.ndarray((len(data) - _HEAD.itemsize + 1,), f"V{_HEAD.itemsize}", data, strides=(1,))
    return every[starts].view(_HEAD)


def numbers(data: bytes | memoryview, at: Ints, size: int) -> Ints:
    """Return the signed numbers of 4 or 8 bytes that lie at some places."""
    if len(data) < size:
        return np.empty(0, np.int64)
    every = np.ndarray((len(data) - size + 1,), f">i{size}", data, strides=(1,))
    return every[at].astype(np.int64)


def _bytes(data: bytes | memoryview) -> npt.NDArray[np.uint8]:
    return np.frombuffer(data, np.uint8)


def _times(ms: Ints) -> pa.Array:
    # Clocks of senders may say anything; Spark's years have four digits.
    us = np.clip(ms, TIME_MIN_MS, TIME_MAX_MS) * 1000
    return pa.array(us).view(pa.timestamp("us", tz="UTC"))


def _utf8(array: pa.Array) -> pa.StringArray:
    return cast(pa.StringArray, pc.cast(array, pa.string()))


def _host_text(host: bytes) -> str:
    address, port = unpack_host(host)
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
