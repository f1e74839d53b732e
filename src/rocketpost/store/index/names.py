"""File names of the key index: ``yyyyMMddHHmmssSSS`` in local time, so that they sort by age."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from typing import Final

_FORMAT: Final = "%Y%m%d%H%M%S"
_DIGITS: Final = 17


def is_name(name: str) -> bool:
    """Tell whether a file may belong to the index."""
    return len(name) == _DIGITS and name.isdecimal()


def name_at(store_ms: int) -> str:
    """Return the name of a file whose first message was stored at ``store_ms``."""
    seconds, milliseconds = divmod(store_ms, 1000)
    return f"{time.strftime(_FORMAT, time.localtime(seconds))}{milliseconds:03d}"


def name_after(name: str) -> str:
    """Return the name that is one millisecond later than ``name``."""
    # strptime parses microseconds: three zeros turn milliseconds into them.
    later = datetime.strptime(name + "000", _FORMAT + "%f") + timedelta(milliseconds=1)
    return later.strftime(_FORMAT) + f"{later.microsecond // 1000:03d}"
