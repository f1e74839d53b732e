"""The commands of ``rocketpost group``: the state of a group that elects its leader, and changes.

A group is found by the name of its brokers at the name servers. Changes are sent to its leader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import click

from rocketpost.admin.command import Failure, admin_command, json_option, say, say_json
from rocketpost.admin.render import Column, Table
from rocketpost.client.admin import AdminClient
from rocketpost.codec.bodies.group_status import GroupStatus, MemberState
from rocketpost.codec.faults import ServiceNotAvailable
from rocketpost.diagnosis.concurrency import map_concurrently
from rocketpost.errors import Fault, RocketpostError

_LOOK_SECONDS: Final = 0.2
_LEADER_SECONDS: Final = 5.0
"""Time that a command waits for a leader: name servers know one a moment after it is elected."""
_ROUTE_SECONDS: Final = 31.0
"""Time in which clients have asked for routes again; they do so every 30 seconds."""
_UNUSED_SECONDS: Final = 3.0
_PASSED_ON: Final = ("groupRequestsPassedOn", "groupRequestsNotPassedOn")
_MEMBERS: Final = Table(
    "%-6s %-10s %-22s %-22s %14s %12s  %s",
    [
        Column("#Member", "member"),
        Column("#Role", "role"),
        Column("#Address", "address"),
        Column("#Clients", "clientAddress"),
        Column("#LogEnd", "logEnd"),
        Column("#Missing", "missing"),
        Column("#State", "state"),
    ],
)

Command = Callable[..., Any]


def _broker_option(function: Command) -> Command:
    return click.option(
        "-b",
        "--brokerName",
        "broker",
        metavar="NAME",
        help="Name of the group's brokers; needed if the cluster has several.",
    )(function)


def _wait_option(function: Command) -> Command:
    return click.option(
        "--wait",
        "seconds",
        type=click.FloatRange(0),
        default=60.0,
        show_default=True,
        help="Seconds to wait until it is done.",
    )(function)


@admin_command("status")
@_broker_option
@json_option
async def show_status(admin: AdminClient, *, broker: str | None, as_json: bool) -> None:
    """Show the members of a group: who leads, what each has, and what is wrong.

    The exit status is 1 if the group has no leader or a member cannot be reached.
    """
    answers = await _ask_members(admin, broker)
    statuses = list(answers.statuses.values())
    if as_json:
        say_json(answers.statuses)
    else:
        say(status_text(statuses, answers.problems))
    if problems := _group_problems(statuses):
        raise Failure("; ".join(problems))


@admin_command("transfer")
@click.argument("member", default="")
@_broker_option
async def transfer(admin: AdminClient, *, member: str, broker: str | None) -> None:
    """Let MEMBER lead, or the one with most of the log if none is named."""
    await _transfer(admin, broker, member)


async def _transfer(admin: AdminClient, broker: str | None, member: str) -> None:
    address, before = await _leader(admin, broker)
    await admin.brokers.change_group(address, "transfer", member)
    async with asyncio.timeout(10):
        while True:
            try:
                _, status = await _leader(admin, broker)
                if status.term > before.term:
                    break
            except (Failure, RocketpostError):
                pass  # the new leader is opening its term
            await asyncio.sleep(_LOOK_SECONDS)
    say(f"{status.leader} leads the group {status.group} in term {status.term}")


@admin_command("drain")
@click.argument("member")
@_broker_option
@click.option(
    "--routes",
    "route_seconds",
    type=click.FloatRange(0),
    default=_ROUTE_SECONDS,
    show_default=True,
    help="Seconds after a handover in which every client asks for routes again.",
)
@click.option(
    "--wait",
    "seconds",
    type=click.FloatRange(0),
    default=180.0,
    show_default=True,
    help="Seconds to wait until it is done.",
)
async def drain(
    admin: AdminClient, *, member: str, broker: str | None, route_seconds: float, seconds: float
) -> None:
    """Wait until no client needs MEMBER, which can be stopped then without a failed send.

    If it leads the group, it hands over first. Clients with an old route are served through it
    until they ask for a new one.
    """
    leader, status = await _leader(admin, broker)
    found = status.find(member)
    if found is None:
        raise Failure(f"{member} is no member of the group {status.group}")
    address = leader if status.leader == member else found.client_address
    if not address:
        raise Failure(f"{member} is not reached by the leader, so no client uses it")
    try:
        async with asyncio.timeout(seconds):
            if status.leader == member:
                await _transfer(admin, broker, "")
                await asyncio.sleep(route_seconds)
            await _wait_unused(admin, address)
    except TimeoutError:
        raise Failure(
            f"clients still send requests for the leader to {member} after {seconds:g} s; repeat "
            "the command to wait on"
        ) from None
    say(f"no client takes {member} for the leader; stop it now")


async def _wait_unused(admin: AdminClient, address: str) -> None:
    """Wait until a member has got no request for the leader for some seconds."""
    loop = asyncio.get_running_loop()
    before, since = None, loop.time()
    while loop.time() - since < _UNUSED_SECONDS:
        try:
            facts = await admin.brokers.runtime(address)
            now = [facts[key] for key in _PASSED_ON]
        except ServiceNotAvailable:
            now = None  # it becomes a follower
        if now is None or now != before:
            before, since = now, loop.time()
        await asyncio.sleep(_LOOK_SECONDS)


@admin_command("add")
@click.argument("member")
@click.argument("address")
@_broker_option
@_wait_option
@click.option("--learner", is_flag=True, help="Only give it the log; it does not vote.")
async def add(
    admin: AdminClient,
    *,
    member: str,
    address: str,
    broker: str | None,
    seconds: float,
    learner: bool,
) -> None:
    """Add MEMBER, whose ADDRESS for other members is HOST:PORT, to a group.

    Start it before or after, with all members and itself in dLegerPeers. It gets the log first,
    and votes when it has it.
    """
    leader, status = await _leader(admin, broker)
    found = status.find(member)
    if found is None:
        await admin.brokers.change_group(leader, "add", member, address)
        say(f"{member} is a learner of the group {status.group}: it gets the log")
    elif found.address != address:
        raise Failure(f"{member} is a member at {found.address}; remove it first")
    if learner:
        return
    try:
        async with asyncio.timeout(seconds):
            await _promote(admin, broker, member)
    except TimeoutError:
        raise Failure(
            f"{member} has not got the log in {seconds:g} s; it stays a learner. Repeat the "
            "command to go on, and see `rocketpost group status`"
        ) from None
    say(f"{member} votes")


async def _promote(admin: AdminClient, broker: str | None, member: str) -> None:
    while True:
        leader, status = await _leader(admin, broker)
        found = status.find(member)
        if found is not None and found.is_voter:
            return
        if found is not None and found.is_known and found.has and not found.is_suspect:
            try:
                await admin.brokers.change_group(leader, "promote", member)
                return
            except Fault as error:
                if "wait for it" not in error.remark and "try again" not in error.remark:
                    raise
        await asyncio.sleep(_LOOK_SECONDS)


@admin_command("remove")
@click.argument("member")
@_broker_option
async def remove(admin: AdminClient, *, member: str, broker: str | None) -> None:
    """Remove MEMBER from a group; stop it afterwards. A leader hands over first."""
    _, status = await _leader(admin, broker)
    if status.find(member) is None:
        raise Failure(f"{member} is no member of the group {status.group}")
    if status.leader == member:
        await _transfer(admin, broker, "")
    status = await _remove(admin, broker, member)
    voters = [each for each in status.members if each.is_voter and each.name != member]
    say(f"{member} is removed from the group {status.group}; stop it now")
    if len(voters) < 3:
        say(f"note: {len(voters)} voters are left, so the group does not survive the loss of one")


async def _remove(admin: AdminClient, broker: str | None, member: str) -> GroupStatus:
    """Have the leader remove a member; return the view of the group before it was removed.

    A leader that was elected a moment ago refuses until it has opened its term, so it is asked
    again for some seconds.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + _LEADER_SECONDS
    while True:
        leader, status = await _leader(admin, broker)
        try:
            await admin.brokers.change_group(leader, "remove", member)
            return status
        except ServiceNotAvailable:
            if loop.time() > until:
                raise
        await asyncio.sleep(_LOOK_SECONDS)


COMMANDS: Final = [show_status, transfer, drain, add, remove]


# Finding the group.


class _Answers(NamedTuple):
    """The answers of the brokers of a group, by their addresses for clients."""

    statuses: dict[str, GroupStatus]
    problems: dict[str, str]
    """Reasons why the others did not answer."""


async def _ask_members(admin: AdminClient, broker: str | None) -> _Answers:
    """Ask all members that name servers know for their views, at the same time."""
    info = await admin.cluster.info()
    names = [broker] if broker is not None else sorted(info.broker_addr_table)
    addresses: dict[str, str] = {}
    for name in names:
        data = info.broker_addr_table.get(name)
        if data is None:
            raise Failure(f"no name server knows a broker {name}; `mqadmin clusterList`")
        addresses |= dict.fromkeys(data.broker_addrs.values(), name)

    async def ask(address: str) -> GroupStatus | RocketpostError:
        try:
            return await admin.brokers.group_status(address)
        except RocketpostError as error:
            return error

    outcomes = dict(zip(addresses, await map_concurrently(addresses, ask), strict=True))
    found = {at: each for at, each in outcomes.items() if isinstance(each, GroupStatus)}
    problems = {at: str(each) for at, each in outcomes.items() if isinstance(each, RocketpostError)}
    if not found:
        reasons = "; ".join(f"{address}: {why}" for address, why in problems.items())
        raise Failure(f"no broker is a member of a group; {reasons or 'none is known'}")
    if len({each.group for each in found.values()}) > 1:
        raise Failure("there are several groups; name one by -b BROKER_NAME")
    return _Answers(found, problems)


async def _leader(admin: AdminClient, broker: str | None) -> tuple[str, GroupStatus]:
    """Return the leader's address for clients, and its view, as soon as there is a leader."""
    loop = asyncio.get_running_loop()
    until = loop.time() + _LEADER_SECONDS
    while True:
        statuses = (await _ask_members(admin, broker)).statuses
        leaders = [(address, each) for address, each in statuses.items() if each.role == "LEADER"]
        if leaders:
            return max(leaders, key=lambda each: each[1].term)
        if loop.time() > until:
            raise Failure("the group has no leader now; see `rocketpost group status`")
        await asyncio.sleep(_LOOK_SECONDS)


# Text.


def status_text(statuses: list[GroupStatus], problems: Mapping[str, str]) -> str:
    """Return the state of a group, from the views of its members.

    Args:
        statuses: The views of the members that answered.
        problems: Reasons why others did not answer, by their addresses for clients.
    """
    newest = _newest(statuses)
    views = {each.member: each for each in statuses}
    rows = [_row(each, newest, views.get(each.name), problems) for each in newest.members]
    leader = newest.leader or "none"
    lines = [
        f"group {newest.group}, term {newest.term}, leader {leader}, "
        f"committed up to {newest.committed} of {newest.end}",
        _MEMBERS.text(rows),
    ]
    for view in statuses:
        lines += [f"{view.member}: {reason}" for reason in _remarks(view)]
    return "\n".join(lines)


def _newest(statuses: list[GroupStatus]) -> GroupStatus:
    return max(statuses, key=lambda each: (each.role == "LEADER", each.term))


def _group_problems(statuses: list[GroupStatus]) -> list[str]:
    """Return the reasons for exit status 1: no leader, or members that cannot be reached."""
    newest = _newest(statuses)
    answered = {each.member for each in statuses}
    silent = [each.name for each in newest.members if each.name not in answered]
    cut_off = [each.name for each in newest.members if each.problem and each.name in answered]
    problems = [] if newest.role == "LEADER" else [f"no leader of the group {newest.group} answers"]
    problems += [f"no answer from {', '.join(silent)}"] if silent else []
    return problems + ([f"{newest.member} cannot reach {', '.join(cut_off)}"] if cut_off else [])


def _row(
    member: MemberState,
    newest: GroupStatus,
    view: GroupStatus | None,
    problems: Mapping[str, str],
) -> tuple[object, ...]:
    role = "LEADER" if member.name == newest.leader else "FOLLOWER"
    role = role if member.is_voter else "LEARNER"
    # A leader that was just elected counts 0 for a member that it has not heard of.
    has = member.has if member.is_known and member.has else None
    end = has if has is not None or view is None else view.end
    return (
        member.name,
        role,
        member.address,
        member.client_address or "?",
        "?" if end is None else end,
        "?" if end is None else max(0, newest.end - end),
        _state(member, view, problems),
    )


def _state(member: MemberState, view: GroupStatus | None, problems: Mapping[str, str]) -> str:
    if view is None:
        reason = problems.get(member.client_address) or member.problem
        return f"no answer: {reason or 'no name server knows it'}"
    if view.problem:
        return view.problem
    if member.is_suspect or view.is_suspect:
        return "suspect: it gets lost log back, and does not vote yet"
    return f"not reached: {member.problem}" if member.problem else "ok"


def _remarks(view: GroupStatus) -> list[str]:
    remarks = [f"found at its start: {each}" for each in view.suspicions if view.is_suspect]
    if view.scrub:
        remarks.append(f"comparison of old log: {view.scrub}")
    return remarks
