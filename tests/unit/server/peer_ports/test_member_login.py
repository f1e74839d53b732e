"""Logins of followers at their leader: both sides prove the secret, and statements are trusted."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from rocketpost.access.info import UserInfo
from rocketpost.access.table import AccessTable
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.command import Command
from rocketpost.codec.faults import InvalidParameter, NoPermission
from rocketpost.codec.headers.broker_group import LogInMember
from rocketpost.errors import ConnectionLost, Fault, ReplicationError
from rocketpost.server.access.gate import CLIENT_HOST, CLIENT_USER, Caller, Gate, LoginFailed
from rocketpost.server.peer_ports.login import PeerLogin
from rocketpost.server.peer_ports.member_login import LeaderLogins, MemberLogins
from rocketpost.server.settings.access import AccessConfig, Login
from rocketpost.testing.waiting import settle
from rocketpost.transport.connection import Connection

LOGIN = Login("inner", "shared word")


class FakeAudit:
    """Forgets what it is told."""

    def note(self, event: str, **members: Any) -> None:
        return None

    async def record(self, event: str, **members: Any) -> None:
        return None

    async def newest(self, count: int, *, event: str = "", user: str = "") -> list[bytes]:
        return []


class Leader:
    """A leader with one user, and its end of the connection of a follower."""

    def __init__(self, login: Login | None = LOGIN) -> None:
        table = AccessTable()
        table.create_user(UserInfo(username="ada", password="x1"), caller=None)
        config = AccessConfig(authentication_enabled=True)
        self.gate = Gate(table, config, cluster="C", audit=FakeAudit())
        self.logins = MemberLogins(PeerLogin(login), self.gate)
        self.connection = self.connect()

    @staticmethod
    def connect() -> Connection:
        return Connection(on_request=lambda connection, command: None)

    def take(self, connection: Connection | None = None, **header: str) -> Mapping[str, str]:
        """Return the fields of the answer to one request of a login."""
        command, given = Command(code=RequestCode.LOG_IN_MEMBER), LogInMember(**header)
        reply = self.logins.take(connection or self.connection, command, given)
        assert reply.code == 0
        return reply.fields or {}

    def caller(self) -> Caller:
        """Return the user of a request that the follower passes on for ada.

        Raises:
            LoginFailed: The leader does not believe the follower.
        """
        fields = {CLIENT_HOST: "10.0.0.9", CLIENT_USER: "ada"}
        command = Command(code=RequestCode.SEND_MESSAGE_V2, text_fields=fields)
        self.gate.admit(self.connection, command)
        caller: Caller = command.caller
        return caller


class Wire(Connection):
    """The follower's end of a connection, over which requests reach a leader at once."""

    def __init__(self, leader: Leader) -> None:
        super().__init__(on_request=lambda connection, command: None)
        self.leader = leader
        self.requests: list[LogInMember] = []
        self.open = asyncio.Event()
        self.open.set()
        self.error: Exception | None = None
        self.changed: dict[str, str] = {}
        """Fields that somebody changes in the leader's answers."""

    async def request(self, code: int, **more: Any) -> Command:
        assert code == RequestCode.LOG_IN_MEMBER
        await self.open.wait()
        if self.error is not None:
            raise self.error
        fields = dict(more["fields"])
        assert fields.pop("Signature") == "signed"
        header = Command(text_fields=fields).read(LogInMember)
        self.requests.append(header)
        try:
            answer = self.leader.take(nonce=header.nonce, proof=header.proof)
        except Fault as fault:
            return Command(code=fault.code, remark=fault.remark)
        changed = {name: text for name, text in self.changed.items() if name in answer}
        return Command(text_fields={**answer, **changed})


def sign(fields: Mapping[str, str] | None, body: Sequence[Any]) -> Mapping[str, str]:
    assert not body
    return {**(fields or {}), "Signature": "signed"}


def make_follower(login: Login | None = LOGIN) -> LeaderLogins:
    return LeaderLogins(PeerLogin(login), sign)


async def test_a_leader_believes_a_member_that_has_logged_in() -> None:
    leader = Leader()
    with pytest.raises(LoginFailed):
        leader.caller()
    await make_follower().ensure(Wire(leader))
    assert leader.caller() == Caller("ada", "10.0.0.9")
    leader.connection = leader.connect()
    with pytest.raises(LoginFailed):
        leader.caller()


@pytest.mark.parametrize("login", [Login("inner", "other word"), Login("other", "shared word")])
async def test_a_member_with_another_secret_or_user_is_refused(login: Login) -> None:
    leader = Leader()
    with pytest.raises(ReplicationError, match=r"the login: the proof .* is wrong"):
        await make_follower(login).ensure(Wire(leader))
    with pytest.raises(LoginFailed):
        leader.caller()


async def test_without_a_secret_a_leader_refuses_all_members() -> None:
    with pytest.raises(ReplicationError, match="refuses the login"):
        await make_follower().ensure(Wire(Leader(None)))


@pytest.mark.parametrize("proof", ["", "00" * 32])
async def test_a_leader_must_prove_the_secret_too(proof: str) -> None:
    wire = Wire(Leader())
    wire.changed = {"proof": proof}
    with pytest.raises(ReplicationError, match="the leader does not know the secret"):
        await make_follower().ensure(wire)


async def test_a_member_s_own_proof_does_not_prove_that_the_leader_has_the_secret() -> None:
    class Mirror(Wire):
        async def request(self, code: int, **more: Any) -> Command:
            return Command(text_fields=dict(more["fields"]))

    with pytest.raises(ReplicationError, match="the leader does not know the secret"):
        await make_follower().ensure(Mirror(Leader()))


@pytest.mark.parametrize("name", ["nonce", "proof"])
async def test_an_unreadable_answer_of_a_leader_fails_the_login(name: str) -> None:
    wire = Wire(Leader())
    wire.changed = {name: "not hexadecimal"}
    with pytest.raises(ReplicationError, match="not hexadecimal"):
        await make_follower().ensure(wire)


# The leader's side.


async def test_each_number_is_used_once() -> None:
    leader, wire = Leader(), Wire(Leader())
    wire.leader = leader
    await make_follower().ensure(wire)
    [_, proof] = wire.requests
    with pytest.raises(InvalidParameter, match="begins with a nonce"):
        leader.take(proof=proof.proof)
    leader.take(nonce=wire.requests[0].nonce)
    with pytest.raises(NoPermission, match="proof of this member is wrong"):
        leader.take(proof=proof.proof)


async def test_a_wrong_proof_ends_the_login() -> None:
    leader = Leader()
    leader.take(nonce="00")
    with pytest.raises(NoPermission):
        leader.take(proof="00")
    with pytest.raises(InvalidParameter, match="begins with a nonce"):
        leader.take(proof="00")


async def test_a_login_is_one_connection_s() -> None:
    leader = Leader()
    leader.take(nonce="00")
    with pytest.raises(InvalidParameter, match="begins with a nonce"):
        leader.take(leader.connect(), proof="00")


async def test_numbers_that_are_not_hexadecimal_are_refused() -> None:
    leader = Leader()
    with pytest.raises(InvalidParameter, match="not hexadecimal"):
        leader.take(nonce="xyz")
    leader.take(nonce="00")
    with pytest.raises(InvalidParameter, match="not hexadecimal"):
        leader.take(proof="0")


async def test_the_route_needs_a_right_that_the_servers_have() -> None:
    logins = Leader().logins
    route = logins.route()
    assert (route.code, route.header) == (RequestCode.LOG_IN_MEMBER, LogInMember)
    assert route.handler == logins.take
    assert route.access.is_strict
    [rule] = route.access.rules
    assert rule.text == "Cluster Update"


# The follower's side.


async def test_requests_that_come_together_share_one_login() -> None:
    wire, follower = Wire(Leader()), make_follower()
    wire.open.clear()
    waiting = [asyncio.create_task(follower.ensure(wire)) for _ in range(3)]
    await settle()
    assert not any(task.done() for task in waiting)
    wire.open.set()
    await asyncio.gather(*waiting)
    await follower.ensure(wire)
    assert len(wire.requests) == 2


async def test_each_connection_has_a_login() -> None:
    leader, follower = Leader(), make_follower()
    wires = [Wire(leader), Wire(leader)]
    for wire in wires:
        await follower.ensure(wire)
    assert [len(wire.requests) for wire in wires] == [2, 2]
    assert wires[0].requests[0].nonce != wires[1].requests[0].nonce


async def test_a_caller_that_gives_up_does_not_end_the_login_of_others() -> None:
    wire, follower = Wire(Leader()), make_follower()
    wire.open.clear()
    impatient, patient = (asyncio.create_task(follower.ensure(wire)) for _ in range(2))
    await settle()
    impatient.cancel()
    await settle()
    assert impatient.cancelled()
    wire.open.set()
    await patient
    assert len(wire.requests) == 2


async def test_a_login_that_failed_is_tried_again() -> None:
    wire, follower = Wire(Leader()), make_follower()
    wire.error = ConnectionLost("cut")
    for _ in range(2):
        with pytest.raises(ConnectionLost, match="cut"):
            await follower.ensure(wire)
    wire.error = None
    await follower.ensure(wire)
    assert wire.leader.caller().name == "ada"


async def test_connections_that_are_gone_are_forgotten() -> None:
    leader, follower = Leader(), make_follower()
    wire = Wire(leader)
    await follower.ensure(wire)
    leader.take(nonce="00")
    gone: list[weakref.ref[Connection]] = [weakref.ref(wire), weakref.ref(leader.connection)]
    leader.connection = leader.connect()
    del wire
    await settle()
    gc.collect()
    assert [each() for each in gone] == [None, None]
