"""Messages lost to damage on a broker's disk: the answer to GET_DAMAGE, a request of ours."""

from __future__ import annotations

import msgspec


class DamagedRange(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """A damaged range of the commit log and the message that it held, if that is known."""

    begin: int
    end: int
    reason: str
    topic: str | None = None
    queue_id: int = -1
    queue_offset: int = -1
    found_timestamp: int = 0
    found_by: str = ""


class DamageList(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """Damaged ranges, newest finding first, and the number of further ones."""

    ranges: list[DamagedRange] = []
    total: int = 0
    """Number of ranges that match the request; the answer may hold fewer."""
    unlisted: int = 0
    """Number of further ranges, found when the broker's list was full."""
