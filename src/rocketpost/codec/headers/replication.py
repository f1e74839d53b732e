"""Headers of the requests between a master and its slaves."""

from __future__ import annotations

import msgspec

from rocketpost.codec.numbers import Int64


class ExchangeHaInfo(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """EXCHANGE_BROKER_HA_INFO (906): a slave introduces itself, or a master tells its addresses.

    The fields of the slave are ours; RocketMQ's slave sends none, and its master ignores them.
    """

    master_ha_address: str | None = None
    master_flush_offset: Int64 | None = None
    master_address: str | None = None
    slave_broker_id: Int64 | None = None
    slave_ha_address: str | None = None
    """The slave's end of its HA connection, by which the master recognises it."""
    segment_bytes: Int64 | None = msgspec.field(default=None, name="mappedFileSizeCommitLog")
    log_end: Int64 | None = None
    tail_position: Int64 | None = None
    """Start of the last bytes of the slave's log, of which ``tail_crc`` is the CRC-32."""
    tail_crc: Int64 | None = None


class HaInfo(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """Answer to EXCHANGE_BROKER_HA_INFO; those after the third are ours."""

    master_ha_address: str | None = None
    master_flush_offset: Int64 | None = None
    master_address: str | None = None
    segment_bytes: Int64 | None = msgspec.field(default=None, name="mappedFileSizeCommitLog")
    log_first: Int64 | None = None
    log_end: Int64 | None = None
    follow_problem: str | None = None
    """Reason why the slave can never follow this master; empty if it can."""
    needs_login: bool = False
    """Whether slaves log in at the HA port."""
