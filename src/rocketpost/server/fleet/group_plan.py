"""The settings of the members of a group that one command runs on this machine.

Member ``n`` differs from the settings of a single broker in these:

    enableDLegerCommitLog          true
    dLegerGroup                    the broker's name, the same for all
    dLegerSelfId                   n0, n1, ...
    dLegerPeers                    the addresses of all members for each other: listenPort + 1
    listenPort                     PORT + 10 n; 0, which takes free ports, stays 0
    storePathRootDir               ROOT/nodes/n
    storePathCommitLog             PATH/nodes/n, if the commit log is outside the root
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from rocketpost.errors import ConfigError
from rocketpost.server.fleet.plan import PORT_STEP, BrokerPlan, has_messages_blocking
from rocketpost.server.settings.broker import broker_settings, name_of, with_new_spellings
from rocketpost.server.settings.foreign_keys import FIXED_PATHS
from rocketpost.server.settings.up import sizes_blocking
from rocketpost.store.layout import NODES_NAME, Layout

_PORT_MAX: Final = 65_535
_PEER_STEP: Final = 1
_OF_NODES: Final = (
    "enableDLegerCommitLog", "dLegerGroup", "dLegerPeers", "dLegerSelfId", "brokerId",
)  # fmt: skip


def plan_group_blocking(values: Mapping[str, str], count: int, *, host: str) -> list[BrokerPlan]:
    """Return the members of a group.

    Args:
        values: Properties of a single broker.
        count: Number of members.
        host: Address at which the members reach each other.

    Raises:
        ConfigError: A setting is wrong, or the last member would have no valid port.
    """
    given = with_new_spellings(values)
    for key in _OF_NODES:
        if key in given:
            raise ConfigError(
                f"{key}={given[key]} cannot be used with --nodes, which sets it for each member; "
                "remove it, or start every member with mqbroker -c and a file of its own"
            )
    broker, _ = broker_settings(given)
    port, name = broker.listen_port, name_of(broker)
    last_port = port + PORT_STEP * (count - 1) + _PEER_STEP
    if port and last_port > _PORT_MAX:
        raise ConfigError(
            f"listenPort={port} is too high for {count} members: the last one would listen on "
            f"{last_port}; set it to {_PORT_MAX - PORT_STEP * (count - 1) - _PEER_STEP} or less"
        )
    ports = _peer_ports_blocking(port, count, host)
    peers = ";".join(f"n{number}-{host}:{each}" for number, each in enumerate(ports))
    plans = []
    for number in range(count):
        own = {key: value for key, value in given.items() if key not in FIXED_PATHS}
        own |= {
            "enableDLegerCommitLog": "true",
            "dLegerGroup": name,
            "dLegerPeers": peers,
            "dLegerSelfId": f"n{number}",
            "brokerName": name,
            "listenPort": str(port and port + PORT_STEP * number),
            **_places(given, number),
        }
        broker_settings(own)
        plans.append(BrokerPlan(number, f"{name}-n{number}", own))
    return plans


def group_sizes_blocking(plans: Sequence[BrokerPlan]) -> dict[str, str]:
    """Return the sizes of files, equal for all members: those of an existing store, if any."""
    chosen = next((plan for plan in plans if _is_used_blocking(plan)), plans[0])
    return sizes_blocking(chosen.values["storePathRootDir"], chosen.values)


def warn_of_single_store(values: Mapping[str, str]) -> None:
    """Print that a group does not serve the messages of a single broker, if there are any."""
    root = values["storePathRootDir"]
    if has_messages_blocking(Layout(root, values.get("storePathCommitLog", ""))):
        print(
            f"warning: {root} has messages of a single broker, which the group does not serve. "
            "Start without --nodes to read them",
            file=sys.stderr,
        )


def warn_of_group_stores(values: Mapping[str, str]) -> None:
    """Print that a single broker does not serve the messages of a group, if there are any."""
    directory = os.path.join(values["storePathRootDir"], NODES_NAME)
    if os.path.isdir(directory) and os.listdir(directory):
        print(
            f"warning: {directory} has the messages of a group, which a single broker does not "
            "serve. Start with --nodes to read them",
            file=sys.stderr,
        )


def _is_used_blocking(plan: BrokerPlan) -> bool:
    values = plan.values
    layout = Layout(values["storePathRootDir"], values.get("storePathCommitLog", ""))
    return has_messages_blocking(layout)


def _places(given: Mapping[str, str], number: int) -> dict[str, str]:
    root = os.path.expanduser(given["storePathRootDir"].strip())
    log = os.path.expanduser(given.get("storePathCommitLog", "").strip())
    places = {"storePathRootDir": os.path.join(root, NODES_NAME, str(number))}
    if log:
        places["storePathCommitLog"] = os.path.join(log, NODES_NAME, str(number))
    return places


def _peer_ports_blocking(port: int, count: int, host: str) -> list[int]:
    """Return the ports for members: next to those for clients, or free ones if those are free."""
    if port:
        return [port + PORT_STEP * number + _PEER_STEP for number in range(count)]
    sockets = [socket.create_server((host, 0)) for _ in range(count)]
    try:
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
