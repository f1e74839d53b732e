"""Header fields of a reply that a broker pushes to the requesting client."""

from __future__ import annotations

import msgspec

from rocketpost.codec.numbers import Int32, Int64


class PushReply(msgspec.Struct, rename="camel", kw_only=True):
    """PUSH_REPLY_MESSAGE_TO_CLIENT (326). Hosts are ``address:port``."""

    producer_group: str = ""
    topic: str
    default_topic: str = ""
    default_topic_queue_nums: Int32 = 0
    queue_id: Int32 = 0
    sys_flag: Int32 = 0
    born_timestamp: Int64 = 0
    flag: Int32 = 0
    properties: str = ""
    reconsume_times: Int32 = 0
    unit_mode: bool = False
    born_host: str = ""
    store_host: str = ""
    store_timestamp: Int64 = 0
