"""The command ``auditLog``: failed logins, denials, and changes of users and rules."""

from __future__ import annotations

from typing import Final

import click

from rocketpost.admin.command import (
    admin_command,
    broker_or_cluster,
    errors_from,
    find_masters,
    json_option,
    show_rows,
)
from rocketpost.admin.render import Column, Table
from rocketpost.client.admin import AdminClient
from rocketpost.client.admin.access import AuditLine

_LINES: Final = Table(
    "%-24s  %-12s  %-16s  %-22s  %-16s  %-10s  %s",
    [
        Column("#Time", "at"),
        Column("#Event", "event"),
        Column("#User", "user"),
        Column("#Source", "source"),
        Column("#Target", "target"),
        Column("#Result", "result"),
        Column("#What", "what"),
    ],
)


@admin_command("auditLog")
@broker_or_cluster
@click.option("-l", "--lines", "count", type=click.IntRange(1, 1000), default=50, help="At most.")
@click.option("-e", "--event", default="", metavar="EVENT", help="denied, loginFailed, ...")
@click.option("-u", "--username", "user", default="", metavar="USER", help="Only of this user.")
@json_option
async def audit_log(
    admin: AdminClient,
    *,
    broker: str | None,
    cluster: str | None,
    count: int,
    event: str,
    user: str,
    as_json: bool,
) -> None:
    """Show the newest lines of the audit log, to super users."""
    found: list[AuditLine] = []
    for address in await find_masters(admin, broker, cluster):
        with errors_from(address):
            found += await admin.access.audit(address, count=count, event=event, user=user)
    found.sort(key=lambda line: line.at)
    rows = [
        (line.at, line.event, line.user, line.source, line.target, line.result, _what(line))
        for line in found
    ]
    if rows or as_json:
        show_rows(_LINES, rows, as_json=as_json)


def _what(line: AuditLine) -> str:
    if line.left_out:
        return f"{line.left_out} more of them within a minute"
    if line.count:
        return f"{line.count} lines were not written"
    request = f"request {line.code}: " if line.code is not None else ""
    return f"{request}{line.change or line.reason}"


COMMANDS: Final = [audit_log]
