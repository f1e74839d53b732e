"""The gate: finds out which user sends a request, and whether that user may send it.

The dispatcher asks it about every request, before it looks up the route (:meth:`Gate.admit`) and
once the header is decoded (:meth:`Gate.check`). Signatures are verified every time. Verdicts are
kept until a user or a rule changes, so a change acts on the next request of open connections.

An unknown user, a wrong signature and a disabled user get one answer, for which the same work is
done. Denials after that name the missing right: the user is known by then.

A request that is not signed belongs to the user that its connection's certificate stands for. If it
is signed, that user must have signed it. A member of the group that has logged in states the
client's address, and such a user, in requests that it passes on. Signatures in them are verified
again here.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any, Final, NamedTuple
from weakref import WeakSet

from rocketpost.access.decision import Verdict, decide
from rocketpost.access.failures import Failures
from rocketpost.access.rules import parse_source
from rocketpost.access.signature import ACCESS_KEY, is_signed
from rocketpost.access.table import AccessTable
from rocketpost.access.users import User
from rocketpost.access.words import EVERY, Kind
from rocketpost.codec.command import Command
from rocketpost.codec.faults import NoPermission
from rocketpost.errors import RemoteProtocolError
from rocketpost.server.access.audit import Audit
from rocketpost.server.routes.access import (
    OWN,
    Access,
    Need,
    ResourceKind,
    topic_need,
)
from rocketpost.server.settings.access import AccessConfig
from rocketpost.transport.connection import Connection

logger = logging.getLogger(__name__)

_VERDICTS_MAX: Final = 100_000
_NAME_CHARS_MAX: Final = 128
_UNSIGNED: Final = "username cannot be null. The request is not signed; give the client its keys"
_FAILED: Final = (
    "check signature failed. The user is unknown or disabled, or its secret is another one"
)
CLIENT_HOST: Final = "passedOn"
"""The field of a request that a follower passes on, with the address of its client."""
CLIENT_USER: Final = "passedOnUser"
"""The field with the user of such a request, as the follower has found it."""
LEADER_TERM: Final = "passedOnTerm"
"""The field with the term of the leader to which a follower passes such a request on."""
_OF_MEMBERS: Final = frozenset({CLIENT_HOST, CLIENT_USER, LEADER_TERM})
_KINDS: Final = {
    ResourceKind.CLUSTER: Kind.CLUSTER,
    ResourceKind.TOPIC: Kind.TOPIC,
    ResourceKind.GROUP: Kind.GROUP,
}


class LoginFailed(NoPermission):
    """A request whose sender is not known. It is answered after ``delay`` seconds."""

    def __init__(self, remark: str, *, delay: float | None, address: str) -> None:
        super().__init__(remark)
        self.delay = delay
        """Seconds by which the answer is delayed; None if the connection is closed instead."""
        self.address = address


class Caller(NamedTuple):
    """The user who sent a request, from where, and the rights that the request needed."""

    name: str
    host: str
    """The address that rules with networks judge."""
    needs: Sequence[Need] = ()


class _Origin(NamedTuple):
    """The origin of a request, as far as it is known without its signature."""

    host: str
    user: str
    """The user that a certificate, or a member of the group, vouches for; empty if none does."""
    fields: Mapping[str, str]
    """The header fields that the client has signed."""


class Gate:
    """Admits and checks requests. Owned by the loop.

    Args:
        table: Users and rules.
        config: The settings of access control.
        cluster: The cluster of this server.
        audit: Records failures and denials.
        topic_at: Returns the topic of the stored message at a position, None if there is none.
    """

    def __init__(
        self,
        table: AccessTable,
        config: AccessConfig,
        *,
        cluster: str,
        audit: Audit,
        topic_at: Callable[[int], str | None] = lambda position: None,
    ) -> None:
        self._table = table
        self.cluster = cluster
        """The cluster whose rights count for requests that name none."""
        self._audit = audit
        self._topic_at = topic_at
        self.authorises = config.authorization_enabled
        """Whether rights are checked; else every user may do everything."""
        self.open_codes = config.open_codes
        """Codes of requests whose users are not looked at."""
        self._free_codes = config.free_codes
        self._secrets: dict[str, bytes] = {}
        self._nobody = User("", secrets.token_hex(16))
        self._verdicts: dict[tuple[str, str, Need], Verdict] = {}
        self._revision = table.revision
        self._members: WeakSet[Connection] = WeakSet()
        self.failures = Failures()
        self.denied_count = 0
        """Number of requests that were refused for lack of a right."""

    def admit(self, connection: Connection, command: Command) -> None:
        """Authenticate a request, and note its user in the command.

        Raises:
            LoginFailed: The request is not signed, or not by an enabled user.
        """
        if command.code in self.open_codes:
            return
        try:
            origin = self._origin(connection, command.fields)
        except RemoteProtocolError as error:
            raise self._failure(connection, command, "", str(error)) from None
        fields = origin.fields
        name = fields.get(ACCESS_KEY)
        is_right = True
        if not name and not origin.user:
            raise self._failure(connection, command, "", _UNSIGNED)
        if not name:
            name = origin.user
            user = self._table.user(name)
        else:
            user = self._table.user(name)
            # The same work for a user that does not exist.
            secret = (user or self._nobody).secret.encode()
            is_right = is_signed(secret, fields, command.body, version=command.version)
            is_right = is_right and origin.user in ("", name)
        if user is None or not user.is_enabled or not is_right:
            raise self._failure(connection, command, name, _FAILED)
        command.caller = Caller(name, origin.host)

    def trust(self, connection: Connection) -> None:
        """Trust what a logged-in member of the group states about a request that it passes on."""
        self._members.add(connection)

    def _origin(self, connection: Connection, fields: Mapping[str, str]) -> _Origin:
        if connection not in self._members or CLIENT_HOST not in fields:
            return _Origin(connection.peer[0], connection.certificate_user, fields)
        signed = {name: text for name, text in fields.items() if name not in _OF_MEMBERS}
        return _Origin(fields[CLIENT_HOST], fields.get(CLIENT_USER, ""), signed)

    def check(self, connection: Connection, command: Command, header: Any, access: Access) -> None:
        """Check that the user of a request has every right that it needs.

        Raises:
            NoPermission: A right is missing.
            Fault: The names that the request touches cannot be read.
        """
        if not self.authorises or command.code in self._free_codes:
            return
        caller: Caller | None = command.caller
        needs = access.needs(command, header)
        if caller is None:
            raise self._denial(connection, command, "", "its user is not known")
        if not needs and not access.may_need_nothing:
            raise self._denial(connection, command, caller.name, "the request names no resource")
        command.caller = caller = caller._replace(needs=needs)
        problem = self.problem(caller)
        if problem is not None:
            self._note_denial(connection, command, caller.name, problem.remark)
            raise problem

    def problem(self, caller: Caller) -> NoPermission | None:
        """Return the reason why a user may not, or no longer, make a request; None if he may."""
        if self._revision != self._table.revision:
            self._verdicts.clear()
            self._revision = self._table.revision
        host = caller.host
        for need in caller.needs:
            key = (caller.name, host, need)
            verdict = self._verdicts.get(key)
            if verdict is None or need.resource is ResourceKind.MESSAGE:
                resolved = self._resolve(need)
                verdict = self._decide(caller.name, host, resolved)
                if len(self._verdicts) >= _VERDICTS_MAX:
                    self._verdicts.clear()
                self._verdicts[key] = verdict
            if not verdict.is_allowed:
                return NoPermission(self._denial_text(caller.name, host, need, verdict))
        return None

    # Calls of the other protocol, which have no connection and no request code.

    def admit_call(
        self, name: str, is_signed: Callable[[bytes], bool], *, source: str, method: str
    ) -> None:
        """Authenticate a call.

        Args:
            name: The user that the call names; empty if it is not signed.
            is_signed: Tells whether the call is signed with a secret.
            source: The address that it came from.
            method: The method that is called.

        Raises:
            LoginFailed: The call is not signed, or not by an enabled user.
        """
        if not self.is_login(name, is_signed):
            reason = "user or signature" if name else "not signed"
            delay = self.failures.note(source, monotonic())
            self._audit.note(
                "loginFailed",
                user=name[:_NAME_CHARS_MAX],
                source=source,
                code=method,
                reason=reason,
            )
            raise LoginFailed(_FAILED if name else _UNSIGNED, delay=delay, address=source)

    def is_login(self, name: str, is_signed: Callable[[bytes], bool]) -> bool:
        """Tell whether a call is signed by an enabled user; the same work for unknown users."""
        user = self._table.user(name)
        is_right = is_signed((user or self._nobody).secret.encode())
        return user is not None and user.is_enabled and is_right

    def check_call(self, name: str, needs: Sequence[Need], *, source: str, method: str) -> None:
        """Check that the user of a call may still log in and has every right that it needs.

        Raises:
            NoPermission: A right is missing.
        """
        user = self._table.user(name)
        problem: NoPermission | None = None
        if user is None or not user.is_enabled:
            problem = NoPermission(_FAILED)
        elif self.authorises:
            problem = self.problem(Caller(name, source, needs))
        if problem is not None:
            self.denied_count += 1
            self._audit.note("denied", user=name, source=source, code=method, reason=problem.remark)
            raise problem

    def held_problem(self, command: Command) -> NoPermission | None:
        """Return the reason why a held request must end; None if its user still has the rights."""
        caller: Caller | None = command.caller
        if caller is None:
            return None
        user = self._table.user(caller.name)
        if user is None or not user.is_enabled:
            return NoPermission(_FAILED)
        return self.problem(caller)

    @property
    def revision(self) -> int:
        """The version of users and rules; it grows with every change."""
        return self._table.revision

    def login_user(self, connection: Connection, name: str) -> User | None:
        """Return the user of a name who may log in on a connection; None if there is none."""
        if connection.certificate_user not in ("", name):
            return None
        user = self._table.user(name)
        return user if user is not None and user.is_enabled else None

    def user_of(self, command: Command) -> User | None:
        """Return the authenticated user of a request that is being served; None if not known."""
        caller: Caller | None = command.caller
        return None if caller is None else self._table.user(caller.name)

    def _decide(self, name: str, host: str, need: Need) -> Verdict:
        user = self._table.user(name)
        if user is None:
            return Verdict(False, "the user is gone")
        return decide(
            user,
            self._table.policies(name),
            kind=_KINDS[need.resource],
            name=need.name,
            actions=need.actions,
            source=parse_source(host),
        )

    def _resolve(self, need: Need) -> Need:
        """Return a need in terms of topics, groups and clusters with names."""
        if need.resource is ResourceKind.CLUSTER and need.name == OWN:
            return need._replace(name=self.cluster)
        if need.resource is not ResourceKind.MESSAGE:
            return need
        topic = self._topic_at(int(need.name))
        # A message that does not exist counts as one of every topic, so that a stranger cannot
        # learn which positions have messages.
        return topic_need(topic or EVERY, need.actions)

    def _denial_text(self, name: str, host: str, need: Need, verdict: Verdict) -> str:
        resolved = self._resolve(need) if need.resource is not ResourceKind.MESSAGE else need
        wanted = "|".join(action.value for action in need.actions)
        reason = "no matched policies" if verdict.rule is None else "the decision is deny"
        return (
            f"User:{name} has no permission to access {resolved.resource.value}:{resolved.name} "
            f"from {host}, {reason}. It needs {wanted}"
        )

    def _failure(
        self, connection: Connection, command: Command, name: str, remark: str
    ) -> LoginFailed:
        host = connection.peer[0]
        delay = self.failures.note(host, monotonic())
        self._audit.note(
            "loginFailed",
            user=name[:_NAME_CHARS_MAX],
            source=connection.peer_text,
            code=command.code,
            reason="not signed" if remark is _UNSIGNED else "user or signature",
        )
        return LoginFailed(remark, delay=delay, address=host)

    def _denial(
        self, connection: Connection, command: Command, name: str, reason: str
    ) -> NoPermission:
        self._note_denial(connection, command, name, reason)
        return NoPermission(f"User:{name} has no permission for request {command.code}: {reason}")

    def _note_denial(
        self, connection: Connection, command: Command, name: str, reason: str
    ) -> None:
        self.denied_count += 1
        self._audit.note(
            "denied", user=name, source=connection.peer_text, code=command.code, reason=reason
        )
