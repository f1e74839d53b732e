"""Questions to servers whether they can serve clients, for ``rocketpost health``."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from rocketpost.admin.credentials import tool_credentials_blocking
from rocketpost.client.admin import AdminClient
from rocketpost.client.config import ClientConfig, check_address, parse_addresses
from rocketpost.client.tls import environment_tls_blocking
from rocketpost.errors import RocketpostError


class ServerHealth(NamedTuple):
    """The answer of one server."""

    kind: str
    address: str
    reasons: list[str]
    """Reasons why it cannot serve clients; empty if it can."""


def examine_servers(
    brokers: Sequence[str], name_servers: Sequence[str], *, seconds: float
) -> list[ServerHealth]:
    """Ask every server once; return the answers, those of name servers first.

    Args:
        brokers: Addresses; each text may have several, ``host:port;host:port``.
        name_servers: The same for name servers.
        seconds: Time to wait for an answer.

    Raises:
        ConfigError: An address is not a host and a port, or the credentials cannot be read.
    """
    brokers = _split_addresses("broker", brokers)
    name_servers = _split_addresses("name server", name_servers)
    common = ClientConfig(
        name_servers=";".join([*name_servers, *brokers]),
        call_timeout=seconds,
        credentials=tool_credentials_blocking(),
        tls=environment_tls_blocking(),
    )
    return asyncio.run(_examine(brokers, name_servers, common))


def _split_addresses(kind: str, texts: Sequence[str]) -> list[str]:
    addresses = [address for text in texts for address in parse_addresses(text) or [text]]
    for address in addresses:
        check_address(address, kind)
    return list(dict.fromkeys(addresses))


async def _examine(
    brokers: Sequence[str], name_servers: Sequence[str], common: ClientConfig
) -> list[ServerHealth]:
    asked = [
        *(_ask("name server", each, _name_server_problems, common) for each in name_servers),
        *(_ask("broker", each, _broker_problems, common) for each in brokers),
    ]
    return list(await asyncio.gather(*asked))


async def _ask(
    kind: str,
    address: str,
    problems: Callable[[AdminClient, str], Awaitable[list[str]]],
    common: ClientConfig,
) -> ServerHealth:
    seconds = common.call_timeout
    config = dataclasses.replace(common, name_servers=address)
    try:
        async with asyncio.timeout(seconds), AdminClient(config=config) as admin:
            return ServerHealth(kind, address, await problems(admin, address))
    except TimeoutError:
        return ServerHealth(kind, address, [f"no answer within {seconds:g} s"])
    except RocketpostError as error:
        return ServerHealth(kind, address, [" ".join(str(error).split())])


async def _name_server_problems(admin: AdminClient, address: str) -> list[str]:
    await admin.cluster.info()
    return []


async def _broker_problems(admin: AdminClient, address: str) -> list[str]:
    values = await admin.brokers.runtime(address)
    # Apache's brokers tell nothing more: an answer is all that can be asked of them.
    if values.get("ready", "true") == "true":
        return []
    return [values.get("notReadyReason", "") or "the broker does not say why"]
