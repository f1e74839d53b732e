"""Commands about transactions: list pending and discarded ones, check one again."""

from __future__ import annotations

import time
from typing import Final

import click

from rocketpost.admin.command import admin_command, json_option, show_rows
from rocketpost.admin.render import Column, Table
from rocketpost.admin.report import Report
from rocketpost.client.admin import AdminClient

_TABLE: Final = Table(
    "%-32s  %-24s  %-24s  %10s  %6s  %-16s  %-32s  %s",
    [
        Column("#Transaction ID", "transactionId"),
        Column("#Producer Group", "producerGroup"),
        Column("#Topic", "topic"),
        Column("#Age", "ageSeconds", lambda seconds: f"{seconds:.0f}s"),
        Column("#Checks", "checks"),
        Column("#Broker", "brokerName"),
        Column("#Message ID", "offsetMsgId"),
        Column("#Keys", "keys", " ".join),
    ],
)


@admin_command("transactions", is_watchable=True)
@click.option("-g", "--producerGroup", "group", help="Of this producer group only.")
@click.option("-t", "--topic", "topic", help="For this topic only.")
@click.option(
    "-d", "--discarded", "discarded", is_flag=True, help="Only transactions that were given up."
)
@json_option
async def transactions(
    admin: AdminClient, *, group: str | None, topic: str | None, discarded: bool, as_json: bool
) -> None:
    """List pending or discarded transactions."""
    halves = admin.transactions.discarded() if discarded else admin.transactions.pending()
    now_ms = time.time_ns() // 1_000_000
    rows: list[tuple[object, ...]] = []
    async for half in halves:
        if group in (None, half.group) and topic in (None, half.topic):
            message = half.message
            rows.append(
                (
                    half.id,
                    half.group,
                    half.topic,
                    max(0, now_ms - message.born_ms) / 1000,
                    half.checks,
                    message.queue.broker_name,
                    message.offset_id,
                    message.keys,
                )
            )
    show_rows(_TABLE, rows, as_json=as_json)


@admin_command("resumeCheckHalfMessage")
@click.option("-i", "--msgId", "message_id", required=True, help="Message or transaction id.")
@json_option
async def resume_check(admin: AdminClient, *, message_id: str, as_json: bool) -> None:
    """Check a discarded transaction again."""
    with Report(as_json=as_json) as report:
        await admin.transactions.resume(message_id)
        report.step(f"the producers will be asked about {message_id} again", msgId=message_id)


COMMANDS: Final = (transactions, resume_check)
