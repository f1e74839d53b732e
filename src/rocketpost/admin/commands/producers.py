"""The command ``producerState``: what brokers know about idempotent producers."""

from __future__ import annotations

import time
from typing import Final

import click

from rocketpost.admin.command import (
    admin_command,
    broker_or_cluster,
    errors_from,
    find_masters,
    json_option,
    say,
    say_json,
    show_rows,
)
from rocketpost.admin.render import Column, Table
from rocketpost.client.admin import AdminClient
from rocketpost.codec.bodies.producers import ProducerState

_RUNS_SHOWN: Final = 3

_PRODUCERS: Final = Table(
    "%-22s  %-40s %8s %14s %10s %10s  %s",
    [
        Column("#Broker", "brokerAddr"),
        Column("#Producer Id", "producerId"),
        Column("#Epoch", "epoch"),
        Column("#LastSequence", "lastSequence"),
        Column("#Gaps", "gaps"),
        Column("#Age(s)", "ageSeconds", lambda age: f"{age:.1f}"),
        Column("#Stored", "stored"),
    ],
)


@admin_command("producerState", is_watchable=True)
@broker_or_cluster
@click.option("-p", "--producerId", "producer_id", metavar="ID", help="Only this producer.")
@click.option(
    "-m",
    "--maxNum",
    "count_max",
    type=click.IntRange(1, 1000),
    default=100,
    show_default=True,
    help="Limit per broker; producers that stored last come first.",
)
@json_option
async def producer_state(
    admin: AdminClient,
    *,
    broker: str | None,
    cluster: str | None,
    producer_id: str | None,
    count_max: int,
    as_json: bool,
) -> None:
    """Show the state of idempotent producers."""
    rows: list[tuple[object, ...]] = []
    shown: dict[str, object] = {}
    total = 0
    for address in await find_masters(admin, broker, cluster):
        with errors_from(address):
            states = await admin.brokers.producer_states(
                address, producer_id=producer_id, count_max=count_max
            )
        total += states.total
        shown[address] = states
        rows += [
            producer_row(address, state, now_ms=time.time_ns() // 1_000_000)
            for state in states.producers
        ]
    if as_json:
        say_json(shown)
        return
    show_rows(_PRODUCERS, rows, as_json=False)
    say(f"{len(rows)} of {total} producers")


def producer_row(address: str, state: ProducerState, *, now_ms: int) -> tuple[object, ...]:
    """Return the row of one producer."""
    runs = [f"{first}-{end - 1}" for first, end in state.runs[-_RUNS_SHOWN:]]
    if len(state.runs) > _RUNS_SHOWN:
        runs.insert(0, "...")
    last = state.last_sequence
    return (
        address,
        state.producer_id,
        state.epoch,
        "-" if last is None else last,
        max(0, len(state.runs) - 1),
        max(0, now_ms - state.last_timestamp) / 1000,
        " ".join(runs),
    )


COMMANDS: Final = [producer_state]
