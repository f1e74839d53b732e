"""A cluster of the console: its clients, its collector, and short-lived answers of its brokers."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from rocketpost.client.admin import AdminClient
from rocketpost.client.config import ClientConfig
from rocketpost.console.access.sessions import Session
from rocketpost.console.collect.collector import Collector
from rocketpost.console.collect.survey import Survey
from rocketpost.errors import NoPermission

T = TypeVar("T")
_CLIENTS_MAX: Final = 50
_ANSWERS_MAX: Final = 5000


class Answers:
    """Answers of brokers that may be used again for a few seconds. Belongs to the event loop."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._known: dict[object, tuple[float, Any]] = {}

    async def ask(self, key: object, work: Callable[[], Awaitable[T]]) -> T:
        """Return the answer of a question that was asked a moment ago, or ask it."""
        now = time.monotonic()
        found = self._known.get(key)
        if found is not None and now - found[0] < self._seconds:
            known: T = found[1]
            return known
        if len(self._known) >= _ANSWERS_MAX:
            self._known.clear()
        answer = await work()
        self._known[key] = (now, answer)
        return answer

    def forget(self) -> None:
        """Ask everything again: something was changed."""
        self._known.clear()


class Cluster:
    """The servers behind one list of name servers.

    Args:
        config: The name servers, and the keys and TLS settings of the console itself.
    """

    def __init__(self, config: ClientConfig) -> None:
        self.config = config
        self.name = config.name_servers or ""
        self.own_client = AdminClient(config=config)
        self.collector = Collector(self.own_client)
        self.survey = Survey(self.own_client, self.collector)
        self.answers = Answers(seconds=10.0)
        self._clients: dict[str, AdminClient] = {}

    async def start(self) -> None:
        """Connect the console's own client."""
        await self.own_client.start()

    async def stop(self) -> None:
        """Close all clients."""
        for client in [self.own_client, *self._clients.values()]:
            await client.stop()

    def client_of(self, session: Session | None) -> AdminClient:
        """Return the client of a user of the brokers, else the console's own.

        Raises:
            NoPermission: The user is one of other brokers, or has not used this cluster lately.
        """
        if session is None or session.credentials is None:
            return self.own_client
        client = self._clients.get(session.credentials.access_key)
        if client is None:
            raise NoPermission(
                "your login is not one of this cluster, or was long ago; log in again"
            )
        return client

    async def login(
        self, session_config: ClientConfig, check: Callable[[AdminClient], Awaitable[T]]
    ) -> T:
        """Start a client with a user's keys, and keep it if a check passes.

        Raises:
            RocketpostError: The check failed.
        """
        client = AdminClient(config=session_config)
        await client.start()
        try:
            found = await check(client)
        except BaseException:
            await client.stop()
            raise
        assert session_config.credentials is not None
        name = session_config.credentials.access_key
        before = self._clients.pop(name, None)
        self._clients[name] = client
        if before is not None:
            await before.stop()
        while len(self._clients) > _CLIENTS_MAX:
            await self._clients.pop(next(iter(self._clients))).stop()
        return found

    def with_credentials(self, credentials: Any) -> ClientConfig:
        """Return the settings of a client that signs with a user's keys."""
        return dataclasses.replace(self.config, credentials=credentials)
