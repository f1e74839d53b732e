"""Kernel modules, uncompiled and as they are imported: any bytes give the same results.

Compiled with memory checks (``make fuzz``), a read or write outside a buffer ends the process too.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable
from types import ModuleType
from typing import Any

from fuzz.finding import Find
from fuzz.forms import load_forms
from fuzz.supply import Supply
from fuzz.targets.records import mutated_records

_START = 1 << 30
_MODULES = (
    *("hashing", "queue_scan", "record_scan"),
    *("record_columns", "property_columns"),
)
_TAGS = (0, 1, 7, -1, 2**31 - 1, -(2**31), 2**63 - 1)
_NAMES = (b"TAGS", b"KEYS", b"a", b"", b"UNIQ_KEY")
_MARKS = (b"\x01", b"\x02", b"TAGS", b"KEYS", b"a", b"bb", b"", b"\xc3\xa4", b"\x00")


class Target:
    """Runs the functions of the kernel on bytes that nobody vouches for."""

    def __init__(self) -> None:
        self._forms = {name: load_forms(name) for name in _MODULES}

    def check(self, data: bytes) -> None:
        """Run one group of functions in both forms."""
        supply = Supply(data)
        mode = supply.byte() % 6
        if mode == 0:
            self._hashes(supply)
        elif mode == 1:
            self._entries(supply)
        elif mode == 2:
            self._scans(supply)
        elif mode == 3:
            self._soundness(supply)
        elif mode == 4:
            self._columns(supply)
        else:
            self._split(supply)

    def close(self) -> None:
        """Nothing is held."""

    def _compare(self, name: str, work: Callable[[ModuleType], Any]) -> Any:
        uncompiled, imported = map(work, self._forms[name])
        if uncompiled != imported:
            raise Find(f"{name}: {_short(uncompiled)} uncompiled, {_short(imported)} imported")
        return imported

    def _hashes(self, supply: Supply) -> None:
        head = supply.text()
        tails = [supply.text() for _ in range(supply.number(0, 5))]
        tails.append(supply.rest().decode("latin-1" if len(head) % 2 else "utf-8", "replace"))

        def work(hashing: ModuleType) -> list[int]:
            state = hashing.extend_state(0, head)
            return [
                state,
                hashing.string_hash(tails[-1]),
                *hashing.index_hashes_after(state, tails),
            ]

        self._compare("hashing", work)

    def _entries(self, supply: Supply) -> None:
        wanted = frozenset(supply.pick(_TAGS) for _ in range(supply.number(0, 3)))
        count, size = supply.number(1, 40), supply.number(0, 1 << 20)
        segment = memoryview(supply.raw(255))
        units = bytearray()
        for _ in range(supply.number(0, 12)):
            position = _START + supply.pick((0, 1, supply.byte(), -1, len(segment), 2**62))
            length = supply.pick((1, supply.byte(), len(segment), 0, -1, 2**31 - 1))
            units += struct.pack(">qiq", position, length, supply.pick(_TAGS))
        units += supply.rest()
        end = _START + len(segment)
        self._compare(
            "queue_scan",
            lambda module: (
                module.scan_units(bytes(units), wanted, count_max=count, bytes_max=size),
                module.matching_ordinals(bytes(units), wanted),
            ),
        )
        self._compare(
            "queue_scan",
            lambda module: module.gather_records(
                bytes(units), wanted, count, size, segment, _START, end
            ),
        )

    def _scans(self, supply: Supply) -> None:
        verify = supply.chance(2)
        name = supply.raw(20)
        data = supply.rest() if supply.chance(4) else mutated_records(supply)

        def work(module: ModuleType) -> Any:
            return (
                module.scan_records(data, 0, 0, count_max=100, verify_crc=verify),
                module.record_starts(memoryview(data), 0, count_max=100, bytes_max=1 << 20),
                module.is_torn(name, data[:100]),
                module.index_words(data[-100:]),
            )

        self._compare("record_scan", work)

    def _soundness(self, supply: Supply) -> None:
        topic = b"T" * supply.number(1, 200)
        required = supply.chance(4)
        places = [(supply.byte(), supply.number(0, 500)) for _ in range(supply.number(0, 4))]
        data = mutated_records(supply)
        starts, _ = self._forms["record_scan"].imported.record_starts(
            data, 0, count_max=9, bytes_max=1 << 20
        )
        sizes = [int.from_bytes(data[at : at + 4], "big") for at in starts]
        units = [(0, at, size) for at, size in zip(starts, sizes, strict=True)]
        units += [(ordinal, ordinal, size) for ordinal, size in places]
        self._compare(
            "record_scan",
            lambda module: module.find_unsound(data, 0, units, 0, 3, topic, required),
        )

    def _columns(self, supply: Supply) -> None:
        data = memoryview(mutated_records(supply) if supply.chance(2) else supply.rest())

        def work(module: ModuleType) -> Any:
            starts = _room("q", len(data) // 91 + 1)
            count, end = module.walk(data, starts, 1 << 30)
            places, longs, ints = (
                _room("q", 7 * count),
                _room("q", 5 * count),
                _room("i", 6 * count),
            )
            sound = module.lay_out(data, starts[:count], -7, 5000, places, longs, ints)
            if sound < count:  # as callers do: what follows is not read
                return count, end, sound
            columns = [places[at * count : (at + 1) * count] for at in range(7)]
            slots, numbers = _room("i", 2 << count.bit_length()), _room("i", count)
            found = _room("q", 3 * count)
            queues = module.number_queues(
                data, columns[3], columns[4], ints[2 * count : 3 * count], longs[:count],
                slots, numbers, found,
            )  # fmt: skip
            offsets, texts = _room("i", count + 1), []
            for begins, ends in ((columns[1], columns[2]), (columns[5], columns[6])):
                joined = _room("B", module.measure(begins, ends, offsets))
                module.copy_slices(data, begins, offsets, joined)
                texts.append((joined.tobytes(), module.is_ascii(joined)))
            hosts, ids = _room("B", 27 * count), _room("B", 32 * count)
            written = 0
            if not any(flag & 0x30 for flag in ints[4 * count : 5 * count]):  # all hosts are IPv4
                written = module.write_hosts(data, starts[:count], 48, offsets, hosts)
                module.write_ids(data, columns[0], 8, starts[:count], ids)
            parts = (places, longs, ints, numbers, found[:queues], hosts[:written], ids)
            return count, end, queues, texts, [part.tobytes() for part in parts]

        self._compare("record_columns", work)

    def _split(self, supply: Supply) -> None:
        name = supply.pick(_NAMES)
        texts = [
            b"".join(supply.pick(_MARKS) for _ in range(supply.number(0, 12)))
            for _ in range(supply.number(0, 8))
        ]
        texts.append(supply.rest())
        data = memoryview(b"".join(texts))
        ends = array("q", [0])
        for text in texts:
            ends.append(ends[-1] + len(text))
        limits, count = memoryview(ends), len(texts)

        def work(module: ModuleType) -> Any:
            row_ends, alike = _room("i", count + 1), _room("B", count)
            name_ends, value_ends = (_room("i", len(data) // 3 + 1) for _ in range(2))
            names, values = _room("B", len(data)), _room("B", len(data))
            pairs = module.split_properties(
                data, limits[:-1], limits[1:], row_ends, name_ends, names, value_ends, values, alike
            )
            begins, stops = _room("q", count), _room("q", count)
            found = module.find_values(
                name, row_ends, name_ends, names, value_ends, alike, begins, stops
            )
            used = names[: name_ends[pairs]], values[: value_ends[pairs]]
            parts = (row_ends, alike, name_ends[: pairs + 1], value_ends[: pairs + 1], *used)
            return pairs, found, [part.tobytes() for part in (*parts, begins, stops)]

        self._compare("property_columns", work)


def _room(kind: str, count: int) -> memoryview:
    return memoryview(array(kind, bytes(array(kind).itemsize * count)))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) < 400 else f"{text[:400]}..."
