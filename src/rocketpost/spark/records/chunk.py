"""Chunks of records: their bytes and starts, and the search for records in bytes."""

from __future__ import annotations

import functools
from typing import Final

import numpy as np

from rocketpost.kernel import record_columns, record_scan
from rocketpost.spark.records.fields import Bytes, Fields, Ints, Mask
from rocketpost.spark.records.kernel_fields import COMPILED, KernelFields
from rocketpost.spark.records.numpy_fields import NumpyFields

_RECORD_BYTES_MIN: Final = 91
_ALL: Final = 2**62


class Chunk:
    """Records as bytes, with fields that are located once.

    Attributes:
        data: The bytes of the records; under 2 GiB.
        starts: The start of each record in ``data``, ascending; size fields must be right.
    """

    def __init__(self, data: Bytes, starts: Ints, *, compiled: bool = COMPILED) -> None:
        self.data = data
        self.starts = starts
        self._compiled = compiled

    def __len__(self) -> int:
        return len(self.starts)

    @functools.cached_property
    def fields(self) -> Fields:
        """The fields of the records."""
        way = KernelFields if self._compiled else NumpyFields
        return way(self.data, self.starts)

    def only(self, wanted: Mask) -> Chunk:
        """Return some of the records."""
        if wanted.all():
            return self
        return Chunk(self.data, self.starts[wanted], compiled=self._compiled)


def find_records(
    data: Bytes, *, bytes_max: int = _ALL, compiled: bool = COMPILED
) -> tuple[Ints, int]:
    """Return the starts of records, found by their sizes alone, and the end of the last.

    Records that begin from ``bytes_max`` on are left out.
    """
    if not compiled:
        found, end = record_scan.record_starts(data, 0, count_max=_ALL, bytes_max=bytes_max)
        return np.array(found, np.int64), end
    starts = np.empty(len(data) // _RECORD_BYTES_MIN, np.int64)
    count, end = record_columns.walk(memoryview(data), starts.data, bytes_max)
    return starts[:count], end
