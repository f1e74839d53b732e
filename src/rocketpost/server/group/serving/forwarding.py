"""Requests that only a leader can serve, passed on by a follower or a broker that no longer leads.

A client learns of a new leader when it asks a name server again, which Java clients do every 30
seconds. Until then it talks to the broker that led before. That one passes its requests on and
returns the leader's answers, so that the client need not notice. While no leader is known, it waits
for one, but not for long.

A request is passed on once: a follower that gets one from another follower refuses it. With access
control on, the follower admits it first. It then tells the leader the client's address, and its
user if only a certificate shows it, over a connection on which it has logged in (ADR 0174).

A request may arrive late, for example after a network was cut. It names the term of its leader, and
a leader of another term refuses it: by then, later requests of the same client have been served.

Sends of one connection keep their order (``send_line``).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.command import Command
from rocketpost.codec.faults import ServiceNotAvailable
from rocketpost.errors import ClientError, NotConnected, ReplicationError, ServerError
from rocketpost.server.access.gate import CLIENT_HOST, CLIENT_USER, LEADER_TERM, Caller
from rocketpost.server.feature import Feature
from rocketpost.server.group.serving.send_line import Passage, SendLine, Stage
from rocketpost.server.peer_ports.member_login import LeaderLogins
from rocketpost.server.peers import Peers
from rocketpost.server.routes.access import NOTHING
from rocketpost.server.routes.follower_refusals import OF_GROUP
from rocketpost.server.routes.pools import PoolKind
from rocketpost.server.routes.route import NO_HEADER, Reply, Route, waiting
from rocketpost.transport.connection import Connection

LEADER_SECONDS: Final = 1.5
"""Time that a request waits for a leader."""
ANSWER_SECONDS: Final = 5.0
"""Time that the leader has for its answer, besides the time for which a request asks to be held."""
_HOLD_SECONDS_MAX: Final = 60.0
_CONNECT_SECONDS: Final = 1.0
_AGAIN_SECONDS: Final = 0.1
_TERM_NAME: Final = LEADER_TERM.encode()
_ANY: Final = "true"
"""Value of the mark if access control is off."""

_OF_THIS_MEMBER: Final = frozenset(
    {
        RequestCode.FOLLOW_TABLES,
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
        RequestCode.DELETE_EXPIRED_COMMITLOG,
    }
)
_SENDS: Final = frozenset(
    {RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE}
)
_OFFSETS: Final = frozenset({RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.QUERY_CONSUMER_OFFSET})
PASSED_ON: Final = (frozenset(OF_GROUP) | _OFFSETS) - _OF_THIS_MEMBER
"""Codes of the requests that a follower passes on."""


class Forwarding(Feature):
    """Passes requests on to the leader, in all terms of a member. Owned by the loop.

    Args:
        leader: Returns the address of the leader for clients; None if none is known.
        term: Returns the term of this member.
        peers: Makes the connection to the leader.
    """

    def __init__(
        self, leader: Callable[[], str | None], *, term: Callable[[], int], peers: Peers
    ) -> None:
        self._leader = leader
        self._term = term
        self._change = asyncio.Event()
        self._connector = peers.connector(connect_seconds=_CONNECT_SECONDS, signs=False)
        login, sign = peers.log_ports.login, peers.sign
        self._logins: LeaderLogins | None = None
        if login is not None and sign is not None:
            self._logins = LeaderLogins(login, sign)
        self._waiting = 0
        self._lines: dict[Connection, SendLine] = {}
        self.passed_on = 0
        """Number of requests that the leader answered."""
        self.failed = 0
        """Number of requests that got no answer of a leader."""

    @property
    def held(self) -> int:
        """Number of requests that wait for the leader."""
        return self._waiting

    def routes(self) -> Sequence[Route]:
        """Return the routes of all requests that are passed on."""
        return [
            waiting(code, NO_HEADER, NOTHING, self.pass_on, PoolKind.LEADER)
            for code in sorted(PASSED_ON)
        ]

    def replace(self, routes: Iterable[Route]) -> list[Route]:
        """Return routes in which requests for the leader are passed on."""
        return [*(route for route in routes if route.code not in PASSED_ON), *self.routes()]

    def check_term(self, command: Command) -> None:
        """Refuse a request that was passed on to the leader of another term.

        Raises:
            ServiceNotAvailable: It is such a request; it had no effect.
        """
        if command.text_fields is None and _TERM_NAME not in bytes(command.raw_fields):
            return  # most are no such requests, and are not decoded for this
        term = command.fields.get(LEADER_TERM)
        if term is not None and term != str(self._term()):
            raise ServiceNotAvailable(
                f"this request was passed on in term {term}, and it is {self._term()} now; try "
                "again"
            )

    async def stop(self) -> None:
        """Close the connection to the leader: the process stops."""
        await self._connector.close()

    def note_leader(self) -> None:
        """Note that there is another leader, or none."""
        change, self._change = self._change, asyncio.Event()
        change.set()

    def serve_here(self, handle: Callable[[Connection, Command], None]) -> None:
        """Let this broker, which leads now, serve the sends that wait for a leader."""
        for connection, line in list(self._lines.items()):
            for command in line.take_waiting():
                handle(connection, command)

    def runtime_values(self) -> dict[str, str]:
        """Return the counts of requests that were passed on."""
        return {
            "groupRequestsPassedOn": str(self.passed_on),
            "groupRequestsNotPassedOn": str(self.failed),
            "groupRequestsAtLeader": str(self._waiting),
        }

    def pass_on(
        self, connection: Connection, command: Command, header: None
    ) -> Awaitable[Reply | None]:
        """Return the leader's answer to a request; None if this broker serves it after all.

        A send is in the line of its connection when this returns. This broker may become the leader
        before anything is awaited, and serve what is sent next.

        Raises:
            ServiceNotAvailable: There is no leader; the request has had no effect.
            ServerError: The leader did not answer; the request may have had an effect.
        """
        if CLIENT_HOST in command.fields:
            raise ServiceNotAvailable("this broker does not lead its group any more; try again")
        if command.code not in _SENDS:
            return self._pass_on(self._ask(command))
        line = self._lines.get(connection)
        if line is None:
            line = self._lines[connection] = SendLine()
        return self._pass_on(self._send(connection, line, line.join(command)))

    async def _pass_on(self, work: Awaitable[Reply | None]) -> Reply | None:
        self._waiting += 1
        try:
            reply = await work
        except ClientError as error:
            self.failed += 1
            raise ServerError(
                f"the leader of this group did not answer, the request may or may not have had an "
                f"effect: {error}"
            ) from None
        except ReplicationError as error:
            self.failed += 1
            raise ServiceNotAvailable(f"not passed on: {error}") from None
        except ServiceNotAvailable:
            self.failed += 1
            raise
        finally:
            self._waiting -= 1
        self.passed_on += reply is not None
        return reply

    async def _send(self, connection: Connection, line: SendLine, passage: Passage) -> Reply | None:
        try:
            return await self._pass_in_line(line, passage)
        finally:
            line.leave(passage)
            if line.is_empty and self._lines.get(connection) is line:
                del self._lines[connection]

    async def _pass_in_line(self, line: SendLine, passage: Passage) -> Reply | None:
        loop = asyncio.get_running_loop()
        end_at = loop.time() + LEADER_SECONDS
        refusal: Command | None = None
        while passage.is_at(Stage.WAITING):
            if not line.is_next(passage):
                await passage.wait(end_at)
                if loop.time() < end_at or not passage.is_at(Stage.WAITING):
                    continue
                return _no_leader(refusal)
            change = self._change
            answer = await self._send_next(line, passage)
            if answer is not None and answer.code != ResponseCode.SERVICE_NOT_AVAILABLE:
                return _reply_of(answer)
            refusal = answer or refusal
            while passage.is_at(Stage.REFUSED):
                await passage.wait()
            if passage.is_at(Stage.WAITING) and loop.time() >= end_at:
                return _no_leader(refusal)
            if line.is_next(passage):
                await _wait_for(change, min(end_at, loop.time() + _AGAIN_SECONDS))
        return None if passage.is_at(Stage.SERVED) else _no_leader(refusal)

    async def _send_next(self, line: SendLine, passage: Passage) -> Command | None:
        """Send the next one in line; returns the leader's answer, or None if it was not sent."""
        try:
            leader = await self._connect()
        except NotConnected:
            return None
        if leader is None or not line.is_next(passage):
            return None
        line.note_sent(passage)
        try:
            answer = await self._request(leader, passage.command)
        except NotConnected:
            line.note_answer(passage, is_refused=True)
            return None
        except BaseException:
            line.note_answer(passage, is_refused=False)
            raise
        is_refused = answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        line.note_answer(passage, is_refused=is_refused)
        return answer

    async def _ask(self, command: Command) -> Reply:
        loop = asyncio.get_running_loop()
        end_at = loop.time() + LEADER_SECONDS
        while True:
            change = self._change
            try:
                answer = await self._ask_leader(command)
            except NotConnected:
                answer = None
            if answer is not None and answer.code != ResponseCode.SERVICE_NOT_AVAILABLE:
                return _reply_of(answer)
            if loop.time() >= end_at:
                return _no_leader(answer)
            # 14 says that nothing has happened: the leader is about to change.
            await _wait_for(change, min(end_at, loop.time() + _AGAIN_SECONDS))

    async def _ask_leader(self, command: Command) -> Command | None:
        leader = await self._connect()
        return None if leader is None else await self._request(leader, command)

    async def _connect(self) -> Connection | None:
        address = self._leader()
        if address is None:
            return None
        leader = await self._connector.connect(address)
        if self._logins is not None:
            await self._logins.ensure(leader)
        return leader

    async def _request(self, leader: Connection, command: Command) -> Command:
        caller: Caller | None = command.caller
        # A client may have set this field: the leader would believe it, so it must not get it.
        fields = {**command.fields, CLIENT_HOST: _ANY, LEADER_TERM: str(self._term())}
        fields.pop(CLIENT_USER, None)
        if self._logins is not None and caller is not None:
            fields |= {CLIENT_HOST: caller.host, CLIENT_USER: caller.name}
        return await leader.request(
            command.code, fields=fields, body=command.body, timeout=_seconds_for(command)
        )


def _seconds_for(command: Command) -> float:
    asked = command.fields.get("pollTime", "")
    hold = int(asked) / 1000 if asked.isascii() and asked.isdecimal() and len(asked) < 10 else 0
    return ANSWER_SECONDS + min(hold, _HOLD_SECONDS_MAX)


def _no_leader(refusal: Command | None) -> Reply:
    """Return a leader's refusal.

    Raises:
        ServiceNotAvailable: There was no leader that could refuse.
    """
    if refusal is not None:
        return _reply_of(refusal)
    raise ServiceNotAvailable(
        "this broker follows, and its group has no leader: too few members are up, or they are "
        "electing one; try again"
    )


def _reply_of(answer: Command) -> Reply:
    return Reply(answer.code, remark=answer.remark, fields=answer.fields, body=bytes(answer.body))


async def _wait_for(change: asyncio.Event, until: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout_at(until):
            await change.wait()
