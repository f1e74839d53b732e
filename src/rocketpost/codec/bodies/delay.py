"""Delivery progress of the delay levels: ``delayOffset.json`` and GET_ALL_DELAY_OFFSET.

Levels are bare integers as keys, ``{1:12,18:0}``, as Java writes them. ``deliveredBefore`` is our
own: the log position before which every message that a level has delivered is stored. A Java broker
skips it when reading and does not write it, so that a stale value cannot remain.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from rocketpost.codec.bodies.leniency import decode_body
from rocketpost.codec.lenient_json import encode
from rocketpost.model.topic import DataVersion


class DelayOffsets(msgspec.Struct, rename="camel", kw_only=True):
    """Queue offset of the first undelivered message of each level."""

    data_version: DataVersion = DataVersion()
    offset_table: dict[int, int] = {}
    delivered_before: dict[int, int] = {}


def encode_delay_offsets(
    version: DataVersion, offsets: Mapping[int, int], positions: Mapping[int, int] | None = None
) -> bytes:
    """Return the text of the table, with ``deliveredBefore`` if ``positions`` are given."""
    own = b',"deliveredBefore":{%b}' % _row(positions) if positions else b""
    return b'{"dataVersion":%b,"offsetTable":{%b}%b}' % (encode(version), _row(offsets), own)


def decode_delay_offsets(data: bytes | memoryview) -> DelayOffsets:
    """Read the table, with bare or quoted levels.

    Raises:
        RemoteProtocolError: The table is malformed.
    """
    return decode_body(data, DelayOffsets)


def _row(values: Mapping[int, int]) -> bytes:
    return b",".join(b"%d:%d" % item for item in sorted(values.items()))
