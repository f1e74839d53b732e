"""Questions to the connected members of a consumer group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rocketpost.client.admin import AdminClient
from rocketpost.codec.bodies.client import ConsumerConnections
from rocketpost.diagnosis.running_info import RunningInfo, decode_running_info
from rocketpost.errors import ClientError, Fault
from rocketpost.model.names import retry_topic


class MemberReports(NamedTuple):
    """Reports of members, and the reasons why others sent none, by client id."""

    infos: dict[str, RunningInfo]
    failures: dict[str, str]


def list_client_ids(connections: ConsumerConnections) -> list[str]:
    """Return the ids of connected consumers, each once, sorted."""
    return sorted({each.client_id for each in connections.connection_set})


async def find_reader(admin: AdminClient, group: str) -> str | None:
    """Return the address of a broker that serves a group, or None if there is none.

    Raises:
        RouteNotFound: No broker knows the group.
    """
    route = await admin.cluster.route(retry_topic(group))
    return next((each.reader for each in route.broker_datas if each.reader), None)


async def collect_reports(
    admin: AdminClient, group: str, clients: Sequence[str], *, address: str, stacks: bool
) -> MemberReports:
    """Ask members of a group for their state, through one broker."""
    infos: dict[str, RunningInfo] = {}
    failures: dict[str, str] = {}
    for client in clients:
        try:
            body = await admin.groups.running_info(address, group, client, stacks=stacks)
            infos[client] = decode_running_info(body)
        except (Fault, ClientError) as error:
            failures[client] = str(error)
    return MemberReports(infos, failures)
