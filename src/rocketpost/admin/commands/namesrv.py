"""Commands about name servers: write permission of brokers, key-value and own settings."""

from __future__ import annotations

from typing import Final

import click

from rocketpost.admin.command import Failure, admin_command, json_option, say, say_json
from rocketpost.admin.confirm import confirm, yes_option
from rocketpost.admin.render import settings_text
from rocketpost.admin.report import Report
from rocketpost.client.admin import AdminClient

_broker_name = click.option("-b", "--brokerName", "broker", required=True, help="Broker name.")
_namespace = click.option("-s", "--namespace", required=True, help="Namespace of the key.")
_key = click.option("-k", "--key", required=True, help="The key.")
_value = click.option("-v", "--value", required=True, help="The value.")


@admin_command("wipeWritePerm")
@_broker_name
@yes_option
@json_option
async def wipe_write_perm(admin: AdminClient, *, broker: str, yes: bool, as_json: bool) -> None:
    """Remove the write permission of a broker in the routes of every name server."""
    await admin.cluster.broker_addresses(broker)
    loss = (
        f"producers may no longer send to the broker {broker}, whatever the topic, "
        f"until `mqadmin addWritePerm -b {broker}`"
    )
    await confirm([loss], yes=yes)
    with Report(as_json=as_json) as report:
        for where, count in (await admin.cluster.wipe_write_perm(broker)).items():
            text = f"wipe write perm of broker[{broker}] in name server[{where}] OK, {count}"
            report.step(text, brokerName=broker, nameServer=where, topics=count)


@admin_command("addWritePerm")
@_broker_name
@json_option
async def add_write_perm(admin: AdminClient, *, broker: str, as_json: bool) -> None:
    """Restore the write permission of a broker in the routes of every name server."""
    await admin.cluster.broker_addresses(broker)
    with Report(as_json=as_json) as report:
        for where, count in (await admin.cluster.add_write_perm(broker)).items():
            text = f"add write perm of broker[{broker}] in name server[{where}] OK, {count}"
            report.step(text, brokerName=broker, nameServer=where, topics=count)


@admin_command("updateKvConfig")
@_namespace
@_key
@_value
@json_option
async def update_kv_config(
    admin: AdminClient, *, namespace: str, key: str, value: str, as_json: bool
) -> None:
    """Set a key-value setting on every name server."""
    with Report(as_json=as_json) as report:
        await admin.cluster.put_kv(namespace, key, value)
        text = "create or update kv config to namespace success."
        report.step(text, namespace=namespace, key=key, value=value)


@admin_command("deleteKvConfig")
@_namespace
@_key
@yes_option
@json_option
async def delete_kv_config(
    admin: AdminClient, *, namespace: str, key: str, yes: bool, as_json: bool
) -> None:
    """Delete a key-value setting on every name server."""
    value = await admin.cluster.kv(namespace, key)
    losses = [] if value is None else [f"this deletes {key}={value} of the namespace {namespace}"]
    await confirm(losses, yes=yes)
    with Report(as_json=as_json) as report:
        await admin.cluster.delete_kv(namespace, key)
        # Only now: an earlier deletion may have missed a name server that was down.
        if value is None:
            raise Failure(f"there was no {key} in the namespace {namespace}")
        report.step("delete kv config from namespace success.", namespace=namespace, key=key)


@admin_command("getNamesrvConfig")
@json_option
async def get_namesrv_config(admin: AdminClient, *, as_json: bool) -> None:
    """Show the settings of every name server."""
    settings = await admin.cluster.config()
    if as_json:
        say_json(settings)
        return
    for where, values in settings.items():
        say(settings_text(where, values))


@admin_command("updateNamesrvConfig")
@_key
@_value
@json_option
async def update_namesrv_config(admin: AdminClient, *, key: str, value: str, as_json: bool) -> None:
    """Change a setting of every name server while it runs."""
    with Report(as_json=as_json) as report:
        await admin.cluster.update_config({key: value})
        report.step("update name server config success!", key=key, value=value)
        report.line(f"{key} : {value}")


COMMANDS: Final = [
    wipe_write_perm,
    add_write_perm,
    update_kv_config,
    delete_kv_config,
    get_namesrv_config,
    update_namesrv_config,
]
