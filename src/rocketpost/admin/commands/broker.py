"""Commands about brokers: runtime values, settings."""

from __future__ import annotations

from typing import Final

import click

from rocketpost.admin.broker_processes import list_processes
from rocketpost.admin.command import (
    admin_command,
    broker_or_cluster,
    errors_from,
    find_masters,
    json_option,
    list_cluster_brokers,
    require_one,
    say,
    say_json,
)
from rocketpost.admin.confirm import confirm, yes_option
from rocketpost.admin.losses import can_cause_losses, setting_losses
from rocketpost.admin.render import (
    plain_value,
    settings_text,
)
from rocketpost.admin.report import Report
from rocketpost.client.admin import AdminClient
from rocketpost.model.route import MASTER_ID


@admin_command("brokerStatus", is_watchable=True)
@broker_or_cluster
@json_option
async def broker_status(
    admin: AdminClient, *, broker: str | None, cluster: str | None, as_json: bool
) -> None:
    """Show the runtime values of brokers."""
    require_one(broker, cluster)
    addresses = (
        [broker]
        if broker
        else [process.address for process in await list_processes(admin, cluster)]
    )
    shown: dict[str, dict[str, str]] = {}
    for address in addresses:
        with errors_from(address):
            shown[address] = await admin.brokers.runtime(address)
    if as_json:
        say_json(
            {
                address: {key: plain_value(value) for key, value in values.items()}
                for address, values in shown.items()
            }
        )
        return
    for address, values in shown.items():
        start = "" if broker else f"{address:<24} "
        for key in sorted(values):
            say(f"{start}{key:<32}: {values[key]}")


# Settings.


@admin_command("getBrokerConfig")
@broker_or_cluster
@json_option
async def get_broker_config(
    admin: AdminClient, *, broker: str | None, cluster: str | None, as_json: bool
) -> None:
    """Show the settings of brokers."""
    require_one(broker, cluster)
    titles = {broker: broker} if broker else await _make_titles(admin, cluster)
    found: dict[str, dict[str, str]] = {}
    for address in titles:
        with errors_from(address):
            found[address] = await admin.brokers.config(address)
    if as_json:
        say_json(found)
        return
    for address, title in titles.items():
        say(settings_text(title, found[address]))
        say()


async def _make_titles(admin: AdminClient, cluster: str | None) -> dict[str, str]:
    titles: dict[str, str] = {}
    for _, each in await list_cluster_brokers(admin, cluster):
        for broker_id in sorted(each.broker_addrs):
            address = each.broker_addrs[broker_id]
            if broker_id == MASTER_ID:
                titles[address] = f"Master: {address}"
            else:
                titles[address] = f"My Master: {each.master or 'none'}=====Slave: {address}"
    return titles


@admin_command("updateBrokerConfig")
@broker_or_cluster
@click.option("-k", "--key", required=True, help="The setting.")
@click.option("-v", "--value", required=True, help="Its new value.")
@click.option("-a", "--updateAllBroker", "slaves", type=bool, default=False, help="Slaves too.")
@yes_option
@json_option
async def update_broker_config(
    admin: AdminClient,
    *,
    broker: str | None,
    cluster: str | None,
    key: str,
    value: str,
    slaves: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Change a setting of brokers while they run."""
    addresses = await find_masters(admin, broker, cluster)
    if slaves and cluster is not None:
        addresses = [process.address for process in await list_processes(admin, cluster)]
    losses = []
    if can_cause_losses(key):
        for address in addresses:
            with errors_from(address):
                before = (await admin.brokers.config(address)).get(key)
            losses += [f"{address}: {loss}" for loss in setting_losses(key, before, value)]
    await confirm(losses, yes=yes)
    with Report(as_json=as_json) as report:
        for address in addresses:
            with errors_from(address):
                await admin.brokers.update_config(address, {key: value})
            text = f"update broker config success, {address}"
            report.step(text, broker=address, key=key, value=value)


COMMANDS: Final = [broker_status, get_broker_config, update_broker_config]
