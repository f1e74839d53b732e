"""Answers that carry popped messages.

Messages that are delivered again are stored in a retry topic. They are returned as messages of
their own topic, with their receipt among the properties.
"""

from __future__ import annotations

import msgspec

from rocketpost.broker.pop.service import PoppedMessages, PopResult
from rocketpost.broker.pop.targets import PopRequest
from rocketpost.broker.stats import BrokerStats
from rocketpost.codec.command import to_fields
from rocketpost.codec.headers.pop import (
    IN_TOPIC,
    PopResponse,
    Receipt,
    offsets_text,
    order_counts_text,
    start_offsets_text,
)
from rocketpost.codec.properties import encode_properties
from rocketpost.codec.record import decode_record, encode_record
from rocketpost.errors import LocalProtocolError
from rocketpost.model import properties as names
from rocketpost.server.routes.route import Reply
from rocketpost.transport.connection import Buffer


class PopReplies:
    """Makes answers to pops, and counts them. Owned by the loop."""

    def __init__(self, *, stats: BrokerStats, broker_name: str) -> None:
        self._stats = stats
        self._broker_name = broker_name

    def reply(self, request: PopRequest, popped: PopResult) -> Reply:
        """Return the answer to a pop whose checkpoints are stored."""
        parts = popped.parts
        assert all(part.change.is_stored for part in parts)
        body: list[Buffer] = []
        for part in parts:
            if part.retry == IN_TOPIC:
                body += part.views
            else:
                for offset, view in zip(part.offsets, part.views, strict=True):
                    body += self._as_in_topic(request, popped, part, offset, view)
        self._stats.count_get(
            request.topic.topic_name,
            request.group,
            sum(len(part.offsets) for part in parts),
            sum(map(len, body)),
        )
        head = PopResponse(
            pop_time=popped.pop_ms,
            invisible_time=popped.invisible_ms,
            revive_qid=popped.revive_queue,
            rest_num=popped.rest_count,
            start_offset_info=start_offsets_text(
                (part.retry, part.queue_id, part.start_offset) for part in parts
            ),
            msg_offset_info=offsets_text(
                (part.retry, part.queue_id, part.offsets) for part in parts
            ),
            order_count_info=order_counts_text(
                (part.retry, part.queue_id, part.offsets, part.counts) for part in parts
            )
            if request.in_order
            else "",
        )
        return Reply(fields=to_fields(head), body=body)

    def _as_in_topic(
        self,
        request: PopRequest,
        popped: PopResult,
        part: PoppedMessages,
        offset: int,
        view: memoryview,
    ) -> list[Buffer]:
        """Return a message of a retry topic as one of its original topic, with its receipt."""
        receipt = Receipt(
            part.start_offset,
            popped.pop_ms,
            popped.invisible_ms,
            popped.revive_queue,
            part.retry,
            self._broker_name,
            part.queue_id,
            offset,
        )
        record = decode_record(view, verify_crc=False)
        try:
            properties = encode_properties(record.properties | {names.POP_CK: str(receipt)})
        except LocalProtocolError:  # no room: clients build it from the header
            return [view]
        topic = request.topic.topic_name
        changed = msgspec.structs.replace(record, topic=topic, properties_bytes=properties)
        return list[Buffer](encode_record(changed))
