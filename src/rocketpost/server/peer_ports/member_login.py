"""Logins of followers at their leader, over the connections by which they pass requests on.

A follower states the client and the user of a request that it passes on. The leader trusts this
statement over a connection on which the follower has proved the secret that servers share. A
signature would not do: anyone who records it could send it again with another request.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from typing import Final
from weakref import WeakKeyDictionary

from rocketpost.access.peer_proof import NONCE_BYTES, Side
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.command import Command, to_fields
from rocketpost.codec.faults import InvalidParameter, NoPermission
from rocketpost.codec.headers.broker_group import LogInMember
from rocketpost.errors import ReplicationError
from rocketpost.server.access.gate import Gate
from rocketpost.server.peer_ports.login import PeerLogin
from rocketpost.server.routes.access import UPDATE, of_cluster, strict
from rocketpost.server.routes.route import Reply, Route, plain
from rocketpost.transport.connection import Connection, Sign

PURPOSE: Final = "requests that a member passes on"
_SECONDS: Final = 3.0


class MemberLogins:
    """The leader's side. Owned by the loop.

    Args:
        login: The secret that servers share.
        gate: Notes the members whose statements it trusts.
    """

    def __init__(self, login: PeerLogin, gate: Gate) -> None:
        self._login = login
        self._gate = gate
        self._nonces: WeakKeyDictionary[Connection, tuple[bytes, bytes]] = WeakKeyDictionary()

    def route(self) -> Route:
        """Return the route of logins. They are signed, like all requests of servers."""
        return plain(RequestCode.LOG_IN_MEMBER, LogInMember, strict(of_cluster(UPDATE)), self.take)

    def take(self, connection: Connection, command: Command, header: LogInMember) -> Reply:
        """Answer one of the two requests of a login.

        Raises:
            InvalidParameter: A number is malformed.
            NoPermission: The proof is wrong.
        """
        if header.nonce:
            own = secrets.token_bytes(NONCE_BYTES)
            self._nonces[connection] = _bytes_of(header.nonce), own
            return Reply(fields=to_fields(LogInMember(nonce=own.hex())))
        nonces = self._nonces.pop(connection, None)  # each is used once
        if nonces is None:
            raise InvalidParameter("a login begins with a nonce")
        meeting = self._login.meet(PURPOSE, *nonces)
        if not self._login.is_proof(meeting, Side.CALLER, _bytes_of(header.proof)):
            raise NoPermission("the proof of this member is wrong")
        self._gate.trust(connection)
        proof = self._login.proof(meeting, Side.CALLED)
        return Reply(fields=to_fields(LogInMember(proof=proof.hex())))


class LeaderLogins:
    """The follower's side. Owned by the loop.

    Args:
        login: The secret that servers share.
        sign: Signs the requests of the login.
    """

    def __init__(self, login: PeerLogin, sign: Sign) -> None:
        self._login = login
        self._sign = sign
        self._tasks: WeakKeyDictionary[Connection, asyncio.Task[None]] = WeakKeyDictionary()

    async def ensure(self, connection: Connection) -> None:
        """Return when this member has logged in over a connection.

        Raises:
            ReplicationError: The leader refuses the login, does not know the secret, or sends an
                answer that is not hexadecimal.
            ClientError: The leader does not answer.
        """
        task = self._tasks.get(connection)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = asyncio.create_task(self._log_in(connection), name="login at the leader")
            self._tasks[connection] = task
        await asyncio.shield(task)

    async def _log_in(self, connection: Connection) -> None:
        own = secrets.token_bytes(NONCE_BYTES)
        fields = await self._ask(connection, LogInMember(nonce=own.hex()))
        meeting = self._login.meet(PURPOSE, own, _answer_bytes(fields, "nonce"))
        proof = self._login.proof(meeting, Side.CALLER).hex()
        fields = await self._ask(connection, LogInMember(proof=proof))
        if not self._login.is_proof(meeting, Side.CALLED, _answer_bytes(fields, "proof")):
            raise ReplicationError("the leader does not know the secret that servers share")

    async def _ask(self, connection: Connection, header: LogInMember) -> Mapping[str, str]:
        answer = await connection.request(
            RequestCode.LOG_IN_MEMBER, fields=self._sign(to_fields(header), ()), timeout=_SECONDS
        )
        if answer.code:
            raise ReplicationError(f"the leader refuses the login: {answer.remark}")
        return answer.fields


def _answer_bytes(fields: Mapping[str, str], name: str) -> bytes:
    try:
        return bytes.fromhex(fields.get(name, ""))
    except ValueError:
        raise ReplicationError(f"the leader sent a {name} that is not hexadecimal") from None


def _bytes_of(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise InvalidParameter("a number of the login is not hexadecimal") from None
