"""Header fields of sending a message back."""

from __future__ import annotations

import msgspec

from rocketpost.codec.numbers import Int32, Int64


class SendBackHeader(msgspec.Struct, rename="camel", kw_only=True):
    """CONSUMER_SEND_MSG_BACK (36): deliver the record at a position again later.

    ``failure_kind`` and ``failure_text`` are our own: the reason of the failure.
    """

    offset: Int64
    group: str
    delay_level: Int32 = 0
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None
    failure_kind: str = ""
    failure_text: str = ""
