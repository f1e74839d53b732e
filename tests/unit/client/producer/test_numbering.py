from __future__ import annotations

import pytest

from rocketpost.client.message import Message
from rocketpost.client.producer.numbering import (
    BLOCK,
    UNSETTLED_MAX,
    Numbering,
    SequenceHomes,
    stamp_id,
)
from rocketpost.client.route_cache import PublishRoute
from rocketpost.errors import ConfigError, MessageRefused
from rocketpost.model.route import MessageQueue
from rocketpost.model.stamp import Stamp

A, B = MessageQueue("a", 0, "T"), MessageQueue("b", 0, "T")
A1 = MessageQueue("a", 1, "T")


def message(body: bytes = b"x") -> Message:
    return Message("T", body)


def test_ids_follow_from_the_stamp() -> None:
    stamp = Stamp("p", 1, 2)
    assert stamp_id(stamp) == stamp_id(Stamp("p", 1, 2))
    others = [Stamp("p", 1, 3), Stamp("p", 2, 2), Stamp("q", 1, 2)]
    assert len({stamp_id(each) for each in (stamp, *others)}) == 4
    assert len(stamp_id(stamp)) == 32
    assert stamp_id(stamp).isalnum()


def test_messages_are_numbered_in_turn() -> None:
    numbers = Numbering(None, 0)
    assert [numbers.stamp(message(), None).sequence for _ in range(3)] == [0, 1, 2]
    assert Numbering(None, 0).producer_id != numbers.producer_id
    with pytest.raises(MessageRefused):
        numbers.stamp(message(), 5)


def test_a_named_producer_says_its_numbers() -> None:
    numbers = Numbering("mine", 3)
    assert numbers.stamp(message(), 5) == Stamp("mine", 3, 5)
    for wrong in (None, -1, 2**63):
        with pytest.raises(MessageRefused):
            numbers.stamp(message(), wrong)
    for producer_id, epoch in (("a b", 0), ("mine", -1)):
        with pytest.raises(ConfigError):
            Numbering(producer_id, epoch)


def test_the_same_object_is_the_same_message_while_nobody_knows() -> None:
    numbers = Numbering(None, 0)
    mine, equal = message(), message()
    first = numbers.stamp(mine, None)
    assert numbers.stamp(mine, None) != first, "both are under way: two messages"
    numbers.mark_unsettled(mine, 0, A)
    numbers.mark_unsettled(mine, 1, B)
    assert numbers.stamp(equal, None).sequence == 2
    assert numbers.stamp(mine, None).sequence == 0
    assert numbers.queue_of(0) == A
    assert numbers.stamp(mine, None).sequence == 1
    assert numbers.stamp(mine, None).sequence == 3
    numbers.mark_settled(0)
    assert numbers.queue_of(0) is None


def test_a_copy_that_is_sent_in_place_of_a_message_has_its_number() -> None:
    """Each send of a message with a span is that of another copy."""
    numbers = Numbering(None, 0)
    mine = message()
    first, again, own = [mine.with_context({"traceparent": "x"}, is_same=True) for _ in range(3)]
    numbers.stamp(first, None)
    numbers.mark_unsettled(first, 0, A)
    assert numbers.stamp(mine.with_context({"traceparent": "x"}), None).sequence == 1
    assert numbers.stamp(again, None).sequence == 0
    numbers.put_back(again, 0)
    assert numbers.stamp(own, None).sequence == 0
    numbers.mark_settled(0)
    assert numbers.stamp(mine, None).sequence == 2


def test_who_gave_up_gets_his_number_back_although_it_ended_well() -> None:
    numbers = Numbering(None, 0)
    mine = message()
    numbers.stamp(mine, None)
    numbers.mark_unsettled(mine, 0, A)
    numbers.mark_unsettled(mine, 0, A)
    numbers.mark_settled(0)
    assert numbers.stamp(mine, None).sequence == 0
    numbers.mark_settled(0)
    assert numbers.stamp(mine, None).sequence == 1


def test_only_so_many_are_remembered() -> None:
    numbers = Numbering(None, 0)
    kept = [message() for _ in range(UNSETTLED_MAX + 1)]
    for sequence, each in enumerate(kept):
        numbers.stamp(each, None)
        numbers.mark_unsettled(each, sequence, A)
    assert numbers.stamp(kept[0], None).sequence == UNSETTLED_MAX + 1
    assert numbers.stamp(kept[1], None).sequence == 1


def test_a_queue_has_a_tail_until_something_fails() -> None:
    numbers = Numbering(None, 0)
    assert [numbers.follow(A, 1), numbers.follow(A, 4), numbers.follow(B, 5)] == [None, 1, None]
    numbers.break_off(A)
    assert numbers.follow(A, 6) is None


def test_numbers_go_home() -> None:
    homes, route = SequenceHomes(), PublishRoute([A, A1, B])
    assert homes.choose("T", route, 0).broker_name == "a"
    assert homes.choose("T", route, BLOCK).broker_name == "b"
    assert {homes.choose("T", route, n) for n in range(BLOCK)} == {A, A1}
    homes.learn("a", [])
    homes.learn("b", [(3, 5), (7, 8)])
    assert [homes.of(n) for n in (2, 3, 4, 5, 7)] == [None, "b", "b", None, "b"]
    assert homes.choose("T", route, 4) == B
    assert homes.at_home("T", route, 4, A) == B
    assert homes.at_home("T", route, 5, A) == A
    assert "a" in homes
    assert "c" not in homes
    assert homes.choose("T", PublishRoute([A]), 4) == A, "its home has left the route"


def test_the_farthest_horizon_counts() -> None:
    homes = SequenceHomes()
    homes.learn("a", [(50, 60)], horizon=40)
    homes.learn("b", [], horizon=0)
    assert homes.horizon == 40
    assert (homes.of(55), homes.of(30)) == ("a", None)
