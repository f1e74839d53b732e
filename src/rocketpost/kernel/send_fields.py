"""The contents of a sent frame, as the uncompiled build keeps them.

In the compiled build :class:`Send` is a C structure (``send_types.pxd``); this module stays
uncompiled.
"""

from __future__ import annotations


class Send:
    """The contents of one send's header, and where its properties are.

    Places are indexes into the frame's buffer; those of properties are indexes into the scratch
    buffer if ``is_unescaped`` is set.
    """

    def __init__(self) -> None:
        self.born_ms = 0
        self.code = 0
        self.fields_seen = 0
        self.flag = 0
        self.has_letters = 0
        self.has_long_names = 0
        self.is_batch = 0
        self.is_sharded = 0
        self.is_unescaped = 0
        self.keys_at = 0
        self.keys_end = 0
        self.members_seen = 0
        self.message_flag = 0
        self.number = 0
        self.opaque = 0
        self.queue_id = 0
        self.reconsume_times = 0
        self.sys_flag = 0
        self.tags_at = 0
        self.tags_end = 0
        self.text_at = 0
        self.text_end = 0
        self.topic_at = 0
        self.topic_end = 0
        self.unique_at = 0
        self.unique_end = 0
        self.names_at = [0] * 32
        self.name_ends = [0] * 32
