"""Commands about replication: slaves of a master, a slave's master, epochs."""

from __future__ import annotations

from typing import Final

import click
import msgspec

from rocketpost.admin.broker_processes import interval_option, list_processes, repeat
from rocketpost.admin.command import (
    Failure,
    admin_command,
    broker_or_cluster,
    errors_from,
    json_option,
    list_cluster_brokers,
    require_one,
    say,
    say_json,
)
from rocketpost.admin.render import Column, Table, time_or
from rocketpost.admin.report import Report
from rocketpost.client.admin import AdminClient
from rocketpost.codec.bodies.group_status import SyncState
from rocketpost.codec.bodies.stats import EpochList, ReplicaInfo, ReplicationState, UpstreamInfo
from rocketpost.codec.faults import RequestCodeNotSupported, ServerError
from rocketpost.codec.headers.broker_group import ControllerMetadata

_REPLICAS: Final = Table(
    "%-32s  %-16s %16s %16s %16s %16s",
    [
        Column("#SlaveAddr", "address"),
        Column("#SlaveAckOffset", "ackOffset"),
        Column("#Diff", "diff"),
        Column("#TransferSpeed(KB/s)", "bytesPerSecond", lambda speed: f"{speed / 1024:.2f}"),
        Column("#Status", "inSync", lambda ok: "OK" if ok else "Fall Behind"),
        Column("#TransferFromWhere", "transferFromWhere"),
    ],
)


@admin_command("haStatus", is_watchable=True)
@broker_or_cluster
@interval_option
@json_option
async def ha_status(
    admin: AdminClient,
    *,
    broker: str | None,
    cluster: str | None,
    every: float | None,
    as_json: bool,
) -> None:
    """Show the slaves of masters, or how a slave follows its master."""

    async def show() -> None:
        states: dict[str, ReplicationState] = {}
        for address in await _find_brokers(admin, broker, cluster):
            with errors_from(address):
                states[address] = await admin.brokers.replication(address)
        if as_json:
            say_json(states)
            return
        for address, state in states.items():
            say(replication_text(address, state))

    await repeat(every, show)


async def _find_brokers(admin: AdminClient, broker: str | None, cluster: str | None) -> list[str]:
    """Return the broker given, or the masters of a cluster, and slaves that have no master."""
    require_one(broker, cluster)
    if broker is not None:
        return [broker]
    return [
        address
        for _, each in await list_cluster_brokers(admin, cluster)
        for address in ([each.master] if each.master else each.broker_addrs.values())
    ]


def replication_text(address: str, state: ReplicationState) -> str:
    """Return the state of a master's slaves, or of a slave, as text."""
    if not state.master:
        return _slave_text(state.ha_client_runtime_info)
    rows = [
        (
            each.addr,
            each.slave_ack_offset,
            each.diff,
            each.transferred_byte_in_second,
            each.in_sync,
            each.transfer_from_where,
        )
        for each in state.ha_connection_info
    ]
    problems = [_problem_text(each) for each in state.ha_connection_info if _is_told(each.problem)]
    return "\n".join(
        [
            "",
            f"#MasterAddr\t{address}",
            f"#MasterCommitLogMaxOffset\t{state.master_commit_log_max_offset}",
            f"#SlaveNum\t{len(rows)}",
            f"#InSyncSlaveNum\t{state.in_sync_slave_nums}",
            _REPLICAS.text(rows),
            *problems,
        ]
    )


def _slave_text(upstream: UpstreamInfo) -> str:
    lines = [
        "",
        f"#MasterAddr\t{upstream.master_addr if _is_told(upstream.master_addr) else 'unknown'}",
        f"#CommitLogMaxOffset\t{upstream.max_offset}",
        f"#TransferSpeed(KB/s)\t{upstream.transferred_byte_in_second / 1024:.2f}",
        f"#LastReadTime\t{time_or(upstream.last_read_timestamp, 'never', millis=True)}",
        f"#LastWriteTime\t{time_or(upstream.last_write_timestamp, 'never', millis=True)}",
        f"#MasterFlushOffset\t{upstream.master_flush_offset}",
    ]
    if _is_told(upstream.problem):
        lines.append(f"#Problem\t{upstream.problem}")
    return "\n".join(lines)


def _problem_text(replica: ReplicaInfo) -> str:
    name = f"slave {replica.broker_id}" if _is_told(replica.broker_id) else "the slave"
    return f"#Problem\t{name} at {replica.addr} cannot follow: {replica.problem}"


def _is_told(value: object) -> bool:
    return value is not msgspec.UNSET


@admin_command("resetMasterFlushOffset")
@click.option(
    "-b", "--brokerAddr", "broker", metavar="HOST:PORT", required=True, help="The slave's address."
)
@click.option(
    "-o", "--offset", "position", type=click.IntRange(0), required=True, help="The new position."
)
@json_option
async def reset_master_flush_offset(
    admin: AdminClient, *, broker: str, position: int, as_json: bool
) -> None:
    """Set the master's flushed position that a slave keeps.

    Only ``haStatus`` shows it; nothing is compared with it.
    """
    with errors_from(broker):
        if (await admin.brokers.replication(broker)).master:
            raise Failure(f"{broker} is a master, which ignores this; use the address of a slave")
        await admin.brokers.reset_master_flushed(broker, position)
    with Report(as_json=as_json) as report:
        report.step(
            f"reset master flush offset to {position} success",
            broker=broker,
            masterFlushOffset=position,
        )


@admin_command("getBrokerEpoch", is_watchable=True)
@click.option("-b", "--brokerName", "broker", metavar="NAME", help="Master and slaves of a broker.")
@click.option("-c", "--clusterName", "cluster", metavar="NAME", help="All brokers of a cluster.")
@interval_option
@json_option
async def get_broker_epoch(
    admin: AdminClient,
    *,
    broker: str | None,
    cluster: str | None,
    every: float | None,
    as_json: bool,
) -> None:
    """Show the epochs of brokers under a controller, or the terms of a group's brokers."""
    if (broker is None) == (cluster is None):
        raise click.UsageError("give exactly one of -b BROKER_NAME and -c CLUSTER")

    async def show() -> None:
        processes = await list_processes(admin, cluster)
        if broker is not None:
            processes = [process for process in processes if process.name == broker]
            if not processes:
                raise Failure(f"no name server knows a broker {broker}; `mqadmin clusterList`")
        found: dict[str, EpochList] = {}
        for process in processes:
            with errors_from(process.address):
                epochs = await _epochs_at(admin, process.address)
            if epochs.epoch_list:
                epochs.epoch_list[-1].end_offset = epochs.max_offset  # the last one is still open
            found[process.address] = epochs
        if as_json:
            say_json(found)
            return
        for address, epochs in found.items():
            say(epochs_text(address, epochs))

    await repeat(every, show)


async def _epochs_at(admin: AdminClient, address: str) -> EpochList:
    try:
        return await admin.brokers.epochs(address)
    except ServerError as error:
        if "controllerMode" not in str(error.remark):
            raise
        raise Failure(
            f"{address} has no epochs: it is in no group that elects its leader, and follows no "
            "controller; `mqadmin haStatus` shows masters and slaves"
        ) from error


def epochs_text(address: str, epochs: EpochList) -> str:
    """Return the epochs of a broker as text."""
    return "\n".join(
        [
            "",
            f"#clusterName\t{epochs.cluster_name}",
            f"#brokerName\t{epochs.broker_name}",
            f"#brokerAddr\t{address}",
            f"#brokerId\t{epochs.broker_id}",
            *(
                f"#Epoch: EpochEntry{{epoch={each.epoch}, startOffset={each.start_offset}, "
                f"endOffset={each.end_offset}}}"
                for each in epochs.epoch_list
            ),
        ]
    )


_controller_option = click.option(
    "-a",
    "--controllerAddress",
    "controller",
    metavar="HOST:PORT",
    required=True,
    help="A controller, or any broker of a group that elects its leader.",
)


async def _find_leader(admin: AdminClient, controller: str) -> str:
    """Return the address of the leading controller, or of a group's leader."""
    found = await _metadata_of(admin, controller)
    if not found.controller_leader_address:
        raise Failure(f"{controller} knows no leader now; try again later")
    return found.controller_leader_address


async def _metadata_of(admin: AdminClient, controller: str) -> ControllerMetadata:
    address = controller.split(";")[0].strip()
    try:
        with errors_from(address, except_for=RequestCodeNotSupported):
            return await admin.brokers.controller_metadata(address)
    except RequestCodeNotSupported as error:
        raise Failure(
            f"{address} is neither a controller nor a broker of a group that elects its leader; "
            "`mqadmin haStatus` shows masters and slaves"
        ) from error


@admin_command("getControllerMetaData", is_watchable=True)
@_controller_option
@json_option
async def get_controller_metadata(admin: AdminClient, *, controller: str, as_json: bool) -> None:
    """Show which controller, or which broker of a group, leads."""
    found = await _metadata_of(admin, controller)
    if as_json:
        say_json(found)
        return
    say(f"#ControllerGroup\t{found.group}")
    say(f"#ControllerLeaderId\t{found.controller_leader_id or 'none'}")
    say(f"#ControllerLeaderAddress\t{found.controller_leader_address or 'none'}")
    for peer in filter(None, found.peers.split(";")):
        say(f"#Peer:\t{peer}")


@admin_command("getSyncStateSet", is_watchable=True)
@_controller_option
@click.option("-b", "--brokerName", "broker", metavar="NAME", help="Name of the brokers.")
@click.option("-c", "--clusterName", "cluster", metavar="NAME", help="All brokers of a cluster.")
@interval_option
@json_option
async def get_sync_state_set(
    admin: AdminClient,
    *,
    controller: str,
    broker: str | None,
    cluster: str | None,
    every: float | None,
    as_json: bool,
) -> None:
    """Show which brokers of a name have the master's log, and which do not."""
    if (broker is None) == (cluster is None):
        raise click.UsageError("give exactly one of -b BROKER_NAME and -c CLUSTER")

    async def show() -> None:
        names = [broker] if broker is not None else []
        if cluster is not None:
            names = [each.broker_name for _, each in await list_cluster_brokers(admin, cluster)]
        leader = await _find_leader(admin, controller)
        with errors_from(leader):
            states = await admin.brokers.sync_states(leader, names)
        if as_json:
            say_json(states)
            return
        if not states:
            raise Failure(f"{leader} knows no broker {', '.join(names)}")
        for name, state in states.items():
            say(sync_state_text(name, state))

    await repeat(every, show)


def sync_state_text(name: str, state: SyncState) -> str:
    """Return the replicas of a broker as text."""
    return "\n".join(
        [
            "",
            f"#brokerName\t{name}",
            f"#MasterBrokerId\t{state.master_broker_id}",
            f"#MasterAddr\t{state.master_address}",
            f"#MasterEpoch\t{state.master_epoch}",
            f"#SyncStateSetEpoch\t{state.sync_state_set_epoch}",
            f"#SyncStateSetNums\t{len(state.in_sync_replicas)}",
            *(
                f"{label}:\tReplicaIdentity{{brokerName='{each.broker_name}', "
                f"brokerId={each.broker_id}, brokerAddress='{each.broker_address}', "
                f"alive={'true' if each.alive else 'false'}}}"
                for label, found in (
                    ("InSyncReplica", state.in_sync_replicas),
                    ("NotInSyncReplica", state.not_in_sync_replicas),
                )
                for each in found
            ),
        ]
    )


@admin_command("electMaster")
@_controller_option
@click.option(
    "-b", "--brokerId", "broker_id", type=click.IntRange(0), required=True, help="Id of the broker."
)
@click.option(
    "-bn", "--brokerName", "name", metavar="NAME", required=True, help="Name of the brokers."
)
@click.option("-c", "--clusterName", "cluster", metavar="NAME", required=True, help="Cluster.")
@json_option
async def elect_master(
    admin: AdminClient,
    *,
    controller: str,
    broker_id: int,
    name: str,
    cluster: str,
    as_json: bool,
) -> None:
    """Let a broker lead; in a group, a member's id is its number and one."""
    leader = await _find_leader(admin, controller)
    with errors_from(leader):
        found = await admin.brokers.elect_master(
            leader, cluster=cluster, name=name, broker_id=broker_id
        )
    if as_json:
        say_json(found)
        return
    say(f"#ClusterName\t{cluster}")
    say(f"#BrokerName\t{name}")
    say(f"#BrokerMasterAddr\t{found.master_address}")
    say(f"#MasterEpoch\t{found.master_epoch}")
    say(f"#SyncStateSetEpoch\t{found.sync_state_set_epoch}")


COMMANDS: Final = [
    ha_status,
    reset_master_flush_offset,
    get_broker_epoch,
    get_controller_metadata,
    get_sync_state_set,
    elect_master,
]
