"""Users and rules as RocketMQ's tools send and show them, in JSON."""

from __future__ import annotations

import msgspec


class UserInfo(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    """A user, or the changes of one: absent members stay as they are."""

    password: str | None = None
    user_status: str | None = None
    user_type: str | None = None
    username: str | None = None

    def __repr__(self) -> str:
        return f"UserInfo({self.username!r}, {self.user_type!r}, {self.user_status!r})"


class EntryInfo(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    """One rule: actions on a resource that are allowed or denied."""

    actions: list[str] | None = None
    decision: str | None = None
    resource: str | None = None
    source_ips: list[str] | None = None


class PolicyInfo(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    """The rules of one type."""

    entries: list[EntryInfo] | None = None
    policy_type: str | None = None


class AclInfo(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    """All rules of a user."""

    policies: list[PolicyInfo] | None = None
    subject: str | None = None
