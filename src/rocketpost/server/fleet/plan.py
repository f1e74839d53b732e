"""The settings of several brokers of one command, derived from those of a single broker.

Broker 0 has the settings as they are given. So a single broker can become one of several without
moving its store, and can be the only one again. Broker ``n`` differs in these:

    brokerName                     NAME-n
    listenPort, haListenPort       PORT + 10 n; 0, which takes a free port, stays 0
    storePathRootDir               ROOT/brokers/n
    storePathCommitLog             PATH/brokers/n, if the commit log is outside the root

The share of the memory that counts as a cache of the newest messages is divided by the number of
brokers, unless the file sets it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rocketpost.errors import ConfigError
from rocketpost.server.fleet import BROKERS_MAX
from rocketpost.server.settings.broker import broker_settings, name_of, with_new_spellings
from rocketpost.server.settings.foreign_keys import FIXED_PATHS
from rocketpost.server.settings.group import group_settings
from rocketpost.store.layout import FURTHER_BROKERS_NAME, Layout, parse_file_name

PORT_STEP: Final = 10
"""Distance of the ports of two brokers; each also serves old Java clients two below its port."""

_PORT_MAX: Final = 65_535
_HA_PORT: Final = "haListenPort"
_MEMORY_PERCENT: Final = "accessMessageInMemoryMaxRatio"
_SIZE_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class BrokerPlan:
    """One broker of a command.

    Attributes:
        number: Its number, from 0.
        name: Its name.
        values: Its properties by RocketMQ's keys.
    """

    number: int
    name: str
    values: dict[str, str]


def plan_brokers(values: Mapping[str, str], count: int) -> list[BrokerPlan]:
    """Return the brokers of a command.

    Args:
        values: Properties of a single broker.
        count: Number of brokers.

    Raises:
        ConfigError: A setting is wrong, or the last broker would have no valid name or port.
    """
    assert 1 <= count <= BROKERS_MAX
    given = with_new_spellings(values)
    broker, _ = broker_settings(given)
    if count > 1 and _MEMORY_PERCENT not in given:
        given[_MEMORY_PERCENT] = str(max(1, broker.memory_ratio // count))
    if count > 1 and group_settings(given) is not None:
        raise ConfigError(
            f"enableDLegerCommitLog=true makes one broker a member of a group, not {count}: start "
            "every member with a file of its own, or use rocketpost up --nodes 3"
        )
    name, port = name_of(broker), broker.listen_port
    last_port = port + PORT_STEP * (count - 1)
    if port and last_port > _PORT_MAX:
        raise ConfigError(
            f"listenPort={port} is too high for {count} brokers: the last one would listen on "
            f"{last_port}; set it to {_PORT_MAX - PORT_STEP * (count - 1)} or less"
        )
    if count > 1 and broker.ha_master_address:
        raise ConfigError(
            f"haMasterAddress={broker.ha_master_address} names one master, but {count} brokers "
            "have a master each: remove it, and they will ask the name servers"
        )
    plans = [BrokerPlan(0, name, given)]
    for number in range(1, count):
        own = {key: value for key, value in given.items() if key not in FIXED_PATHS}
        own |= {
            "brokerName": f"{name}-{number}",
            "listenPort": str(port and port + PORT_STEP * number),
        }
        if _HA_PORT in given and broker.ha_listen_port:
            own[_HA_PORT] = str(broker.ha_listen_port + PORT_STEP * number)
        root, log = _places(given, number)
        own["storePathRootDir"] = root
        own.pop("storePathCommitLog", None)
        if log:
            own["storePathCommitLog"] = log
        broker_settings(own)
        plans.append(BrokerPlan(number, own["brokerName"], own))
    return plans


def idle_stores_blocking(values: Mapping[str, str], count: int) -> list[str]:
    """Return the directories of further brokers that have messages but will not be started.

    Args:
        values: Properties of a single broker.
        count: Number of brokers that will be started.
    """
    return [
        layout.root
        for number, layout in further_stores_blocking(values).items()
        if number >= count and has_messages_blocking(layout)
    ]


def further_stores_blocking(values: Mapping[str, str]) -> dict[int, Layout]:
    """Return the stores of further brokers that have a directory, by their numbers."""
    given = with_new_spellings(values)
    names = _names_blocking(Layout(_root(given)).further_brokers)
    numbers = sorted(int(name) for name in names if _is_number(name))
    return {number: Layout(*_places(given, number)) for number in numbers}


def idle_warning(directories: list[str], option: str = "--brokers") -> str:
    """Return the warning about stores that no broker will serve."""
    needed = max(int(os.path.basename(path)) for path in directories) + 1
    return (
        f"warning: these stores have messages, but this command starts no broker for them: "
        f"{', '.join(directories)}. Nobody can read those messages until you start with "
        f"{option} {needed}. Delete a directory if its messages are no longer needed"
    )


def _places(given: Mapping[str, str], number: int) -> tuple[str, str]:
    """Return root and commit log of a further broker; the log is empty if it is in the root."""
    root = _root(given)
    log = os.path.expanduser(given.get("storePathCommitLog", "").strip())
    own_root = os.path.join(Layout(root).further_brokers, str(number))
    if not log or os.path.abspath(log) == os.path.abspath(Layout(root).commit_log):
        return own_root, ""
    return own_root, os.path.join(log, FURTHER_BROKERS_NAME, str(number))


def _root(given: Mapping[str, str]) -> str:
    root = given.get("storePathRootDir", "").strip() or str(Path.home() / "store")
    return os.path.expanduser(root)


def has_messages_blocking(layout: Layout) -> bool:
    """Tell whether a segment of the commit log begins with a record; new ones have zeros."""
    for name in _names_blocking(layout.commit_log):
        if parse_file_name(name) is None:
            continue
        with open(os.path.join(layout.commit_log, name), "rb") as file:
            if any(file.read(_SIZE_BYTES)):
                return True
    return False


def _names_blocking(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdecimal() and str(int(name)) == name
