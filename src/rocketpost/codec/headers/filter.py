"""Header fields of requests about filters."""

from __future__ import annotations

import msgspec


class NamedFilterRequest(msgspec.Struct, rename="camel", kw_only=True):
    """DELETE_NAMED_FILTER (29003)."""

    name: str
