"""Small store directories, written by hand."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable
from pathlib import Path

import msgspec

from rocketpost.codec.record import Record, decode_records
from rocketpost.kernel.hashing import index_hash
from rocketpost.kernel.record_scan import index_words
from rocketpost.store.checkpoint import Progress, Times, encode_checkpoint
from rocketpost.store.files import RealFiles
from rocketpost.store.index.index_file import IndexFile, file_bytes
from rocketpost.store.layout import file_name

from .made_records import packed

BLANK = 0xCBD43194


def write_log(root: Path, records: Iterable[Record], *, segment_bytes: int) -> list[Record]:
    """Write a commit log as a broker does; returns the records with their true positions."""
    folder = root / "commitlog"
    folder.mkdir(parents=True, exist_ok=True)
    start, data = 0, b""
    for record in records:
        size = len(packed(record))
        if len(data) + size + 8 > segment_bytes:
            left = segment_bytes - len(data)
            (folder / file_name(start)).write_bytes(data + _blank(left))
            start, data = start + segment_bytes, b""
        data += packed(msgspec.structs.replace(record, position=start + len(data)))
    (folder / file_name(start)).write_bytes(data.ljust(segment_bytes, b"\0"))
    return [
        record for path in sorted(folder.iterdir()) for record in decode_records(path.read_bytes())
    ]


def write_queues(root: Path, records: Iterable[Record], *, file_entries: int = 64) -> None:
    """Write the consume queues of some records."""
    entries: dict[tuple[str, int], dict[int, bytes]] = {}
    for record in records:
        queue = entries.setdefault((record.topic, record.queue_id), {})
        code, _ = index_words(record.properties_bytes)
        queue[record.queue_offset] = struct.pack(">qiq", record.position, record.size, code)
    for (topic, queue_id), units in entries.items():
        folder = root / "consumequeue" / topic / str(queue_id)
        folder.mkdir(parents=True, exist_ok=True)
        for first in {offset // file_entries * file_entries for offset in units}:
            data = b"".join(
                units.get(offset, bytes(20)) for offset in range(first, first + file_entries)
            )
            (folder / file_name(first * 20)).write_bytes(data)


def write_index(
    root: Path, records: Iterable[Record], *, name: str = "20231114221320123", slots: int = 50
) -> Path:
    """Write one file of the key index."""
    entries = [
        (record.store_ms, index_hash(f"{record.topic}#{key}"), record.position)
        for record in records
        for key in index_words(record.properties_bytes)[1]
    ]
    path = root / "index" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(bytes(file_bytes(slots, len(entries) + 8)))
    file = IndexFile(
        str(path), files=RealFiles(), slot_count=slots, entry_count_max=len(entries) + 8
    )
    for store_ms, key_hash, position in entries:
        file.put(array("q", [key_hash, position]), 0, 1, store_ms)
    file.close()
    return path


def write_checkpoint(root: Path, position: int, *, queue_count: int = 0) -> None:
    """Say that queues have everything before a position."""
    data = encode_checkpoint(Times(1, 2, 3), Progress(position, 0, 0, queue_count, 0))
    (root / "checkpoint").write_bytes(data)


def _blank(left: int) -> bytes:
    return struct.pack(">iI", left, BLANK).ljust(left, b"\0")
