"""The metric families of transactions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rocketpost.broker.topic import TopicTable
from rocketpost.broker.transaction.table import Fate, PendingTable
from rocketpost.broker.transaction.tally import FINISH_BOUNDS_S, TransactionTally
from rocketpost.server.metrics.exposition import (
    Family,
    Labels,
    Sample,
    counter,
    gauge,
    histogram,
    single,
)

_TOPIC: Final = Labels("topic")


def transaction_families(
    table: PendingTable, tally: TransactionTally, *, topics: TopicTable, questions: int
) -> Iterator[Family]:
    """Return the metrics of transactions.

    Args:
        table: The pending halves.
        tally: The ended transactions.
        topics: The topics; the counts of others are left out.
        questions: Number of times that a producer was asked for the outcome.
    """
    yield gauge(
        "rocketmq_half_messages",
        "Halves of transactions that nobody has ended.",
        [
            Sample(_TOPIC(topic), count)
            for topic, count in table.topic_counts.items()
            if topics.find(topic) is not None
        ],
    )
    for fate, word in ((Fate.COMMIT, "committed"), (Fate.ROLLBACK, "rolled back")):
        yield counter(
            f"rocketmq_{fate.name.lower()}_messages_total",
            f"Transactions that were {word}.",
            [
                Sample(_TOPIC(topic), count)
                for topic, count in tally.by_topic(fate)
                if topics.find(topic) is not None
            ],
        )
    yield histogram(
        "rocketmq_finish_message_latency_milliseconds",
        "Time from a half to its commit. The values are seconds, as in RocketMQ.",
        [
            (_TOPIC(topic), times)
            for topic, times in tally.times.items()
            if topics.find(topic) is not None
        ],
        bounds=FINISH_BOUNDS_S,
    )
    yield counter(
        "rocketpost_transactions_discarded_total",
        "Transactions that were given up after the last check.",
        single(tally.total(Fate.DISCARD)),
    )
    yield counter(
        "rocketpost_transaction_checks_total",
        "Questions to producers for the outcome of transactions.",
        single(questions),
    )
