"""Lists of networks in settings."""

from __future__ import annotations

import ipaddress

from rocketpost.errors import ConfigError
from rocketpost.transport.entrance import Network


def parse_networks(key: str, text: str) -> tuple[Network, ...]:
    """Return the networks that a setting lists, separated by commas or semicolons.

    Args:
        key: The setting.
        text: Its value.

    Raises:
        ConfigError: One is not a network.
    """
    networks: list[Network] = []
    for part in filter(None, map(str.strip, text.replace(";", ",").split(","))):
        try:
            networks.append(ipaddress.ip_network(part))
        except ValueError:
            raise ConfigError(
                f"{key} has {part}, which is not an address or a network such as 10.0.0.0/8"
            ) from None
    return tuple(networks)
