"""Stand-ins for Cython's names and for C structures, for a kernel that runs uncompiled.

In the compiled build :class:`Send` is a C structure (``send_types.pxd``). This module is never
compiled.
"""

from __future__ import annotations

from typing import Any

compiled = False
NULL: Any = None
PyBytes_AS_STRING: Any = None
PyBytes_FromStringAndSize: Any = None
address: Any = None
can_fold: Any = None
cast: Any = None
fold: Any = None
memchr: Any = None
memcmp: Any = None
memcpy: Any = None
memmove: Any = None
p_char: Any = None
p_uchar: Any = None
prefetch: Any = None
sha1_begin: Any = None
sha1_digest: Any = None
sha1_jobs: Any = None
sha1_prepare: Any = None
sha1_verify: Any = None
sha1_ways: Any = None


class Send:
    """The contents of one send's header, and where its properties are.

    Places are indexes into the frame's buffer; those of properties are indexes into the scratch
    buffer if ``is_unescaped`` is set. The key is the name of the user who signed the send, the mark
    is the signature. A bare value is one without quotes.
    """

    def __init__(self) -> None:
        self.born_at = 0
        self.born_end = 0
        self.born_ms = 0
        self.code = 0
        self.fields_seen = 0
        self.flag = 0
        self.has_bare = 0
        self.has_letters = 0
        self.has_long_names = 0
        self.is_batch = 0
        self.is_known = 0
        self.is_sharded = 0
        self.is_unescaped = 0
        self.key_at = 0
        self.key_end = 0
        self.keys_at = 0
        self.keys_end = 0
        self.mark_at = 0
        self.mark_end = 0
        self.members_seen = 0
        self.message_flag = 0
        self.number = 0
        self.opaque = 0
        self.opaque_at = 0
        self.opaque_end = 0
        self.queue_at = 0
        self.queue_end = 0
        self.queue_id = 0
        self.raw_at = 0
        self.raw_end = 0
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
        self.values_at = [0] * 16
        self.value_ends = [0] * 16
        self.names_at = [0] * 32
        self.name_ends = [0] * 32
