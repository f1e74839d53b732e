"""The interface to the fields of a batch of records, and reads of numbers from bytes.

There are two implementations with the same results for any bytes: ``kernel_fields``, used if the
kernel is compiled, and ``numpy_fields``, used otherwise. Both decode only requested fields.
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rocketpost.errors import CorruptRecord

Ints = npt.NDArray[np.int64]
"""Numbers, or offsets in data."""
Mask = npt.NDArray[np.bool_]
Bytes = bytes | memoryview

TIME_MIN_MS: Final = -62_135_596_800_000
TIME_MAX_MS: Final = 253_402_300_799_999
"""Clocks of producers may be wrong; years in Spark have four digits."""

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
"""Offsets of fields before the first host."""
_HEAD: Final = np.dtype(
    {
        "names": list(_HEAD_FIELDS),
        "formats": [kind for kind, _ in _HEAD_FIELDS.values()],
        "offsets": [at for _, at in _HEAD_FIELDS.values()],
        "itemsize": 48,
    }
)


class RecordPart(enum.IntEnum):
    """A part of a record with a length field."""

    BODY = 0
    TOPIC = 1
    PROPERTIES = 2


class Host(enum.IntEnum):
    """A host in a record."""

    BORN = 0
    STORE = 1


class Queues(NamedTuple):
    """The queues of a batch of records."""

    names: list[tuple[str, int]]
    """Topics and queue ids; bytes that are not text become U+FFFD."""
    lows: list[int]
    """The lowest queue offset of a record in each queue."""
    highs: list[int]
    """The highest queue offset of a record in each queue."""
    numbers: npt.NDArray[np.int32]
    """The number of the queue of each record."""


class Limits(NamedTuple):
    """Limits that decide whether records of a queue are visible."""

    base: int
    """The index of the queue's offset 0 in the entries."""
    offset: int
    """From this queue offset on a record is visible without an entry, if it is also"""
    behind: int
    """from this position on."""
    alive: int
    """Records before this position are not visible."""


class Properties(Protocol):
    """The properties of a batch of records."""

    def map(self) -> pa.Array:
        """Return names and values."""

    def values_of(self, name: str) -> pa.Array:
        """Return the value of one property for each message, null if it has none."""


class Fields(Protocol):
    """The fields of a batch of records, up to the first whose lengths do not add up.

    Attributes:
        count: The number of those records.
    """

    count: int

    def number(self, name: str) -> npt.NDArray[np.int32]:
        """Return a field of 4 bytes in the head."""

    def long(self, name: str) -> Ints:
        """Return a field of 8 bytes in the head."""

    def flags(self) -> int:
        """Return the union of the bits of all sysFlags."""

    def queues(self) -> Queues:
        """Return the queues of the records, in the order of their first records."""

    def in_queues(self, entries: Bytes, limits: list[Limits]) -> Mask:
        """Return which records their queues point at, or cannot point at yet.

        Args:
            entries: The entries of all queues, one queue after another.
            limits: The limits of each of :meth:`queues`.
        """

    def born_times(self) -> Ints:
        """Return the born times in us, within the years that Spark knows."""

    def store_times(self) -> Ints:
        """Return the store times in us, within the years that Spark knows."""

    def reconsume_times(self) -> npt.NDArray[np.int32]:
        """Return the reconsume times."""

    def prepared_position(self) -> Ints:
        """Return the positions of the prepared messages of transactions."""

    def host_offsets(self, host: Host) -> Ints:
        """Return the offsets of hosts in the data."""

    def hosts(self, host: Host) -> pa.Array:
        """Return hosts as text; all must be IPv4."""

    def message_ids(self) -> pa.Array:
        """Return message ids; all store hosts must be IPv4."""

    def bodies(self) -> pa.BinaryArray:
        """Return the bodies."""

    def texts(self, part: RecordPart) -> pa.StringArray:
        """Return topics or property strings; bytes that are not text become U+FFFD."""

    def properties(self) -> Properties:
        """Return the properties."""


def read_heads(data: Bytes, starts: Ints) -> npt.NDArray[np.void]:
    """Return the heads of records as one array."""
    if len(data) < _HEAD.itemsize:
        return np.empty(0, _HEAD)
    every = np.ndarray((len(data) - _HEAD.itemsize + 1,), f"V{_HEAD.itemsize}", data, strides=(1,))
    return every[starts].view(_HEAD)


def head_offset(name: str) -> int:
    """Return the offset of a field in the head."""
    return _HEAD_FIELDS[name][1]


def read_numbers(data: Bytes, at: Ints, size: int) -> Ints:
    """Return the signed numbers of 4 or 8 bytes at some offsets."""
    if len(data) < size:
        return np.empty(0, np.int64)
    every = np.ndarray((len(data) - size + 1,), f">i{size}", data, strides=(1,))
    return every[at].astype(np.int64)


def corrupt_record(data: Bytes, start: int) -> CorruptRecord:
    """Return the error for a record whose lengths do not add up."""
    (position,) = read_numbers(data, np.array([start]) + head_offset("position"), 8)
    return CorruptRecord(f"the record at position {position} is damaged: its lengths do not add up")
