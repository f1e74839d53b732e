"""Header fields of requests about users and rules."""

from __future__ import annotations

import msgspec


class UserRequest(msgspec.Struct, kw_only=True):
    """AUTH_CREATE_USER, AUTH_UPDATE_USER, AUTH_DELETE_USER and AUTH_GET_USER."""

    username: str = ""


class ListUsers(msgspec.Struct, kw_only=True):
    """AUTH_LIST_USER."""

    filter: str = ""
    """Part of the names to list."""


class RulesRequest(msgspec.Struct, rename="camel", kw_only=True):
    """AUTH_CREATE_ACL, AUTH_UPDATE_ACL, AUTH_DELETE_ACL and AUTH_GET_ACL."""

    subject: str = ""
    policy_type: str = ""
    resource: str = ""


class ListRules(msgspec.Struct, rename="camel", kw_only=True):
    """AUTH_LIST_ACL."""

    subject_filter: str = ""
    resource_filter: str = ""


class GetAuditLog(msgspec.Struct, rename="camel", kw_only=True):
    """GET_AUDIT_LOG (29013): the newest lines of the audit log. The body has them, oldest first."""

    count: int = 50
    """Most lines."""
    event: str = ""
    """Only lines of this event; all if empty."""
    user: str = ""
    """Only lines of this user; all if empty."""
