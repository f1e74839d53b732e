"""Commands about filters that brokers store by name: create, list, delete, test."""

from __future__ import annotations

from typing import Final

import click
import msgspec

from rocketpost.admin.command import (
    Failure,
    admin_command,
    broker_or_cluster,
    errors_from,
    find_masters,
    json_option,
    say,
    say_json,
    show_rows,
)
from rocketpost.admin.confirm import confirm, yes_option
from rocketpost.admin.render import Column, Table, time_text_ms
from rocketpost.admin.report import Report
from rocketpost.client.admin import AdminClient
from rocketpost.errors import FilterError
from rocketpost.filter import compile_filter

_name = click.option("-f", "--filter", "name", metavar="NAME", required=True, help="Its name.")
_TABLE: Final = Table(
    "%-22s %-32s %-24s %s",
    [
        Column("#Broker", "broker"),
        Column("#Filter", "filter"),
        Column("#Updated", "updateTimestamp", time_text_ms),
        Column("#Expression", "expression"),
    ],
)
_expression = click.option(
    "-e", "--expression", metavar="SQL", required=True, help="The expression."
)


@admin_command("updateFilter")
@broker_or_cluster
@_name
@_expression
@json_option
async def update_filter(
    admin: AdminClient,
    *,
    broker: str | None,
    cluster: str | None,
    name: str,
    expression: str,
    as_json: bool,
) -> None:
    """Store a filter that consumers use as MATCHES('name')."""
    try:
        compile_filter(expression, paths=True)
    except FilterError as error:
        raise Failure(f"the filter is wrong {error}") from None
    with Report(as_json=as_json) as report:
        for address in await find_masters(admin, broker, cluster):
            with errors_from(address):
                await admin.filters.put(address, name, expression)
            text = f"keep the filter {name} at {address} success."
            report.step(text, broker=address, filter=name, expression=expression)


@admin_command("deleteFilter")
@broker_or_cluster
@_name
@yes_option
@json_option
async def delete_filter(
    admin: AdminClient,
    *,
    broker: str | None,
    cluster: str | None,
    name: str,
    yes: bool,
    as_json: bool,
) -> None:
    """Delete a named filter; refused while a group uses it."""
    masters = await find_masters(admin, broker, cluster)
    losses = []
    for address in masters:
        with errors_from(address):
            kept = (await admin.filters.all(address)).filters.get(name)
        if kept is not None:
            losses.append(f"this deletes the filter {name} at {address}: {kept.expression}")
    await confirm(losses, yes=yes)
    with Report(as_json=as_json) as report:
        for address in masters:
            with errors_from(address):
                await admin.filters.delete(address, name)
            report.step(
                f"delete the filter {name} at {address} success.", broker=address, filter=name
            )


@admin_command("filterList", is_watchable=True)
@broker_or_cluster
@json_option
async def filter_list(
    admin: AdminClient, *, broker: str | None, cluster: str | None, as_json: bool
) -> None:
    """List the filters that brokers store."""
    rows: list[tuple[str, str, int, str]] = []
    for address in await find_masters(admin, broker, cluster):
        with errors_from(address):
            table = await admin.filters.all(address)
        if not table.enabled:
            click.echo(f"note: namedFilterEnable is false at {address}", err=True)
        rows += [
            (address, each.name, each.update_timestamp, each.expression)
            for each in table.filters.values()
        ]
    show_rows(_TABLE, rows, as_json=as_json)


@admin_command("testFilter")
@broker_or_cluster
@_expression
@click.option("-p", "--property", "pairs", metavar="NAME=VALUE", multiple=True, help="A property.")
@click.option("-m", "--body", help="The body, as text.")
@click.option("-i", "--msgId", "message_id", help="Test this stored message, by its offset id.")
@json_option
async def test_filter(
    admin: AdminClient,
    *,
    broker: str | None,
    cluster: str | None,
    expression: str,
    pairs: tuple[str, ...],
    body: str | None,
    message_id: str | None,
    as_json: bool,
) -> None:
    """Show the result of a filter for a message: TRUE, FALSE, UNKNOWN or ERROR."""
    properties = dict(_parse_property(each) for each in pairs)
    if message_id is not None:
        message = await admin.messages.by_offset_id(message_id)
        properties = {**message.properties, **properties}
        if body is None:
            body = message.body.decode("utf-8", "replace")
    for address in await find_masters(admin, broker, cluster):
        with errors_from(address):
            found = await admin.filters.test(address, expression, properties=properties, body=body)
        if as_json:
            say_json(msgspec.to_builtins(found))
        else:
            reason = f" ({found.reason})" if found.reason else ""
            matches = "matches" if found.verdict == "TRUE" else "does not match"
            say(f"{address}: {found.verdict}{reason}, the message {matches}")


def _parse_property(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise click.UsageError(f"-p must be NAME=VALUE, not {text!r}")
    return name, value


COMMANDS: Final = (update_filter, delete_filter, filter_list, test_filter)
