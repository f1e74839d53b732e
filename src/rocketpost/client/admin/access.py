"""Administration of users and rules."""

from __future__ import annotations

import msgspec

from rocketpost.access.info import AclInfo, EntryInfo, PolicyInfo, UserInfo
from rocketpost.client.session import Session
from rocketpost.codec.access import (
    decode_all_rules,
    decode_rules,
    decode_user,
    decode_users,
    encode_access,
)
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.headers.access import (
    GetAuditLog,
    ListRules,
    ListUsers,
    RulesRequest,
    UserRequest,
)
from rocketpost.errors import RemoteProtocolError


class AuditLine(msgspec.Struct, rename="camel", kw_only=True):
    """A line of the audit log; members that it does not have are empty."""

    at: str
    """The time, such as 2026-11-18T03:04:05.678Z."""
    event: str
    user: str = ""
    source: str = ""
    target: str = ""
    """The user, or the subject of the rules, that was changed."""
    change: str = ""
    result: str = ""
    code: int | str | None = None
    """The request, or the method, that was refused."""
    reason: str = ""
    left_out: int = 0
    """Number of lines that this one stands for."""
    count: int = 0
    """Number of lines that were lost."""
    counter: int = 0
    """The version of users and rules after a change."""


class AccessAdmin:
    """Creates, changes, lists and deletes users and rules of brokers and name servers."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def create_user(self, address: str, user: UserInfo) -> None:
        """Create a user on a server.

        Raises:
            Fault: The server refuses; the user may exist already.
        """
        await self._send_user(address, RequestCode.AUTH_CREATE_USER, user)

    async def update_user(self, address: str, user: UserInfo) -> None:
        """Change the members of a user that are given.

        Raises:
            Fault: The server refuses; there may be no such user.
        """
        await self._send_user(address, RequestCode.AUTH_UPDATE_USER, user)

    async def delete_user(self, address: str, name: str) -> None:
        """Delete a user and its rules.

        Raises:
            Fault: The server refuses.
        """
        header = UserRequest(username=name)
        await self._session.call(address, RequestCode.AUTH_DELETE_USER, header)

    async def user(self, address: str, name: str) -> UserInfo | None:
        """Return a user; None if there is none. Only super users see the password.

        Raises:
            Fault: The server refuses.
        """
        header = UserRequest(username=name)
        response = await self._session.call(address, RequestCode.AUTH_GET_USER, header)
        return decode_user(response.body) if response.body else None

    async def users(self, address: str, part: str = "") -> list[UserInfo]:
        """Return the users whose names contain a text.

        Raises:
            Fault: The server refuses.
        """
        header = ListUsers(filter=part)
        response = await self._session.call(address, RequestCode.AUTH_LIST_USER, header)
        return decode_users(response.body) if response.body else []

    async def audit(
        self, address: str, *, count: int = 50, event: str = "", user: str = ""
    ) -> list[AuditLine]:
        """Return the newest lines of a server's audit log, oldest first, to a super user.

        Args:
            address: The server.
            count: Most lines.
            event: Only lines of this event; all if empty.
            user: Only lines of this user; all if empty.

        Raises:
            Fault: The server refuses.
            RemoteProtocolError: The answer is malformed.
        """
        header = GetAuditLog(count=count, event=event, user=user)
        response = await self._session.call(address, RequestCode.GET_AUDIT_LOG, header)
        try:
            return msgspec.json.decode(response.body, type=list[AuditLine])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise RemoteProtocolError(f"the audit log cannot be read: {error}") from None

    async def put_rules(self, address: str, rules: AclInfo, *, is_update: bool = False) -> None:
        """Add rules to those of a user; they replace earlier ones for the same resources.

        Args:
            address: The server.
            rules: The rules and their subject.
            is_update: Whether to send the request of ``updateAcl``, which has the same effect.

        Raises:
            Fault: The server refuses; there may be no such user.
        """
        code = RequestCode.AUTH_UPDATE_ACL if is_update else RequestCode.AUTH_CREATE_ACL
        header = RulesRequest(subject=rules.subject or "")
        await self._session.call(address, code, header, body=encode_access(rules))

    async def delete_rules(self, address: str, subject: str, resource: str = "") -> None:
        """Delete the rules of a user, all or those for one resource.

        Raises:
            Fault: The server refuses; the user may have no rules.
        """
        header = RulesRequest(subject=subject, resource=resource)
        await self._session.call(address, RequestCode.AUTH_DELETE_ACL, header)

    async def rules(self, address: str, subject: str) -> AclInfo | None:
        """Return the rules of a user; None if there are none.

        Raises:
            Fault: The server refuses; there may be no such user.
        """
        header = RulesRequest(subject=subject)
        response = await self._session.call(address, RequestCode.AUTH_GET_ACL, header)
        return decode_rules(response.body) if response.body else None

    async def all_rules(
        self, address: str, *, subject_part: str = "", resource_part: str = ""
    ) -> list[AclInfo]:
        """Return the rules whose subjects and resources contain two texts.

        Raises:
            Fault: The server refuses.
        """
        header = ListRules(subject_filter=subject_part, resource_filter=resource_part)
        response = await self._session.call(address, RequestCode.AUTH_LIST_ACL, header)
        return decode_all_rules(response.body) if response.body else []

    async def _send_user(self, address: str, code: RequestCode, user: UserInfo) -> None:
        header = UserRequest(username=user.username or "")
        await self._session.call(address, code, header, body=encode_access(user))


def make_rules(
    subject: str,
    resources: list[str],
    actions: list[str],
    decision: str,
    sources: list[str] | None = None,
) -> AclInfo:
    """Return rules that allow or deny actions on resources."""
    entries = [
        EntryInfo(resource=resource, actions=actions, decision=decision, source_ips=sources or None)
        for resource in resources
    ]
    return AclInfo(subject=subject, policies=[PolicyInfo(entries=entries)])
