"""Name servers: the view of each, side by side, with differences marked."""

from __future__ import annotations

from typing import Final

import msgspec

from rocketpost.codec.bodies.cluster import ClusterInfo, decode_cluster
from rocketpost.codec.bodies.kv import decode_kv_table
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.command import to_fields
from rocketpost.codec.headers.namesrv import KvNamespace
from rocketpost.console.pages import Page
from rocketpost.console.visit import Visit
from rocketpost.diagnosis.concurrency import map_concurrently
from rocketpost.errors import RocketpostError
from rocketpost.settings import parse_properties

ORDER_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"


class NameServerView(msgspec.Struct, kw_only=True, rename="camel"):
    """A name server; all but the address is unknown if it did not answer."""

    address: str
    problem: str | None = None
    brokers: dict[str, str] = {}
    """Addresses of each broker name, as this server knows them."""
    settings: dict[str, str] = {}
    settings_problem: str | None = None
    pairs: dict[str, str] = {}
    """Key-value pairs of the namespace that the page shows."""
    pairs_problem: str | None = None


class NameServers(msgspec.Struct, kw_only=True, rename="camel"):
    """All name servers, and the broker names on which they do not agree."""

    servers: list[NameServerView]
    names: list[str]
    different: list[str]
    namespace: str
    keys: list[str]
    """Keys of the namespace, of all name servers."""
    different_keys: list[str]


async def show_name_servers(visit: Visit) -> Page:
    """Show the brokers and key-value pairs of every name server."""
    addresses = sorted(visit.admin.cluster.name_servers)
    namespace = visit.query("namespace", length_max=200) or ORDER_NAMESPACE

    async def look(address: str) -> NameServerView:
        ask = visit.admin.session.name_servers.request_at
        view = NameServerView(address=address)
        try:
            answer = await ask(address, RequestCode.GET_BROKER_CLUSTER_INFO)
            answer.raise_for_code()
            view.brokers = _addresses(decode_cluster(answer.body))
        except RocketpostError as error:
            view.problem = str(error)
            return view
        try:
            answer = await ask(address, RequestCode.GET_NAMESRV_CONFIG)
            answer.raise_for_code()
            view.settings = parse_properties(bytes(answer.body).decode("utf-8", "replace"))
        except RocketpostError as error:
            view.settings_problem = str(error)
        try:
            fields = to_fields(KvNamespace(namespace=namespace))
            answer = await ask(address, RequestCode.GET_KVLIST_BY_NAMESPACE, fields=fields)
            if answer.code != ResponseCode.QUERY_NOT_FOUND:  # it has no such namespace
                answer.raise_for_code()
                view.pairs = decode_kv_table(answer.body)
        except RocketpostError as error:
            view.pairs_problem = str(error)
        return view

    data = compare_servers(await map_concurrently(addresses, look), namespace)
    return Page(
        template="name_servers.html",
        title=visit.text("nav.name_servers"),
        data=data,
        command=visit.command("getNamesrvConfig"),
        is_live=True,
    )


def compare_servers(servers: list[NameServerView], namespace: str) -> NameServers:
    """Return name servers with the broker names and keys on which they differ. Pure."""
    answered = [each for each in servers if each.problem is None]
    names = sorted({name for each in answered for name in each.brokers})
    different = [
        name for name in names if len({each.brokers.get(name, "") for each in answered}) > 1
    ]
    told = [each for each in answered if each.pairs_problem is None]
    keys = sorted({key for each in told for key in each.pairs})
    return NameServers(
        servers=servers,
        names=names,
        different=different,
        namespace=namespace,
        keys=keys,
        different_keys=[key for key in keys if len({each.pairs.get(key) for each in told}) > 1],
    )


def _addresses(info: ClusterInfo) -> dict[str, str]:
    return {
        name: ", ".join(
            f"{number}: {address}" for number, address in sorted(data.broker_addrs.items())
        )
        for name, data in info.broker_addr_table.items()
    }
