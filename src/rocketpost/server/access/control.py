"""Access control of one process: the table, the gate, the audit log and its own login."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from rocketpost.access.info import UserInfo
from rocketpost.access.table import AccessTable
from rocketpost.client.credentials import Credentials
from rocketpost.errors import ConfigError, Fault
from rocketpost.server.access.audit import Audit, AuditLog, NoAudit
from rocketpost.server.access.gate import Gate
from rocketpost.server.settings.access import AccessConfig
from rocketpost.transport.connection import Sign

logger = logging.getLogger(__name__)

AUDIT_FILE: Final = "audit.log"
"""Name of the audit log in the directory of a server's data."""
_NO_SUPER: Final = (
    "authenticationEnabled=true, but there is no enabled super user, so nobody could change "
    "anything: create one with `rocketpost user`, or set initAuthenticationUser"
)
_NO_LOGIN: Final = (
    "innerClientAuthenticationCredentials is not set: requests of this server to others are not "
    "signed, and servers with access control refuse them"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessControl:
    """The parts of access control that a process shares. Owned by the loop."""

    table: AccessTable
    audit: Audit
    gate: Gate | None = None
    """Checks requests; None if access control is off."""

    @classmethod
    def of(
        cls,
        table: AccessTable,
        config: AccessConfig,
        *,
        cluster: str,
        audit_path: str | None,
        topic_at: Callable[[int], str | None] = lambda position: None,
    ) -> AccessControl:
        """Return the access control that the settings ask for.

        Args:
            table: Users and rules, as they were saved.
            config: The settings.
            cluster: The cluster of this server.
            audit_path: The file of the audit log; None for no file.
            topic_at: Returns the topic of the stored message at a position, None if there is none.

        Raises:
            ConfigError: No super user would exist.
        """
        _add_first_users(table, config)
        table.server_user = config.inner_login.name if config.inner_login is not None else ""
        if not config.authentication_enabled:
            return cls(table=table, audit=NoAudit())
        if not table.has_super:
            raise ConfigError(_NO_SUPER)
        if config.inner_login is None:
            logger.warning(_NO_LOGIN)
        if not config.authorization_enabled:
            logger.warning("authorizationEnabled is false: every user may do everything")
        audit = NoAudit() if audit_path is None else AuditLog(audit_path)
        gate = Gate(table, config, cluster=cluster, audit=audit, topic_at=topic_at)
        return cls(table=table, audit=audit, gate=gate)

    @classmethod
    def off(cls) -> AccessControl:
        """Return access control that is off."""
        return cls(table=AccessTable(), audit=NoAudit())

    async def close(self) -> None:
        """Write the rest of the audit log."""
        if isinstance(self.audit, AuditLog):
            await self.audit.close()


def own_signature(config: AccessConfig) -> Sign | None:
    """Return the function that signs a server's requests to others; None without credentials."""
    login = config.inner_login
    return None if login is None else Credentials(login.name, login.secret).sign


def _add_first_users(table: AccessTable, config: AccessConfig) -> None:
    """Create the super users that the settings name, unless they exist."""
    for key, login in (
        ("initAuthenticationUser", config.first_user),
        ("innerClientAuthenticationCredentials", config.inner_login),
    ):
        if login is None or not config.authentication_enabled or table.user(login.name):
            continue
        info = UserInfo(username=login.name, password=login.secret, user_type="Super")
        try:
            table.create_user(info, caller=None)
        except Fault as error:
            raise ConfigError(f"{key}: {error.remark}") from None
        logger.info("super user created: name=%s reason=%s", login.name, key)
