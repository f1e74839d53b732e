"""Name servers listed by an HTTP address server, for brokers without a configured list.

As in RocketMQ, ``fetchNamesrvAddrByAddressServer`` switches it on. It is used only if neither the
file nor NAMESRV_ADDR names a name server. The list is one line, ``host:port;host:port``.
"""

from __future__ import annotations

import asyncio
import logging

from rocketpost.client.config import ClientConfig
from rocketpost.client.name_servers import address_server_url, fetch_addresses_blocking
from rocketpost.errors import ConfigError
from rocketpost.server.name_servers.registration import parse_name_servers
from rocketpost.server.settings.broker import BrokerConfig

logger = logging.getLogger(__name__)


class AddressServer:
    """The address server of one broker. Belongs to the event loop."""

    def __init__(self, config: BrokerConfig) -> None:
        self._url = address_server_url(
            ClientConfig(address_server=config.address_server, address_group=config.address_group)
        )
        self._last_failure = ""

    async def fetch(self) -> list[str] | None:
        """Return the name servers that are listed now; None if they cannot be fetched."""
        try:
            found = await asyncio.to_thread(fetch_addresses_blocking, self._url)
            listed = parse_name_servers(";".join(found))
        except (OSError, ValueError, ConfigError) as error:
            self._log_failure(str(error))
            return None
        if not listed:
            self._log_failure("it lists none")
            return None
        self._last_failure = ""
        return listed

    async def wait_change(self, known: list[str], *, pause: float) -> list[str]:
        """Fetch the list after each pause, and return it when it differs from ``known``."""
        while True:
            await asyncio.sleep(pause)
            listed = await self.fetch()
            if listed is not None and set(listed) != set(known):
                logger.info("name servers changed: addresses=%s", ";".join(listed))
                return listed

    def _log_failure(self, reason: str) -> None:
        if reason != self._last_failure:  # logged once, not every few seconds
            logger.warning("address server failed: url=%s reason=%s", self._url, reason)
        self._last_failure = reason
