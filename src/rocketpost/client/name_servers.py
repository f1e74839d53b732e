"""Addresses of the name servers, and requests to one that answers.

Addresses come from the first source that has some: the argument, the environment variable
``NAMESRV_ADDR``, the HTTP address server. One server is used until it fails, then the next one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Mapping
from typing import Final

from rocketpost.client.config import ClientConfig, parse_addresses
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.command import Command
from rocketpost.errors import ConnectionLost, NoNameServer, RequestTimeout
from rocketpost.transport.connector import Connector

logger = logging.getLogger(__name__)

ENVIRONMENT: Final = "NAMESRV_ADDR"
HTTP_FIRST_SECONDS: Final = 10.0
HTTP_EVERY_SECONDS: Final = 120.0
_HTTP_TIMEOUT: Final = 3.0
_HTTP_BYTES_MAX: Final = 64 * 1024


_ALL_KNOW: Final = frozenset(
    {
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.GET_BROKER_CLUSTER_INFO,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
    }
)
"""Requests that every name server answers."""


def not_a_name_server(address: str) -> str:
    """Return the error text for a server that does not know a name server's requests."""
    return (
        f"the server at {address} is not a name server; is it a broker? Name servers listen on "
        "9876 unless told otherwise, brokers on 10911"
    )


def address_server_url(config: ClientConfig) -> str:
    """Return the URL of the HTTP address server's list of name servers."""
    host = config.address_server
    port = "" if ":" in host else ":8080"
    unit = f"-{config.unit_name}?nofix=1" if config.unit_name else ""
    return f"http://{host}{port}/rocketmq/{config.address_group}{unit}"


def fetch_addresses_blocking(url: str) -> list[str]:
    """Ask the HTTP address server.

    Raises:
        OSError: It cannot be reached, or refuses.
    """
    import urllib.request  # slow to import, and few clients need it

    # Bypass the proxy of the environment: address servers are nearby, like name servers.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=_HTTP_TIMEOUT) as response:
        text: str = response.read(_HTTP_BYTES_MAX).decode("utf-8", "replace").strip()
    return parse_addresses(text.partition("\n")[0])


class NameServers:
    """The name servers of one client. Belongs to the event loop."""

    def __init__(self, config: ClientConfig, connector: Connector) -> None:
        self._config = config
        self._connector = connector
        configured = config.name_servers or os.environ.get(ENVIRONMENT, "")
        self._addresses = parse_addresses(configured)
        random.shuffle(self._addresses)
        self.uses_http = not self._addresses
        """Whether the list comes from the HTTP address server and must be polled."""

    @property
    def addresses(self) -> list[str]:
        """All known name servers, the one in use first."""
        return list(self._addresses)

    async def start(self) -> None:
        """Find the addresses, unless they were given.

        Raises:
            NoNameServer: No source has any.
        """
        if self.uses_http:
            await self.poll()
        if not self._addresses:
            raise NoNameServer(
                "no name server is known: pass name_servers='host:port', "
                f"or set {ENVIRONMENT}, or set up an address server"
            )

    async def poll(self) -> None:
        """Ask the HTTP address server; keep the known addresses if that fails."""
        url = address_server_url(self._config)
        try:
            fresh = await asyncio.to_thread(fetch_addresses_blocking, url)
        except (OSError, ValueError) as error:
            logger.warning("address server failed: url=%s reason=%s", url, error)
            return
        if fresh and set(fresh) != set(self._addresses):
            for gone in set(self._addresses) - set(fresh):
                self._connector.drop(gone)
            random.shuffle(fresh)
            self._addresses = fresh
            logger.info("name servers changed: addresses=%s", ";".join(fresh))

    async def request(
        self,
        code: int,
        *,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        timeout: float | None = None,
    ) -> Command:
        """Return the response of a name server, even an error; try each server once.

        Raises:
            NoNameServer: No name server is known, or none answers.
        """
        failure: Exception | None = None
        for address in self.addresses:
            try:
                response = await self.request_at(
                    address, code, fields=fields, body=body, timeout=timeout
                )
                if code in _ALL_KNOW and response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    raise NoNameServer(not_a_name_server(address))
                return response
            except (ConnectionLost, RequestTimeout, NoNameServer) as error:
                logger.info("name server failed: address=%s reason=%s", address, error)
                failure = error
                self._move_back(address)
        raise NoNameServer(f"no name server answers: {failure or 'none is known'}") from failure

    async def request_at(
        self,
        address: str,
        code: int,
        *,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        timeout: float | None = None,
    ) -> Command:
        """Return the response of one name server, even if its code is an error.

        Raises:
            ConnectionLost: It cannot be reached.
            RequestTimeout: It does not answer; its connection is closed.
        """
        connection = await self._connector.connect(address)
        try:
            return await connection.request(
                code, fields=fields, body=body, timeout=timeout or self._config.call_timeout
            )
        except RequestTimeout:
            self._connector.drop(address)
            raise

    def _move_back(self, address: str) -> None:
        if address in self._addresses:
            self._addresses.remove(address)
            self._addresses.append(address)
