"""The rules by which a client's certificate stands for a user.

Rules are tried in order, and the first that finds something decides:

    CN                          the common name of the subject
    DNS, URI, EMAIL             a subject alternative name of that kind
    URI~spiffe://shop/(.+)      only a name that matches the whole pattern; its group is the user

``tls.server.userRules`` lists them, separated by semicolons. A certificate may have several names
of one kind: if a rule finds two users, it names none, and the connection is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from rocketpost.errors import ConfigError, RemoteProtocolError

NAME_LENGTH_MAX: Final = 256
"""Longest name in a certificate that is compared with a pattern."""
_FIELDS: Final = {"DNS": "DNS", "URI": "URI", "EMAIL": "email"}
_COMMON_NAME: Final = "CN"


class UserRule(NamedTuple):
    """One rule: a field of the certificate, and the pattern that its value must match."""

    field: str
    pattern: re.Pattern[str] | None


@dataclass(frozen=True, slots=True)
class CertificateUsers:
    """The rules in order; without any, certificates stand for no user."""

    rules: tuple[UserRule, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.rules)

    def find(self, certificate: Mapping[str, Any]) -> str:
        """Return the user of a certificate, in the form of ``SSLObject.getpeercert``; or nothing.

        Raises:
            RemoteProtocolError: The certificate stands for several users.
        """
        for field, pattern in self.rules:
            users = {_user(name, pattern) for name in _names(certificate, field)} - {""}
            if len(users) > 1:
                raise RemoteProtocolError(
                    f"its certificate stands for several users by the rule {field}"
                )
            if users:
                return users.pop()
        return ""


NOBODY: Final = CertificateUsers()


def parse_user_rules(text: str) -> tuple[UserRule, ...]:
    """Return the rules in the text of ``tls.server.userRules``.

    Raises:
        ConfigError: A rule is malformed.
    """
    return tuple(_parse_rule(part) for part in filter(None, map(str.strip, text.split(";"))))


def _parse_rule(text: str) -> UserRule:
    field, has_pattern, pattern = text.partition("~")
    field = field.strip().upper()
    if field != _COMMON_NAME and field not in _FIELDS:
        raise ConfigError(
            f"tls.server.userRules has {text!r}: a rule begins with CN, DNS, URI or EMAIL, as in "
            "CN or URI~spiffe://shop/(.+)"
        )
    if not has_pattern:
        return UserRule(field, None)
    try:
        compiled = re.compile(pattern.strip())
    except re.error as error:
        raise ConfigError(
            f"tls.server.userRules has the bad pattern {pattern!r}: {error}"
        ) from None
    if compiled.groups > 1:
        raise ConfigError(f"tls.server.userRules has more than one group in {pattern!r}")
    return UserRule(field, compiled)


def _user(name: str, pattern: re.Pattern[str] | None) -> str:
    if len(name) > NAME_LENGTH_MAX:
        return ""
    if pattern is None:
        return name
    found = pattern.fullmatch(name)
    if found is None:
        return ""
    return found[pattern.groups] or ""


def _names(certificate: Mapping[str, Any], field: str) -> list[str]:
    if field == _COMMON_NAME:
        parts = (pair for part in certificate.get("subject", ()) for pair in part)
        return [str(value) for kind, value in parts if kind == "commonName"]
    kind = _FIELDS[field]
    return [str(value) for found, value in certificate.get("subjectAltName", ()) if found == kind]
