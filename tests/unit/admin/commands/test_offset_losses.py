from __future__ import annotations

from rocketpost.admin.offset_losses import Move, move_losses
from rocketpost.model.route import MessageQueue

FIRST, SECOND, THIRD = (MessageQueue("b", queue_id, "T") for queue_id in range(3))


def test_messages_skipped_and_given_again_are_counted() -> None:
    moves = {FIRST: Move(2, 10), SECOND: Move(5, 6), THIRD: Move(9, 4)}
    assert move_losses("G", "T", moves) == [
        "the group G skips 9 messages of T that it has not consumed, in 2 queues",
        "the group G is given 5 messages of T again, in 1 queues",
    ]


def test_a_group_that_stays_loses_nothing() -> None:
    assert move_losses("G", "T", {FIRST: Move(3, 3)}) == move_losses("G", "T", {}) == []
