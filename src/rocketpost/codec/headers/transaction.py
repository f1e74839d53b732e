"""Header fields of ending and checking transactions."""

from __future__ import annotations

import msgspec

from rocketpost.codec.numbers import Int32, Int64


class EndTransaction(msgspec.Struct, rename="camel", gc=False, kw_only=True):
    """END_TRANSACTION (37): a producer commits (8), rolls back (12) or cannot tell yet (0)."""

    producer_group: str
    tran_state_table_offset: Int64
    """Queue offset of the half message."""
    commit_log_offset: Int64
    """Its position."""
    commit_or_rollback: Int32
    from_transaction_check: bool = False
    msg_id: str = ""
    transaction_id: str | None = None
    topic: str | None = None
    broker_name: str | None = msgspec.field(default=None, name="bname")


class CheckTransaction(msgspec.Struct, rename="camel", gc=False, kw_only=True):
    """CHECK_TRANSACTION_STATE (39): a broker asks; the body is the half message."""

    tran_state_table_offset: Int64
    commit_log_offset: Int64
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    topic: str | None = None
    broker_name: str | None = msgspec.field(default=None, name="bname")


class ResumeCheck(msgspec.Struct, rename="camel", kw_only=True):
    """RESUME_CHECK_HALF_MESSAGE (323): check a discarded transaction again."""

    msg_id: str
    """The offset message id of the discarded message."""
    topic: str | None = None
