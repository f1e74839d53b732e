"""Access control of a proxy in front of a cluster: the users and rules of its brokers.

The proxy sends requests to brokers as one user of its own, so it has to check the clients' calls
itself. It asks a broker for all users and rules every few seconds, as a super user.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

import msgspec

from rocketpost.access.info import AclInfo, UserInfo
from rocketpost.access.table import AccessTable
from rocketpost.client.admin.access import AccessAdmin
from rocketpost.client.admin.cluster import ClusterAdmin
from rocketpost.client.session import Session
from rocketpost.errors import ConfigError, RocketpostError
from rocketpost.proxy.settings import ProxyConfig
from rocketpost.server.access.audit import LoggedAudit
from rocketpost.server.access.gate import Gate
from rocketpost.server.settings.access import AccessConfig

logger = logging.getLogger(__name__)

REFRESH_SECONDS: Final = 5.0
"""Time after which a change of users or rules at brokers acts on calls."""


class RemoteAccess:
    """The users and rules of a cluster. Belongs to the event loop.

    Args:
        session: The connections to brokers, whose requests a super user has signed.
        config: The settings of the proxy.

    Raises:
        ConfigError: The requests are not signed.
    """

    def __init__(self, session: Session, config: ProxyConfig) -> None:
        if not config.inner_credentials:
            raise ConfigError(
                "authenticationEnabled=true needs innerClientAuthenticationCredentials: a super "
                "user as whom the proxy asks brokers for users and rules"
            )
        self._admin = AccessAdmin(session)
        self._name_servers = ClusterAdmin(session)
        self._cluster = config.cluster_name
        self._settings = AccessConfig(
            authentication_enabled=True, authorization_enabled=config.authorization_enabled
        )
        self._known = b""
        self.gate = self._gate(AccessTable())
        """Checks calls. It refuses all of them until a broker has answered."""

    async def run(self) -> None:
        """Follow the changes until cancelled."""
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            await self.refresh()

    async def refresh(self) -> bool:
        """Ask for users and rules; return whether a broker has answered."""
        try:
            masters = await self._name_servers.masters(self._cluster)
        except RocketpostError as error:
            logger.warning("users and rules not read: reason=%s", error)
            return False
        for address in masters:
            try:
                users = await self._admin.users(address)
                rules = await self._admin.all_rules(address)
                self._take(users, rules)
            except RocketpostError as error:
                logger.warning("users and rules not read: broker=%s reason=%s", address, error)
                continue
            return True
        return False

    def _take(self, users: Sequence[UserInfo], rules: Sequence[AclInfo]) -> None:
        found = msgspec.json.encode((users, rules))
        if found == self._known:
            return
        if any(user.password is None for user in users):
            raise ConfigError(
                "the broker hides the secrets of its users: the user in "
                "innerClientAuthenticationCredentials must be a super user"
            )
        table = AccessTable()
        for user in users:
            table.create_user(user, caller=None)
        for each in rules:
            table.put_rules(each, caller=None)
        failures = self.gate.failures
        self.gate = self._gate(table)
        self.gate.failures = failures
        self._known = found
        logger.info("users and rules read: users=%s rules=%s", len(users), len(rules))

    def _gate(self, table: AccessTable) -> Gate:
        return Gate(table, self._settings, cluster=self._cluster, audit=LoggedAudit())
