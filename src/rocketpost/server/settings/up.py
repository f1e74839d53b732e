"""The broker settings of ``rocketpost up``: small files, an optional properties file, its options.

A store allocates disk space in advance: two segments of the log and an index file. With RocketMQ's
sizes that is 2.4 GB after the first message, which suits a server but not a laptop; here it is
150 MB. Sizes are chosen when a store is created, so an existing store keeps its sizes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rocketpost.errors import ConfigError
from rocketpost.store.index.index_file import ENTRY_BYTES, HEADER_BYTES, SLOT_BYTES
from rocketpost.store.layout import Layout, parse_file_name

SEGMENT: Final = "mappedFileSizeCommitLog"
SLOTS: Final = "maxHashSlotNum"
ENTRIES: Final = "maxIndexNum"
SMALL: Final[Mapping[str, str]] = {
    SEGMENT: str(64 * 1024**2),
    SLOTS: "250000",
    ENTRIES: "1000000",
}
OF_OPTIONS: Final[Mapping[str, str]] = {
    "listenPort": "--broker-port",
    "bindAddress": "--host",
    "brokerIP1": "--host",
    "namesrvAddr": "--namesrv-port",
    "fetchNamesrvAddrByAddressServer": "--namesrv-port",
    "storePathRootDir": "--data",
}
"""Keys that the command sets itself, and the options for them."""

_ENTRIES_PER_SLOT: Final = 4
"""The ratio in RocketMQ and here; an index file's size does not show other ratios."""
_UNITS: Final = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}


def store_directory(data: Path) -> str:
    """Return the directory of the store in the directory of the data."""
    return str(data.absolute() / "store")


def namesrv_directory(data: Path) -> str:
    """Return the directory of the name server in the directory of the data."""
    return str(data.absolute() / "namesrv")


def parse_size(text: str) -> int:
    """Read a number of bytes such as 64M or 1G.

    Raises:
        ConfigError: The text is not a size.
    """
    found = re.fullmatch(r"([0-9]{1,15})([KMG]?)B?", text.strip().upper())
    if found is None:
        raise ConfigError(f"{text!r} is not a size; give bytes, or a number with K, M or G")
    return int(found[1]) * _UNITS[found[2]]


def file_notes(given: Mapping[str, str], path: object) -> list[str]:
    """Return a note for each key of a properties file that an option replaces."""
    return [
        f"{key} of {path} has no effect: {OF_OPTIONS[key]} decides it here"
        for key in sorted(set(given) & set(OF_OPTIONS))
    ]


def sizes_blocking(root: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return the file sizes that ``given`` lacks: those of an existing store, else small ones."""
    log = given.get("storePathCommitLog", "").strip()
    sizes = dict(SMALL)
    sizes |= _found_blocking(Layout(root, os.path.expanduser(log)))
    if SLOTS in given or ENTRIES in given:  # these two belong together
        del sizes[SLOTS], sizes[ENTRIES]
    return {key: value for key, value in sizes.items() if key not in given}


def _found_blocking(layout: Layout) -> dict[str, str]:
    found: dict[str, str] = {}
    log, index = _files_blocking(layout.commit_log), _files_blocking(layout.index)
    segment = max((log[name] for name in log if parse_file_name(name) is not None), default=0)
    if segment:
        found[SEGMENT] = str(segment)
    table = max((index[name] for name in index if name.isdecimal()), default=0)
    if table:
        per_slot = SLOT_BYTES + _ENTRIES_PER_SLOT * ENTRY_BYTES
        slots, rest = divmod(table - HEADER_BYTES, per_slot)
        if slots > 0 and rest == 0:
            found |= {SLOTS: str(slots), ENTRIES: str(slots * _ENTRIES_PER_SLOT)}
    return found


def _files_blocking(directory: str) -> dict[str, int]:
    """Return the sizes of the files in a directory by their names."""
    try:
        with os.scandir(directory) as entries:
            return {each.name: each.stat().st_size for each in entries if each.is_file()}
    except FileNotFoundError:
        return {}
