"""Requests about users and rules (codes 3001 to 3010)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from rocketpost.access.info import AclInfo, EntryInfo, PolicyInfo, UserInfo
from rocketpost.access.table import AccessTable
from rocketpost.access.users import User
from rocketpost.codec.access import decode_rules, decode_user
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.command import Command
from rocketpost.codec.faults import InvalidParameter, NoPermission
from rocketpost.codec.headers.access import (
    GetAuditLog,
    ListRules,
    ListUsers,
    RulesRequest,
    UserRequest,
)
from rocketpost.errors import Fault
from rocketpost.server.access.audit import Audit
from rocketpost.server.access.gate import Gate
from rocketpost.server.handlers.replies import json_reply, read_body
from rocketpost.server.routes.access import GET, UPDATE, of_cluster, strict
from rocketpost.server.routes.route import Reply, Route, plain, waiting
from rocketpost.transport.connection import Connection

logger = logging.getLogger(__name__)

AUDIT_LINES_MAX: Final = 1000
"""Most lines of the audit log in one answer."""
_OFF: Final = "access control is off on this server"
_NO_CHANGES: Final = (
    f"{_OFF}, so it takes no changes of users and rules over the network; set "
    "authenticationEnabled=true, or use `rocketpost user` while it is stopped"
)
_NO_AUDIT: Final = f"{_OFF}, so it keeps no audit log; set authenticationEnabled=true"


class AccessHandlers:
    """Serves requests about users and rules. Owned by the loop.

    Args:
        table: Users and rules.
        gate: Knows the users of requests; None if access control is off.
        audit: Records changes.
        save: Returns once the table is on disk; no change is acknowledged before.
    """

    def __init__(
        self,
        *,
        table: AccessTable,
        gate: Gate | None,
        audit: Audit,
        save: Callable[[], Awaitable[None]],
    ) -> None:
        self._table = table
        self._gate = gate
        self._audit = audit
        self._save = save

    def routes(self) -> Sequence[Route]:
        """Return the routes of users and rules."""
        code, changes, reads = RequestCode, of_cluster(UPDATE), of_cluster(GET)
        return [
            waiting(code.AUTH_CREATE_USER, UserRequest, changes, self.create_user),
            waiting(code.AUTH_UPDATE_USER, UserRequest, changes, self.update_user),
            waiting(code.AUTH_DELETE_USER, UserRequest, changes, self.delete_user),
            plain(code.AUTH_GET_USER, UserRequest, reads, self.get_user),
            plain(code.AUTH_LIST_USER, ListUsers, reads, self.list_users),
            waiting(code.AUTH_CREATE_ACL, RulesRequest, changes, self.put_rules),
            waiting(code.AUTH_UPDATE_ACL, RulesRequest, changes, self.put_rules),
            waiting(code.AUTH_DELETE_ACL, RulesRequest, changes, self.delete_rules),
            plain(code.AUTH_GET_ACL, RulesRequest, reads, self.get_rules),
            plain(code.AUTH_LIST_ACL, ListRules, reads, self.list_rules),
            waiting(code.GET_AUDIT_LOG, GetAuditLog, strict(reads), self.show_audit),
        ]

    # Users.

    async def create_user(
        self, connection: Connection, command: Command, header: UserRequest
    ) -> Reply:
        """Create a user."""
        info = self._user_info(command, header)

        def change(caller: User | None) -> None:
            self._table.create_user(info, caller=caller)

        kind = f"created as {info.user_type or 'Normal'}"
        return await self._change(connection, command, "userCreated", info.username, kind, change)

    async def update_user(
        self, connection: Connection, command: Command, header: UserRequest
    ) -> Reply:
        """Change the password, the type or the status of a user."""
        info = self._user_info(command, header)

        def change(caller: User | None) -> None:
            self._table.update_user(info, caller=caller)

        parts = [
            "password" if info.password else "",
            f"type {info.user_type}" if info.user_type else "",
            f"status {info.user_status}" if info.user_status else "",
        ]
        what = ", ".join(filter(None, parts))
        return await self._change(connection, command, "userChanged", info.username, what, change)

    async def delete_user(
        self, connection: Connection, command: Command, header: UserRequest
    ) -> Reply:
        """Delete a user and its rules."""

        def change(caller: User | None) -> None:
            self._table.delete_user(header.username, caller=caller)

        return await self._change(
            connection, command, "userDeleted", header.username, "deleted", change
        )

    def get_user(self, connection: Connection, command: Command, header: UserRequest) -> Reply:
        """Return a user; without a body if there is none."""
        if not header.username.strip():
            raise InvalidParameter("The username is blank")
        user = self._table.user(header.username)
        if user is None:
            return Reply()
        return json_reply(user.info(with_secret=self._sees_secrets(command)))

    def list_users(self, connection: Connection, command: Command, header: ListUsers) -> Reply:
        """Return the users whose names contain a text; without a body if there is none."""
        sees = self._sees_secrets(command)
        found = [
            user.info(with_secret=sees) for user in self._table.users if header.filter in user.name
        ]
        return json_reply(found) if found else Reply()

    # Rules.

    async def put_rules(
        self, connection: Connection, command: Command, header: RulesRequest
    ) -> Reply:
        """Add rules to those of a user, or replace those for the same resources."""
        info = read_body(command, decode_rules)
        info.subject = info.subject or header.subject

        def change(caller: User | None) -> None:
            self._table.put_rules(info, caller=caller)

        what = "; ".join(_entry_text(entry) for entry in _entries(info))
        return await self._change(connection, command, "rulesChanged", info.subject, what, change)

    async def delete_rules(
        self, connection: Connection, command: Command, header: RulesRequest
    ) -> Reply:
        """Delete the rules of a user, all or those for one resource."""

        def change(caller: User | None) -> None:
            self._table.delete_rules(
                header.subject,
                resource=header.resource,
                policy_type=header.policy_type,
                caller=caller,
            )

        what = f"deleted {header.resource or 'all'}"
        return await self._change(connection, command, "rulesDeleted", header.subject, what, change)

    def get_rules(self, connection: Connection, command: Command, header: RulesRequest) -> Reply:
        """Return the rules of a user; without a body if there is none."""
        found = self._table.rules(header.subject)
        return Reply() if found is None else json_reply(found)

    def list_rules(self, connection: Connection, command: Command, header: ListRules) -> Reply:
        """Return the rules of all users that match two filters; without a body if there is none."""
        found = []
        for info in self._table.all_rules():
            if header.subject_filter not in (info.subject or ""):
                continue
            info.policies = [
                PolicyInfo(policy_type=policy.policy_type, entries=kept)
                for policy in info.policies or ()
                if (kept := _matching(policy, header.resource_filter))
            ]
            if info.policies:
                found.append(info)
        return json_reply(found) if found else Reply()

    # The audit log.

    async def show_audit(
        self, connection: Connection, command: Command, header: GetAuditLog
    ) -> Reply:
        """Return the newest lines of the audit log to a super user.

        Raises:
            NoPermission: Access control is off, or the caller is no super user.
            InvalidParameter: The number of lines is not valid.
            StoreError: The log cannot be read.
        """
        if self._gate is None:
            raise NoPermission(_NO_AUDIT)
        if not self._caller(command).is_super:
            raise NoPermission("only super users may read the audit log")
        if not 0 < header.count <= AUDIT_LINES_MAX:
            raise InvalidParameter(f"count must be from 1 to {AUDIT_LINES_MAX}")
        lines = await self._audit.newest(header.count, event=header.event, user=header.user)
        return Reply(body=b"[" + b",".join(lines) + b"]")

    # What all have in common.

    async def _change(
        self,
        connection: Connection,
        command: Command,
        event: str,
        target: str | None,
        what: str,
        change: Callable[[User | None], None],
    ) -> Reply:
        """Make a change, save it, record it, and answer."""
        caller = self._caller(command)
        source = connection.peer_text
        try:
            change(caller)
        except Fault as error:
            await self._audit.record(
                event, user=caller.name, source=source, target=target, change=what,
                result=str(error.remark),
            )  # fmt: skip
            raise
        await self._save()
        await self._audit.record(
            event, user=caller.name, source=source, target=target, change=what, result="ok",
            counter=self._table.counter,
        )  # fmt: skip
        logger.info("access changed: user=%s peer=%s event=%s", caller.name, source, event)
        return Reply()

    def _caller(self, command: Command) -> User:
        caller = None if self._gate is None else self._gate.user_of(command)
        if caller is None:
            raise NoPermission(
                _NO_CHANGES
                if self._gate is None
                else "users can be changed only by a request that a user has signed"
            )
        return caller

    def _sees_secrets(self, command: Command) -> bool:
        """Tell whether the answer may have passwords: RocketMQ's proxies and copyUser need them."""
        caller = None if self._gate is None else self._gate.user_of(command)
        return caller is not None and caller.is_super

    def _user_info(self, command: Command, header: UserRequest) -> UserInfo:
        info = read_body(command, decode_user)
        info.username = header.username or info.username
        return info


def _entries(info: AclInfo) -> list[EntryInfo]:
    return [entry for policy in info.policies or () for entry in policy.entries or ()]


def _entry_text(entry: EntryInfo) -> str:
    actions = ",".join(entry.actions or ())
    sources = f" from {','.join(entry.source_ips)}" if entry.source_ips else ""
    return f"{entry.decision} {actions} on {entry.resource}{sources}"


def _matching(policy: PolicyInfo, text: str) -> list[EntryInfo]:
    return [entry for entry in policy.entries or () if text in (entry.resource or "")]
