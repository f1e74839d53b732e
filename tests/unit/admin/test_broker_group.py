"""Commands about a group: they find its leader, also if it is elected just now, and its state."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from rocketpost.admin import broker_group
from rocketpost.admin.command import Failure
from rocketpost.codec.bodies.group_status import GroupStatus, MemberState
from rocketpost.errors import RequestTimeout
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


# The state of a group.


class Group:
    """An admin client of a group of three: some members answer, the others never do."""

    def __init__(self, *views: GroupStatus) -> None:
        self._views = {f"{each.member}:1": each for each in views}
        self.cluster = self.brokers = self

    async def info(self) -> Any:
        addresses = {0: "n0:1", 2: "n1:1", 3: "n2:1"}
        return SimpleNamespace(broker_addr_table={"b": SimpleNamespace(broker_addrs=addresses)})

    async def group_status(self, address: str) -> GroupStatus:
        if address in self._views:
            return self._views[address]
        answer: asyncio.Future[GroupStatus] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(5):
                return await answer
        except TimeoutError:
            raise RequestTimeout(f"no response from {address} in 5 s") from None


def view_of(member: str, role: str, **known: int) -> GroupStatus:
    """Return the view of a member that knows the ends of some logs."""
    members = [
        MemberState(
            name=name,
            address=f"{name}:2",
            client_address=f"{name}:1",
            is_known=name in known,
            has=known.get(name, 0),
        )
        for name in ("n0", "n1", "n2")
    ]
    leader = member if role == "LEADER" else ""
    return GroupStatus(
        group="b", member=member, role=role, term=4, leader=leader, end=known[member],
        members=members,
    )  # fmt: skip


async def show(
    admin: Any, capsys: pytest.CaptureFixture[str]
) -> tuple[dict[str, tuple[str, ...]], str]:
    """Return what the table says of each member, and the message of the failure."""
    failure = ""
    try:
        work = broker_group.show_status.callback.__wrapped__  # type: ignore[union-attr]
        await work(admin, broker=None, as_json=False)
    except Failure as error:
        failure = error.message
    lines = [line.split(maxsplit=6) for line in capsys.readouterr().out.splitlines()[2:]]
    return {words[0]: tuple(words[4:]) for words in lines}, failure


@in_virtual_time
async def test_members_that_do_not_answer_are_no_members_that_are_well(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = asyncio.get_running_loop().time()
    rows, failure = await show(Group(view_of("n0", "FOLLOWER", n0=100)), capsys)
    assert asyncio.get_running_loop().time() - before == 5  # both are asked at the same time
    assert rows == {
        "n0": ("100", "0", "ok"),
        "n1": ("?", "?", "no answer: no response from n1:1 in 5 s"),
        "n2": ("?", "?", "no answer: no response from n2:1 in 5 s"),
    }
    assert failure == "no leader of the group b answers; no answer from n1, n2"


@in_virtual_time
async def test_a_leader_that_has_not_heard_of_a_member_does_not_know_what_it_has(
    capsys: pytest.CaptureFixture[str],
) -> None:
    leader = view_of("n0", "LEADER", n0=100, n1=0, n2=0)
    rows, failure = await show(Group(leader, view_of("n2", "FOLLOWER", n2=90)), capsys)
    assert rows["n1"] == ("?", "?", "no answer: no response from n1:1 in 5 s")
    assert rows["n2"] == ("90", "10", "ok")
    assert failure == "no answer from n1"


@in_virtual_time
async def test_a_member_that_is_stopped_has_the_reason_that_the_leader_knows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    leader = view_of("n0", "LEADER", n0=100, n1=100, n2=80)
    leader.members[2].client_address = ""
    leader.members[2].problem = "connection refused"
    rows, failure = await show(Group(leader, view_of("n1", "FOLLOWER", n1=100)), capsys)
    assert rows["n2"] == ("80", "20", "no answer: connection refused")
    assert failure == "no answer from n2"


@in_virtual_time
async def test_a_group_whose_members_all_answer_is_no_failure(
    capsys: pytest.CaptureFixture[str],
) -> None:
    followers = [view_of("n1", "FOLLOWER", n1=100), view_of("n2", "FOLLOWER", n2=100)]
    leader = view_of("n0", "LEADER", n0=100, n1=100, n2=100)
    rows, failure = await show(Group(leader, *followers), capsys)
    assert {row[2] for row in rows.values()} == {"ok"}
    assert failure == ""
    leader.members[2].problem = "connection refused"
    rows, failure = await show(Group(leader, *followers), capsys)
    assert rows["n2"] == ("100", "0", "not reached: connection refused")
    assert failure == "n0 cannot reach n2"
