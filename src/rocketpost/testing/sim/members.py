"""Comparison of the members of a group that has come to rest: logs, queues and tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from rocketpost.codec.lenient_json import decode_any
from rocketpost.server.context import BrokerContext
from rocketpost.server.replication import tables_feed as feed
from rocketpost.testing.sim.cluster import SimulatedCluster

_LOG_PATH: Final = "/store/commitlog/0"
_TABLES: Final = (
    feed.TOPICS,
    feed.GROUPS,
    feed.REQUEST_MODES,
    feed.NAMED_FILTERS,
    feed.DELETIONS,
    feed.ORDER_INFO,
    feed.OFFSETS,
    feed.DELAYS,
)
"""Tables that a member applies as they come; of the others it keeps the texts until it leads."""
_VERSION: Final = "dataVersion"
_NO_LIMIT: Final = 1 << 62


def find_differences(cluster: SimulatedCluster) -> list[str]:
    """Return what the members of a group that is at rest do not agree on."""
    parts: dict[str, Callable[[str], dict[Any, Any]]] = {
        "log": lambda node: _log_of(cluster, node),
        "queue": lambda node: _queues_of(cluster.brokers[node]._context),
        "table": lambda node: _tables_of(cluster.brokers[node]._context),
    }
    found = []
    first, *others = cluster.nodes
    for what, read in parts.items():
        expected = read(first)
        for node in others:
            actual = read(node)
            names = sorted(expected.keys() | actual.keys())
            found += [
                f"the {what} {name} of {node} differs from that of {first}"
                for name in names
                if actual.get(name) != expected.get(name)
            ]
    return found


def _log_of(cluster: SimulatedCluster, node: str) -> dict[str, bytes]:
    disk = cluster.network.machines[node].disk
    paths = [path for path in disk.paths() if path.startswith(_LOG_PATH)]
    return {path: disk.read_bytes(path).rstrip(b"\0") for path in paths}


def _queues_of(context: BrokerContext) -> dict[tuple[str, int], tuple[int, int, int]]:
    """Return where each queue begins and ends, and the position of its last message."""
    return {
        (each.topic, each.queue_id): (int(each.first), int(each.end), int(each.last_position))
        for each in context.store.queues
        if each.end  # one whose messages were cut off may stay, without any
    }


def _tables_of(context: BrokerContext) -> dict[str, Any]:
    """Return the tables without their version, which counts the changes of one process."""
    texts = {each.name: each.text for each in feed.table_sources(context, None)}
    texts[feed.OFFSETS] = lambda: context.tables.offsets.changes_since(0, bytes_max=_NO_LIMIT).text
    tables = {name: decode_any(texts[name]()) for name in _TABLES}
    for rows in tables.values():
        rows.pop(_VERSION, None)
    return tables
