"""The fields of a batch of records, whichever way they are read; and the numpy views of bytes.

There are two ways, which say the same of any bytes: ``kernel_fields``, used where the kernel is
compiled, and ``numpy_fields``, used elsewhere. Both look only at what they are asked for.
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rocketpost.errors import CorruptRecord

Ints = npt.NDArray[np.int64]
"""Numbers, or places."""
Mask = npt.NDArray[np.bool_]
Bytes = bytes | memoryview

TIME_MIN_MS: Final = -62_135_596_800_000
TIME_MAX_MS: Final = 253_402_300_799_999
"""Clocks of senders may say anything; Spark's years have four digits."""

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


class Part(enum.IntEnum):
    """A part of a record that has a length."""

    BODY = 0
    TOPIC = 1
    PROPERTIES = 2


class Host(enum.IntEnum):
    """An address in a record."""

    BORN = 0
    STORE = 1


class Queues(NamedTuple):
    """The queues of a batch of records."""

    names: list[tuple[str, int]]
    """Topic and queue id; bytes that are no text become U+FFFD."""
    lows: list[int]
    """The lowest offset in each that a record has."""
    highs: list[int]
    """The highest."""
    numbers: npt.NDArray[np.int32]
    """Which of them each record is in."""


class Limits(NamedTuple):
    """What decides, queue by queue, whether a consumer sees a record."""

    base: int
    """The ordinal among some entries that the queue's offset 0 would have."""
    offset: int
    """From this offset on, and"""
    behind: int
    """from this position on, a record counts though its entry is empty."""
    alive: int
    """From this position on a record counts at all."""


class Properties(Protocol):
    """The properties of a batch of records."""

    def map(self) -> pa.Array:
        """Return names and values."""

    def values_of(self, name: str) -> pa.Array:
        """Return what each message says for one name, null if nothing."""


class Fields(Protocol):
    """The fields of a batch of records, up to the first whose lengths do not add up.

    Attributes:
        count: How many records that is.
    """

    count: int

    def number(self, name: str) -> npt.NDArray[np.int32]:
        """Return a field of the head that has 4 bytes."""

    def long(self, name: str) -> Ints:
        """Return a field of the head that has 8 bytes."""

    def flags(self) -> int:
        """Return the bits that the sysFlag of any of them has."""

    def queues(self) -> Queues:
        """Return the queues of the records, in the order in which they come."""

    def in_queues(self, entries: Bytes, limits: list[Limits]) -> Mask:
        """Return which records their queues point at, or cannot point at yet.

        Args:
            entries: Entries of all queues, one behind the other; others are empty.
            limits: What else decides, for each of :meth:`queues`.
        """

    def born_times(self) -> Ints:
        """Return the born times in us, within the years that Spark knows."""

    def store_times(self) -> Ints:
        """Return the store times in us, within the years that Spark knows."""

    def reconsume_times(self) -> npt.NDArray[np.int32]:
        """Return how often each was consumed in vain."""

    def prepared_position(self) -> Ints:
        """Return where the prepared messages of transactions lie."""

    def host_places(self, host: Host) -> Ints:
        """Return where addresses lie."""

    def hosts(self, host: Host) -> pa.Array:
        """Return addresses as text; all of them are IPv4."""

    def message_ids(self) -> pa.Array:
        """Return message ids; all store hosts are IPv4."""

    def bodies(self) -> pa.BinaryArray:
        """Return the bodies."""

    def texts(self, part: Part) -> pa.StringArray:
        """Return topics or property strings; bytes that are no text become U+FFFD."""

    def properties(self) -> Properties:
        """Return the properties."""


def heads(data: Bytes, starts: Ints) -> npt.NDArray[np.void]:
    """Return the first fields of records, gathered at once."""
    if len(data) < _HEAD.itemsize:
        return np.empty(0, _HEAD)
    every = np.ndarray((len(data) - _HEAD.itemsize + 1,), f"V{_HEAD.itemsize}", data, strides=(1,))
    return every[starts].view(_HEAD)


def place_of(name: str) -> int:
    """Return where a field of the head lies."""
    return _HEAD_FIELDS[name][1]


def numbers(data: Bytes, at: Ints, size: int) -> Ints:
    """Return the signed numbers of 4 or 8 bytes that lie at some places."""
    if len(data) < size:
        return np.empty(0, np.int64)
    every = np.ndarray((len(data) - size + 1,), f">i{size}", data, strides=(1,))
    return every[at].astype(np.int64)


def damaged(data: Bytes, start: int) -> CorruptRecord:
    """Return what to raise for a record whose lengths do not add up."""
    (position,) = numbers(data, np.array([start]) + place_of("position"), 8)
    return CorruptRecord(f"the record at position {position} is damaged: its lengths do not add up")
