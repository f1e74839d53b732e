"""Commands about a group: they find its leader, also if it is elected just now."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rocketpost.admin import broker_group
from rocketpost.admin.command import Failure
from rocketpost.codec.bodies.group_status import GroupStatus
from rocketpost.testing.virtual_time import in_virtual_time


class Members:
    """An admin client whose two members answer with these roles, one round after the other."""

    def __init__(self, *rounds: tuple[str, str]) -> None:
        self._rounds = list(rounds)
        self.cluster = self.brokers = self

    async def info(self) -> Any:
        if len(self._rounds) > 1:
            self._rounds.pop(0)
        addresses = {0: "one", 1: "two"}
        return SimpleNamespace(broker_addr_table={"b": SimpleNamespace(broker_addrs=addresses)})

    async def group_status(self, address: str) -> GroupStatus:
        role = self._rounds[0][("one", "two").index(address)]
        return GroupStatus(group="g", member=address, role=role, term=len(self._rounds))


FOLLOWERS = ("FOLLOWER", "FOLLOWER")


@in_virtual_time
async def test_a_command_waits_for_a_leader_that_is_being_elected() -> None:
    admin: Any = Members(FOLLOWERS, FOLLOWERS, FOLLOWERS, ("FOLLOWER", "LEADER"))
    address, status = await broker_group._leader(admin, "b")
    assert (address, status.role) == ("two", "LEADER")


@in_virtual_time
async def test_a_group_without_a_leader_is_an_error_after_a_while() -> None:
    admin: Any = Members(FOLLOWERS)
    with pytest.raises(Failure, match="the group has no leader now"):
        await broker_group._leader(admin, "b")


@in_virtual_time
async def test_of_two_that_lead_the_one_with_the_later_term_counts() -> None:
    admin: Any = Members(FOLLOWERS, ("LEADER", "LEADER"))

    async def status(address: str) -> GroupStatus:
        terms = {"one": 3, "two": 2}
        return GroupStatus(group="g", member=address, role="LEADER", term=terms[address])

    admin.group_status = status
    address, _ = await broker_group._leader(admin, "b")
    assert address == "one"
