"""Assignments: every queue has a reader, shares are the clients' own, popping shares more."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpost.broker.group.assignment import AssignmentService
from rocketpost.broker.group.membership import Client, Membership
from rocketpost.broker.group.request_modes import RequestModes
from rocketpost.client.consumer.allocation import Average
from rocketpost.codec.bodies.assignment import Assignment, QueryAssignment, RequestMode
from rocketpost.codec.faults import InvalidParameter
from rocketpost.model.route import MessageQueue
from rocketpost.testing.clock import FakeClock


def queues_of(*counts: int) -> list[MessageQueue]:
    return [
        MessageQueue(f"b{broker}", queue_id, "T")
        for broker, count in enumerate(counts)
        for queue_id in range(count)
    ]


class World:
    def __init__(self, members: int, *, mode: str = "PULL", share: int = 0) -> None:
        self.membership = Membership(clock=FakeClock())
        self.names = [f"c{number}" for number in range(members)]
        for name in self.names:
            self.membership.join_consumer(
                "g",
                Client(name, name, "10.0.0.1:1", "JAVA", 0),
                consume_type="CONSUME_PASSIVELY",
                message_model="CLUSTERING",
                consume_from_where="",
                subscriptions=[],
            )
        self.modes = RequestModes()
        self.modes.set(
            RequestMode(topic="T", consumer_group="g", mode=mode, pop_share_queue_num=share)
        )
        self.service = AssignmentService(members=self.membership, modes=self.modes)

    def ask(
        self,
        client: str = "c0",
        queues: list[MessageQueue] | None = None,
        *,
        group: str = "g",
        model: str = "CLUSTERING",
        strategy: str = "AVG",
    ) -> list[Assignment] | None:
        asked = QueryAssignment(
            client_id=client,
            consumer_group=group,
            topic="T",
            message_model=model,
            strategy_name=strategy,
        )
        return self.service.assign(asked, queues)

    def shares(self, queues: list[MessageQueue], strategy: str = "AVG") -> list[list[MessageQueue]]:
        found = [self.ask(name, queues, strategy=strategy) or [] for name in self.names]
        return [[each.message_queue for each in share] for share in found]


def test_a_member_that_pulls_gets_the_share_it_would_compute_itself() -> None:
    world, queues = World(3), queues_of(4, 4)
    shuffled = queues[3:] + queues[:3]
    assert world.shares(shuffled) == [Average()(name, queues, world.names) for name in world.names]
    circle = world.shares(queues, "AVG_BY_CIRCLE")
    assert circle[0] == queues[::3]
    found = world.ask("c0", queues)
    assert found is not None
    assert {each.mode for each in found} == {"PULL"}


def test_a_member_that_pops_all_queues_gets_one_entry_per_broker() -> None:
    for share in (-1, 0, 2, 9):
        world = World(3, mode="POP", share=share)
        found = world.ask("c1", queues_of(4, 2))
        assert found == [
            Assignment(message_queue=MessageQueue("b0", -1, "T"), mode="POP"),
            Assignment(message_queue=MessageQueue("b1", -1, "T"), mode="POP"),
        ]


def test_a_member_that_pops_shares_the_queues_of_the_next_members() -> None:
    world, queues = World(4, mode="POP", share=1), queues_of(4)
    assert world.shares(queues) == [
        [queues[0], queues[1]],
        [queues[1], queues[2]],
        [queues[2], queues[3]],
        [queues[3], queues[0]],
    ]


@given(members=st.integers(1, 9), share=st.integers(-1, 9), count=st.integers(1, 12))
def test_every_member_has_a_queue_and_every_queue_a_member(
    members: int, share: int, count: int
) -> None:
    queues = queues_of(count)
    shares = World(members, mode="POP", share=share).shares(queues)
    assert all(shares)
    read = {queue for each in shares for queue in each}
    assert read == set(queues) or read == {MessageQueue("b0", -1, "T")}
    assert all(len(set(each)) == len(each) for each in shares)


def test_a_member_gets_all_queues_when_broadcasting_or_without_sharing() -> None:
    world, queues = World(2), queues_of(2, 2)
    everything = [Assignment(message_queue=queue) for queue in queues]
    assert world.ask("c0", queues, model="BROADCASTING") == everything
    world.service.shares_out = False
    assert world.ask("c0", queues) == everything


def test_a_member_without_an_answer_keeps_its_queues() -> None:
    world, queues = World(2), queues_of(2)
    assert world.ask("c0", None) is None
    assert world.ask("c0", queues, group="nobody") is None
    assert world.ask("stranger", queues) is None
    assert world.ask("c0", []) == []


def test_an_unknown_strategy_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="AVG and AVG_BY_CIRCLE"):
        World(1).ask("c0", queues_of(2), strategy="CONFIG")
