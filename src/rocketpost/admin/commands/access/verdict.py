"""The command that says what a user may do, and which rule decides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import click

from rocketpost.access.decision import decide
from rocketpost.access.rules import (
    Address,
    Match,
    Resource,
    parse_policies,
    parse_resource,
    parse_source,
)
from rocketpost.access.users import User
from rocketpost.access.words import EVERY, Action, UserStatus, UserType, find_word, subject_text
from rocketpost.admin.command import (
    admin_command,
    broker_or_cluster,
    errors_from,
    find_masters,
    json_option,
)
from rocketpost.admin.report import Report
from rocketpost.client.admin import AdminClient
from rocketpost.errors import RequestCodeNotSupported


@admin_command("access")
@click.argument("name", metavar="USER")
@click.argument("action", metavar="ACTION")
@click.argument("resource", metavar="RESOURCE")
@broker_or_cluster
@click.option("-i", "--sourceIp", "source", default="", help="Address of the client.")
@json_option
async def explain_access(
    admin: AdminClient,
    *,
    name: str,
    action: str,
    resource: str,
    broker: str | None,
    cluster: str | None,
    source: str,
    as_json: bool,
) -> None:
    """Say whether a user may do something, and which rule decides."""
    wanted = parse_resource(resource)
    word = find_word(Action, action)
    if word is None or word is Action.ALL:
        known = ", ".join(each.value for each in Action if each is not Action.ALL)
        raise click.UsageError(f"{action!r} is not an action; they are {known}")
    asked, client = _find_name(wanted), _parse_client(source)
    with Report(as_json=as_json) as report:
        for address in await find_masters(admin, broker, cluster):
            with errors_from(address):
                info = await admin.access.user(address, name)
                rules = None
                if info is not None:
                    rules = await admin.access.rules(address, subject_text(name))
                config = await _read_settings(admin, address)
            if (reason := _find_open(config, is_user=info is not None)) is not None:
                report.step(f"{address}: allowed, {reason}",
                            broker=address, allowed=True, reason=reason)  # fmt: skip
                continue
            if info is None:
                report.step(f"{address}: denied, there is no user {name}",
                            broker=address, allowed=False, reason="no such user")  # fmt: skip
                continue
            user = User(
                name,
                "",
                find_word(UserType, info.user_type) or UserType.NORMAL,
                find_word(UserStatus, info.user_status) is UserStatus.ENABLE,
            )
            verdict = decide(
                user,
                {} if rules is None else parse_policies(rules),
                kind=wanted.kind,
                name=asked,
                actions=(word,),
                source=client,
            )
            text = "allowed" if verdict.is_allowed else "denied"
            report.step(f"{address}: {text}, {verdict.reason}", broker=address,
                        allowed=verdict.is_allowed, reason=verdict.reason)  # fmt: skip


def _find_name(wanted: Resource) -> str:
    """Return the name that a request for the resource has; ``*`` for all of its kind."""
    if wanted.match is Match.PREFIXED:
        every = f"{wanted.kind.value}:{EVERY}"
        raise click.UsageError(
            f"{str(wanted)!r} is a prefix, which only rules have; name one resource, or {every}"
        )
    return wanted.name if wanted.match is Match.LITERAL else EVERY


def _parse_client(text: str) -> Address | None:
    """Return the address of a client; None if it is not given."""
    address = parse_source(text)
    if text and address is None:
        raise click.UsageError(f"{text!r} is not an IP address")
    return address


async def _read_settings(admin: AdminClient, address: str) -> dict[str, str]:
    """Return the settings of a broker; empty for a name server."""
    try:
        return await admin.brokers.config(address)
    except RequestCodeNotSupported:
        return {}


def _find_open(config: Mapping[str, str], *, is_user: bool) -> str | None:
    """Return why a server checks no rights; None if it does."""
    if config.get("authorizationEnabled") != "false":
        return None
    if config.get("authenticationEnabled") == "false":
        return "access control is off: everybody may do everything"
    return "authorizationEnabled is false: every user may do everything" if is_user else None


COMMANDS: Final = [explain_access]
