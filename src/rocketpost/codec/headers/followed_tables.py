"""Header fields of FOLLOW_TABLES, by which a slave follows the tables of its master."""

from __future__ import annotations

import msgspec

from rocketpost.codec.numbers import Int64


class FollowTables(msgspec.Struct, rename="camel", kw_only=True):
    """FOLLOW_TABLES (7102): answered once a table differs from what the slave has."""

    known: str = ""
    """Version of each table that the slave has, ``name=version;name=version``. Tables that are
    missing here are sent; a version ``*`` asks for no changes of the table now."""
    hold_millis: Int64 = 0
    """Longest time to wait for a change."""


class FollowTablesResponse(msgspec.Struct, rename="camel", kw_only=True):
    """The tables in the body speak of nothing after this position of the log."""

    position: Int64
    access_withheld: bool = False
    """Whether the master keeps users and rules to itself: the slave's user may not see secrets."""
