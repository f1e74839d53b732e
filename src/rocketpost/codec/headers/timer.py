"""Header fields of recalling a timed message."""

from __future__ import annotations

import msgspec


class RecallHeader(msgspec.Struct, rename="camel", kw_only=True):
    """RECALL_MESSAGE (370)."""

    topic: str
    recall_handle: str
    producer_group: str = ""


class RecallResponse(msgspec.Struct, rename="camel", kw_only=True):
    """Answer to RECALL_MESSAGE."""

    msg_id: str
