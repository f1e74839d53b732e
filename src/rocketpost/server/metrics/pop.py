"""The metric families of popped messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from rocketpost.broker.pop.in_flight import InFlightTable
from rocketpost.broker.pop.receipts import ReceiptService
from rocketpost.server.metrics.exposition import Family, Labels, Sample, counter, gauge, single

_STORED: Final = "PUT_OK"
_IN: Final = Labels("consumer_group", "topic", "revive_message_type", "put_status")
_OUT: Final = Labels("consumer_group", "topic", "queue_id", "revive_message_type")
_RETRY: Final = Labels("consumer_group", "topic", "put_status")


def pop_families(
    in_flight: InFlightTable,
    receipts: ReceiptService,
    *,
    claim_count: int,
    exist: Callable[[str, str], bool],
    now_ms: int,
) -> Iterator[Family]:
    """Return the metrics of popping.

    Args:
        in_flight: The popped messages.
        receipts: Ends them.
        claim_count: Number of claims whose offsets are not committed yet.
        exist: Returns whether a topic and a group exist; the counts of others are left out.
        now_ms: The time.
    """
    yield gauge(
        "rocketpost_popped_messages",
        "Popped messages that are not acknowledged yet.",
        single(in_flight.count),
    )
    due_ms = in_flight.next_due_ms()
    late_ms = 0 if due_ms is None else max(0, now_ms - due_ms)
    yield gauge(
        "rocketpost_popped_overdue_seconds",
        "Time since which a popped message should have been delivered again.",
        single(late_ms / 1000),
    )
    yield gauge(
        "rocketmq_pop_checkpoint_buffer_size", "Checkpoints in memory.", single(len(in_flight))
    )
    yield gauge(
        "rocketmq_pop_offset_buffer_size",
        "Checkpoints whose offsets are not committed yet.",
        single(claim_count),
    )
    stored = [
        (kind, key, count)
        for kind, counts in (("CK", in_flight.launched), ("ACK", receipts.acknowledged))
        for key, count in counts.items()
    ]
    yield counter(
        "rocketmq_pop_revive_in_message_total",
        "Checkpoints and acknowledgements stored.",
        [
            Sample(_IN(group, topic, kind, _STORED), count)
            for kind, (topic, group), count in stored
            if exist(topic, group)
        ],
    )
    yield counter(
        "rocketmq_pop_revive_out_message_total",
        "Checkpoints that fell due before all their messages were acknowledged.",
        [
            Sample(_OUT(group, topic, str(queue_id), "CK"), count)
            for (topic, group, queue_id), count in in_flight.taken.items()
            if exist(topic, group)
        ],
    )
    yield counter(
        "rocketmq_pop_revive_retry_messages_total",
        "Popped messages that were stored again, because nobody acknowledged them.",
        [
            Sample(_RETRY(group, topic, _STORED), count)
            for (topic, group), count in receipts.redelivered.items()
            if exist(topic, group)
        ],
    )
