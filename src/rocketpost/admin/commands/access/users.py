"""Commands about users and rules: create, change, list, delete, copy."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import click

from rocketpost.access.info import AclInfo, UserInfo
from rocketpost.admin.command import (
    Failure,
    admin_command,
    broker_or_cluster,
    errors_from,
    find_masters,
    json_option,
    list_cluster_brokers,
    say,
    say_json,
    show_rows,
)
from rocketpost.admin.render import Column, Table
from rocketpost.admin.report import Report
from rocketpost.client.admin import AdminClient
from rocketpost.client.admin.access import make_rules
from rocketpost.errors import Fault, NoPermission, RequestCodeNotSupported

F = TypeVar("F", bound=Callable[..., Any])

_USERS: Final = Table(
    "%-16s  %-22s  %-22s  %-22s",
    [
        Column("#UserName", "username"),
        Column("#Password", "password"),
        Column("#UserType", "userType"),
        Column("#UserStatus", "userStatus"),
    ],
)
_RULES: Final = Table(
    "%-16s  %-10s  %-22s  %-20s  %-24s  %-10s",
    [
        Column("#Subject", "subject"),
        Column("#PolicyType", "policyType"),
        Column("#Resource", "resource"),
        Column("#Actions", "actions"),
        Column("#SourceIp", "sourceIp"),
        Column("#Decision", "decision"),
    ],
)
_user = click.option("-u", "--username", "name", required=True, metavar="USER", help="User.")
_subject = click.option(
    "-s", "--subject", required=True, metavar="User:NAME", help="The user that the rules are for."
)
_from_option = click.option(
    "-f", "--fromBroker", "source", required=True, metavar="HOST:PORT", help="Server to copy from."
)
_to_option = click.option(
    "-t", "--toBroker", "target", required=True, metavar="HOST:PORT", help="Server to copy to."
)


def _rule_options(function: F) -> F:
    for option in (
        click.option("-i", "--sourceIp", "sources", metavar="LIST", help="Addresses, networks."),
        click.option("-d", "--decision", required=True, help="Allow or Deny."),
        click.option("-a", "--actions", required=True, metavar="LIST", help="Pub,Sub,...; or All."),
        click.option(
            "-r", "--resources", required=True, metavar="LIST", help="Topic:name,Group:pre*,..."
        ),
        _subject,
    ):
        function = option(function)
    return function


# Users.


@admin_command("createUser")
@broker_or_cluster
@_user
@click.option("-p", "--password", required=True, help="Password; - reads it from the input.")
@click.option("-t", "--userType", "kind", help="Super or Normal.")
@json_option
async def create_user(
    admin: AdminClient,
    *,
    broker: str | None,
    cluster: str | None,
    name: str,
    password: str,
    kind: str | None,
    as_json: bool,
) -> None:
    """Create a user."""
    user = UserInfo(username=name, password=_read_password(password), user_type=kind)
    await _on_all(
        admin, broker, cluster, "create user", as_json,
        lambda address: admin.access.create_user(address, user),
    )  # fmt: skip


@admin_command("updateUser")
@broker_or_cluster
@_user
@click.option("-p", "--password", help="New password; - reads it from the input.")
@click.option("-t", "--userType", "kind", help="Super or Normal.")
@click.option("-s", "--userStatus", "status", help="enable or disable.")
@json_option
async def update_user(
    admin: AdminClient,
    *,
    broker: str | None,
    cluster: str | None,
    name: str,
    password: str | None,
    kind: str | None,
    status: str | None,
    as_json: bool,
) -> None:
    """Change the password, the type or the status of a user."""
    if sum(value is not None for value in (password, kind, status)) != 1:
        raise click.UsageError("give exactly one of -p, -t and -s")
    secret = None if password is None else _read_password(password)
    user = UserInfo(username=name, password=secret, user_type=kind, user_status=status)
    await _on_all(
        admin, broker, cluster, "update user", as_json,
        lambda address: admin.access.update_user(address, user),
    )  # fmt: skip


@admin_command("deleteUser")
@broker_or_cluster
@_user
@json_option
async def delete_user(
    admin: AdminClient, *, broker: str | None, cluster: str | None, name: str, as_json: bool
) -> None:
    """Delete a user and its rules."""

    async def delete(address: str) -> bool:
        is_known = await admin.access.user(address, name) is not None
        await admin.access.delete_user(address, name)  # the refusal of a server says more
        return is_known

    await _on_all(
        admin, broker, cluster, "delete user", as_json, delete,
        missing=f"{broker or cluster} has no user {name}",
    )  # fmt: skip


@admin_command("getUser")
@broker_or_cluster
@_user
@json_option
async def get_user(
    admin: AdminClient, *, broker: str | None, cluster: str | None, name: str, as_json: bool
) -> None:
    """Show a user."""
    for address in await find_masters(admin, broker, cluster):
        with errors_from(address):
            user = await admin.access.user(address, name)
        if user is not None:
            show_rows(_USERS, [_user_row(user)], as_json=as_json)
            return
    raise Failure(f"{broker or cluster} has no user {name}; `mqadmin listUser` shows the users")


@admin_command("listUser")
@broker_or_cluster
@click.option("-f", "--filter", "part", default="", help="Part of the names.")
@json_option
async def list_user(
    admin: AdminClient, *, broker: str | None, cluster: str | None, part: str, as_json: bool
) -> None:
    """List users."""
    for address in await find_masters(admin, broker, cluster):
        with errors_from(address):
            users = await admin.access.users(address, part)
        if users:
            show_rows(_USERS, [_user_row(user) for user in users], as_json=as_json)
            if cluster is not None and not as_json:
                say(f"get user from {address} success.")
            return
    if as_json:
        say_json([])


@admin_command("copyUser")
@_from_option
@_to_option
@click.option("-u", "--usernames", "names", metavar="LIST", help="Users; all if not given.")
@json_option
async def copy_user(
    admin: AdminClient, *, source: str, target: str, names: str | None, as_json: bool
) -> None:
    """Copy users to another server, with their passwords."""
    with errors_from(source):
        if names is None:
            users = await admin.access.users(source)
        else:
            users = []
            for name in _split(names):
                user = await admin.access.user(source, name)
                if user is None:
                    raise Failure(f"{source} has no user {name}; nothing was copied")
                users.append(user)
    with Report(as_json=as_json) as report:
        for user in users:
            name = user.username or ""
            if not user.password:
                raise Failure(f"{source} does not show the password of {name}: be a super user")
            with errors_from(target):
                known = await admin.access.user(target, name)
                change = admin.access.create_user if known is None else admin.access.update_user
                await change(target, user)
            text = f"copy user of {name} from {source} to {target} success."
            report.step(text, user=name, source=source, target=target)


# Rules.


@admin_command("createAcl")
@broker_or_cluster
@_rule_options
@json_option
async def create_acl(
    admin: AdminClient, *, broker: str | None, cluster: str | None, as_json: bool, **rule: Any
) -> None:
    """Add rules to those of a user."""
    rules = _rules(**rule)
    await _on_all(
        admin, broker, cluster, "create acl", as_json,
        lambda address: admin.access.put_rules(address, rules),
    )  # fmt: skip


@admin_command("updateAcl")
@broker_or_cluster
@_rule_options
@json_option
async def update_acl(
    admin: AdminClient, *, broker: str | None, cluster: str | None, as_json: bool, **rule: Any
) -> None:
    """Replace the rules of a user for some resources."""
    rules = _rules(**rule)
    await _on_all(
        admin, broker, cluster, "update acl", as_json,
        lambda address: admin.access.put_rules(address, rules, is_update=True),
    )  # fmt: skip


@admin_command("deleteAcl")
@broker_or_cluster
@_subject
@click.option("-r", "--resource", default="", help="Only the rule for this resource.")
@json_option
async def delete_acl(
    admin: AdminClient,
    *,
    broker: str | None,
    cluster: str | None,
    subject: str,
    resource: str,
    as_json: bool,
) -> None:
    """Delete rules of a user."""

    async def delete(address: str) -> bool:
        before = await admin.access.rules(address, subject)
        await admin.access.delete_rules(address, subject, resource)
        # Brokers read the resource in their own way, so the rules tell whether there was one.
        return before is None or await admin.access.rules(address, subject) != before

    await _on_all(
        admin, broker, cluster, "delete acl", as_json, delete,
        missing=f"{subject} has no rule for {resource} at {broker or cluster}",
    )  # fmt: skip


@admin_command("getAcl")
@broker_or_cluster
@_subject
@json_option
async def get_acl(
    admin: AdminClient, *, broker: str | None, cluster: str | None, subject: str, as_json: bool
) -> None:
    """Show the rules of a user."""
    rows = []
    for address in await find_masters(admin, broker, cluster):
        with errors_from(address):
            rules = await admin.access.rules(address, subject)
        rows += [] if rules is None else _rule_rows(rules)
    if rows or as_json:
        show_rows(_RULES, rows, as_json=as_json)


@admin_command("listAcl")
@broker_or_cluster
@click.option("-s", "--subject", default="", help="Part of the subjects.")
@click.option("-r", "--resource", default="", help="Part of the resources.")
@json_option
async def list_acl(
    admin: AdminClient,
    *,
    broker: str | None,
    cluster: str | None,
    subject: str,
    resource: str,
    as_json: bool,
) -> None:
    """List rules."""
    rows = []
    for address in await find_masters(admin, broker, cluster):
        with errors_from(address):
            found = await admin.access.all_rules(
                address, subject_part=subject, resource_part=resource
            )
        rows += [row for rules in found for row in _rule_rows(rules)]
    if rows or as_json:
        show_rows(_RULES, rows, as_json=as_json)


@admin_command("copyAcl")
@_from_option
@_to_option
@click.option("-s", "--subjects", metavar="LIST", help="Users, as User:NAME; all if not given.")
@json_option
async def copy_acl(
    admin: AdminClient, *, source: str, target: str, subjects: str | None, as_json: bool
) -> None:
    """Copy rules to another server, on which the users exist."""
    with errors_from(source):
        if subjects is None:
            found = await admin.access.all_rules(source)
        else:
            each = [await admin.access.rules(source, name) for name in _split(subjects)]
            found = [rules for rules in each if rules is not None]
    with Report(as_json=as_json) as report:
        for rules in found:
            with errors_from(target):
                await admin.access.put_rules(target, rules)
            text = f"copy acl of {rules.subject} from {source} to {target} success."
            report.step(text, subject=rules.subject, source=source, target=target)


async def _on_all(
    admin: AdminClient,
    broker: str | None,
    cluster: str | None,
    what: str,
    as_json: bool,
    change: Callable[[str], Awaitable[bool | None]],
    *,
    missing: str = "",
) -> None:
    """Make a change on one server; or on all brokers of a cluster and its name servers.

    Slaves of Rocketpost follow their master, and Apache's name servers have no users: both are left
    out.

    Args:
        admin: The client.
        broker: The server.
        cluster: The cluster.
        what: The change, for the report.
        as_json: Whether the report is JSON.
        change: Makes the change on a server; returns False if there was nothing to change.
        missing: The error if there was nothing to change on any server.

    Raises:
        Failure: A server refused the change, or there was nothing to change.
    """
    is_changed = False
    addresses = await find_masters(admin, broker, cluster)
    optional: list[str] = []
    if cluster is not None:
        for _, data in await list_cluster_brokers(admin, cluster):
            more = [address for number, address in data.broker_addrs.items() if number]
            optional += [address for address in more if address not in addresses]
        optional += admin.cluster.name_servers
    with Report(as_json=as_json) as report:
        for address in [*addresses, *optional]:
            try:
                with errors_from(address, except_for=Fault):
                    if await change(address) is False:
                        continue
            except Fault as error:
                if address in optional and _is_elsewhere(error):
                    continue
                with errors_from(address):
                    raise
            is_changed = True
            report.step(f"{what} to {address} success.", server=address)
        if not is_changed:
            raise Failure(missing)


def _is_elsewhere(error: Fault) -> bool:
    """Tell whether a server has no users of its own: it follows another, or has none at all."""
    if isinstance(error, RequestCodeNotSupported):
        return True
    is_off = isinstance(error, NoPermission) and "access control is off" in error.remark
    return is_off or "is a follower" in error.remark


def _rules(
    *, subject: str, resources: str, actions: str, decision: str, sources: str | None
) -> AclInfo:
    return make_rules(
        subject, _split(resources), _split(actions), decision, _split(sources or "") or None
    )


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _read_password(text: str) -> str:
    return sys.stdin.readline().rstrip("\n") if text == "-" else text


def _user_row(user: UserInfo) -> tuple[object, ...]:
    return (user.username, user.password or "", user.user_type, user.user_status)


def _rule_rows(rules: AclInfo) -> list[tuple[object, ...]]:
    return [
        (
            rules.subject,
            policy.policy_type,
            entry.resource,
            _list_text(entry.actions),
            _list_text(entry.source_ips),
            entry.decision,
        )
        for policy in rules.policies or ()
        for entry in policy.entries or ()
    ]


def _list_text(texts: list[str] | None) -> str:
    return "null" if texts is None else f"[{', '.join(texts)}]"


COMMANDS: Final = [
    create_user, update_user, delete_user, get_user, list_user, copy_user,
    create_acl, update_acl, delete_acl, get_acl, list_acl, copy_acl,
]  # fmt: skip
