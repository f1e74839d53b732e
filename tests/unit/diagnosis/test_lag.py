from __future__ import annotations

import msgspec
import pytest

from rocketpost.admin.commands.consumer import progress_rows
from rocketpost.codec.bodies.offset import ConsumeState, QueueProgress
from rocketpost.codec.bodies.stats import QueueEntries, QueueEntry
from rocketpost.diagnosis.lag import count_accepted, queue_lag
from rocketpost.model.group import Subscription
from rocketpost.model.route import MessageQueue


@pytest.mark.parametrize(("end", "offset", "lag"), [(10, 3, 7), (10, 10, 0), (3, 10, 0)])
def test_a_lag_is_never_negative(end: int, offset: int, lag: int) -> None:
    progress = QueueProgress(broker_offset=end, consumer_offset=offset, pull_offset=0)
    assert queue_lag(progress) == lag
    queue = MessageQueue("a", 0, "T")
    [row] = progress_rows(ConsumeState(queues={queue: progress}), counts={queue: 1})
    assert row[5:] == (lag, 0, 0, 1)


def entries(wanted: Subscription | None, *passed: bool) -> QueueEntries:
    return QueueEntries(
        max_queue_index=9,
        min_queue_index=0,
        queue_data=[
            QueueEntry(physic_offset=0, physic_size=1, tags_code=1, eval=each) for each in passed
        ],
        subscription_data=wanted,
    )


def test_messages_that_match_the_filter_are_counted() -> None:
    tagged = Subscription(topic="T", sub_string="A", tags_set=["A"], code_set=frozenset({1}))
    others = msgspec.structs.replace(tagged, code_set=frozenset({2}))
    # Apache's brokers say of every entry that it is not accepted; the codes of tags decide.
    assert count_accepted(entries(tagged, False, False, False)) == 3
    assert count_accepted(entries(others, False, False)) == 0
    assert count_accepted(entries(Subscription(topic="T"), False, False)) == 2
    judged = msgspec.structs.replace(entries(tagged, True, False, True), judged=True)
    assert count_accepted(judged) == 2
    assert count_accepted(entries(None, True, True)) is None
    assert count_accepted(entries(None)) == 0


def test_an_expression_is_counted_only_if_the_broker_judged_it() -> None:
    found = entries(Subscription(topic="T", expression_type="SQL92"), True, False)
    assert count_accepted(found) is None
    assert count_accepted(msgspec.structs.replace(found, judged=True)) == 1
