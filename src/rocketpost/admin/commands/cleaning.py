"""Commands that delete expired files and unused queues of brokers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import click

from rocketpost.admin.broker_processes import list_processes
from rocketpost.admin.command import (
    Failure,
    admin_command,
    broker_or_cluster,
    errors_from,
    find_masters,
    json_option,
)
from rocketpost.admin.confirm import confirm, yes_option
from rocketpost.admin.report import Report
from rocketpost.client.admin import AdminClient
from rocketpost.model.route import MASTER_ID


async def _clean(
    admin: AdminClient,
    broker: str | None,
    cluster: str | None,
    clean: Callable[[str], Awaitable[None]],
    *,
    loss: str | None = None,
    yes: bool = True,
    as_json: bool,
) -> None:
    if broker is None and cluster is None:
        addresses = [
            process.address
            for process in await list_processes(admin, None)
            if process.broker_id == MASTER_ID
        ]
    else:
        addresses = await find_masters(admin, broker, cluster)
    if not addresses:
        raise Failure("there is no master to clean; `mqadmin clusterList` shows the brokers")
    await confirm([f"{loss} at {', '.join(addresses)}"] if loss else [], yes=yes)
    with Report(as_json=as_json) as report:
        for address in addresses:
            with errors_from(address):
                await clean(address)
            click.echo(f"cleaned {address}", err=True)
            report.add(broker=address, action="cleaned")
        report.line("success")


@admin_command("cleanExpiredCQ")
@broker_or_cluster
@json_option
async def clean_expired_cq(
    admin: AdminClient, *, broker: str | None, cluster: str | None, as_json: bool
) -> None:
    """Delete consume-queue files whose messages are deleted; on all masters without -b and -c."""
    await _clean(admin, broker, cluster, admin.brokers.clean_expired_queues, as_json=as_json)


@admin_command("cleanUnusedTopic")
@broker_or_cluster
@yes_option
@json_option
async def clean_unused_topic(
    admin: AdminClient, *, broker: str | None, cluster: str | None, yes: bool, as_json: bool
) -> None:
    """Delete queues of topics that no longer exist; on all masters without -b and -c."""
    await _clean(
        admin,
        broker,
        cluster,
        admin.brokers.clean_unused_topics,
        loss="this deletes the queues of topics that no longer exist for good,",
        yes=yes,
        as_json=as_json,
    )


@admin_command("deleteExpiredCommitLog")
@broker_or_cluster
@yes_option
@json_option
async def delete_expired_commit_log(
    admin: AdminClient, *, broker: str | None, cluster: str | None, yes: bool, as_json: bool
) -> None:
    """Delete expired commit-log files now; on all masters without -b and -c."""
    await _clean(
        admin,
        broker,
        cluster,
        admin.brokers.delete_expired_log,
        loss="this deletes messages older than fileReservedTime for good,",
        yes=yes,
        as_json=as_json,
    )


COMMANDS: Final = [clean_expired_cq, clean_unused_topic, delete_expired_commit_log]
