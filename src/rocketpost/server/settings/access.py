"""Settings of access control, by RocketMQ's keys, for brokers and name servers."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from rocketpost.errors import ConfigError
from rocketpost.server.settings.logs import LogConfig
from rocketpost.settings import option


class Login(msgspec.Struct, frozen=True):
    """The name and secret of a user, as a setting has them."""

    name: str
    secret: str

    def __repr__(self) -> str:
        return f"Login({self.name!r})"


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessConfig(LogConfig):
    """Settings of access control. None of them changes while the process runs."""

    authentication_enabled: bool = option("authenticationEnabled", False, important=True)
    authorization_enabled: bool = option("authorizationEnabled", False, important=True)
    authentication_whitelist: str = option("authenticationWhitelist", "")
    authorization_whitelist: str = option("authorizationWhitelist", "")
    init_user: str = option("initAuthenticationUser", "", secret=True)
    inner_credentials: str = option("innerClientAuthenticationCredentials", "", secret=True)
    secret_key_file: str = option("authSecretKeyFile", "")
    migrate_plain_acl: bool = option("migrateAuthFromV1Enabled", False)
    plain_acl_path: str = option("plainAclPath", "")
    """File or directory of ACL 1.0; by default ``conf`` below ROCKETMQ_HOME, as in RocketMQ."""

    @property
    def open_codes(self) -> frozenset[int]:
        """Codes of requests that are served without authentication."""
        return _codes("authenticationWhitelist", self.authentication_whitelist)

    @property
    def free_codes(self) -> frozenset[int]:
        """Codes of requests that need no right."""
        return _codes("authorizationWhitelist", self.authorization_whitelist)

    @property
    def first_user(self) -> Login | None:
        """The super user to create if there is none of this name."""
        return _login("initAuthenticationUser", self.init_user, "username", "password")

    @property
    def inner_login(self) -> Login | None:
        """The user of this server's own requests to others."""
        key = "innerClientAuthenticationCredentials"
        return _login(key, self.inner_credentials, "accessKey", "secretKey")

    def check_access(self) -> None:
        """Check every setting of this class.

        Raises:
            ConfigError: A value cannot be honoured.
        """
        if self.authorization_enabled and not self.authentication_enabled:
            raise ConfigError(
                "authorizationEnabled=true needs authenticationEnabled=true: without it, every "
                "sender could name any user"
            )
        for codes in (self.open_codes, self.free_codes):
            assert isinstance(codes, frozenset)
        for login in (self.first_user, self.inner_login):
            assert login is None or login.name


def _codes(key: str, text: str) -> frozenset[int]:
    found = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        if not (part.isascii() and part.isdecimal()):
            raise ConfigError(f"{key}: {part!r} is not a request code")
        found.add(int(part))
    return frozenset(found)


def _login(key: str, text: str, name_key: str, secret_key: str) -> Login | None:
    if not text.strip():
        return None
    try:
        values = msgspec.json.decode(text, type=dict[str, str])
    except (msgspec.DecodeError, RecursionError):
        values = {}
    login = Login(values.get(name_key, "").strip(), values.get(secret_key, ""))
    if not login.name or not login.secret.strip():
        # The text itself is not shown: it has a secret.
        raise ConfigError(f'{key} must be {{"{name_key}":"...","{secret_key}":"..."}}')
    return login
