"""Credentials of a client: the keys with which it signs requests for RocketMQ's access control.

``access.signature`` describes the signature. The secret key itself is never sent. ``repr`` shows
the access key only.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from rocketpost.access import signature
from rocketpost.errors import ConfigError
from rocketpost.transport.connection import Buffer

ACCESS_KEY: Final = "ROCKETMQ_ACCESS_KEY"
SECRET_KEY: Final = "ROCKETMQ_SECRET_KEY"
SECURITY_TOKEN: Final = "ROCKETMQ_SECURITY_TOKEN"
"""Environment variables from which the tools and Spark read keys."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """The keys of a user.

    Attributes:
        access_key: The user's name.
        secret_key: The secret shared by the user and the broker.
        security_token: The token of a temporary key.
    """

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not self.access_key or not self.secret_key:
            missing = "a secret key" if self.access_key else "an access key"
            raise ConfigError(f"credentials are two keys: {missing} is missing")

    def sign(self, fields: Mapping[str, str] | None, body: Sequence[Buffer]) -> Mapping[str, str]:
        """Return the header fields of a request including its signature.

        Args:
            fields: All other fields, which the signature covers.
            body: The body, in pieces.
        """
        signed = dict(fields or ())
        signed[signature.ACCESS_KEY] = self.access_key
        if self.security_token:
            signed[signature.SECURITY_TOKEN] = self.security_token
        signed[signature.SIGNATURE] = signature.sign(self.secret_key.encode(), signed, body)
        return signed


def credentials_of(
    access_key: str | None, secret_key: str | None, security_token: str | None = None
) -> Credentials | None:
    """Return credentials, or None if no key is given.

    Raises:
        ConfigError: One of the two keys is missing.
    """
    if not (access_key or secret_key or security_token):
        return None
    return Credentials(access_key or "", secret_key or "", security_token or None)


def environment_credentials() -> Credentials | None:
    """Return the keys from the environment; None if there are none.

    Raises:
        ConfigError: One of the two keys is missing.
    """
    parts = (os.environ.get(name) for name in (ACCESS_KEY, SECRET_KEY, SECURITY_TOKEN))
    return credentials_of(*parts)
