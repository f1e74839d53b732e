"""HA ports and links of groups: TLS, and logins before a byte of the log is sent."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rocketpost.client import ClientTls
from rocketpost.codec.codes import ResponseCode
from rocketpost.codec.ha_frames import encode_report
from rocketpost.codec.peer_login import (
    Challenge,
    Introduction,
    Proof,
    Verdict,
    encode_login,
    take_login,
)
from rocketpost.errors import ConfigError, RemoteProtocolError, ReplicationError, RocketpostError
from rocketpost.server.access.audit import NoAudit
from rocketpost.server.broker import BrokerServer
from rocketpost.server.follower_term import FollowerTerm
from rocketpost.server.peer_ports.door import PeerDoor
from rocketpost.server.peer_ports.login import PeerLogin
from rocketpost.server.peer_ports.security import PeerSecurity
from rocketpost.server.replication.hello import LOG_PURPOSE
from rocketpost.server.settings.access import Login
from rocketpost.server.term import LeaderTerm
from rocketpost.testing.secure.certificates import CertificateFolder
from rocketpost.testing.waiting import until
from rocketpost.transport.tls_contexts import ServerTls
from rocketpost.transport.tls_socket import (
    RECORD_BYTES,
    StreamSocket,
    TlsSocket,
    receive,
    send_all,
    shake_hands,
    wait_readable,
    wait_writable,
)

from .group_brokers import NODES, Group
from .replicas import log_of
from .secured import (
    GUARDED,
    broker_values,
    caller,
    name_server,
    running,
    secret_key,
    tls_values,
)

OTHER_SECRET = {
    "innerClientAuthenticationCredentials": '{"accessKey":"servers","secretKey":"guessed"}'
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> CertificateFolder:
    return CertificateFolder(tmp_path_factory.mktemp("certificates"))


def master_at(root: Path, names: str, **more: object) -> BrokerServer:
    return BrokerServer(broker_values(root / "master", namesrvAddr=names, **more))


def slave_at(root: Path, names: str, **more: object) -> BrokerServer:
    own = {"namesrvAddr": names, "brokerRole": "SLAVE", "brokerId": 1}
    return BrokerServer(broker_values(root / "slave", **own | more))


def ha_port(master: BrokerServer) -> int:
    term = master._term
    assert isinstance(term, LeaderTerm)
    return int(term.slaves.ha_address.rpartition(":")[2])


def end_of(server: BrokerServer) -> int:
    return server._context.store.confirmed_position


def problem_of(slave: BrokerServer) -> str:
    term = slave._term
    assert isinstance(term, FollowerTerm)
    return term.stream.status().problem


async def refused_bytes(port: int, data: bytes) -> bytes:
    """Send bytes to a port, and return everything that it sends until it closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    found = b""
    async with asyncio.timeout(15):
        with contextlib.suppress(ConnectionError):
            found = await reader.read()
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    return found


# Masters and slaves.


@pytest.mark.parametrize("mode", ["enforcing", "permissive"])
async def test_a_slave_follows_with_tls_and_login(
    folder: CertificateFolder, tmp_path: Path, mode: str
) -> None:
    values = GUARDED | tls_values(folder, mode) | {"tls.enable": "true"}
    bodies = [os.urandom(size) for size in (1, 300, 900_000, 2_000_000, 70_000, 3_000_000)]
    async with name_server(tmp_path, values) as names, caller(trusted=folder.root) as client:
        master = master_at(tmp_path, names, **values, brokerRole="SYNC_MASTER")
        slave = slave_at(tmp_path, names, **values)
        async with running(master):
            for body in bodies:  # the slave has to catch up
                await client.send(master.port, body)
            async with running(slave):
                await until(lambda: end_of(slave) == end_of(master), seconds=20)
                for body in bodies:
                    sent = await client.send(master.port, body)
                    assert sent.code == ResponseCode.SUCCESS, sent.remark
                await until(lambda: end_of(slave) == end_of(master), seconds=20)
                assert log_of(slave) == log_of(master)
                assert end_of(slave) > 2 * sum(map(len, bodies))


async def test_a_plain_caller_gets_nothing_where_tls_is_required(
    folder: CertificateFolder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    values = tls_values(folder)
    async with name_server(tmp_path, values) as names, caller(None, folder.root) as client:
        master = master_at(tmp_path, names, **values, haTrustedNetworks="127.0.0.0/8")
        async with running(master):
            assert (await client.send(master.port, b"secret")).code == ResponseCode.SUCCESS
            assert await refused_bytes(ha_port(master), encode_report(0)) == b""
            assert "does not use TLS, which is required here" in caplog.text


async def test_a_stranger_gets_nothing_and_the_log_says_what_to_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with name_server(tmp_path, GUARDED) as names, caller() as client:
        master = master_at(tmp_path, names, **GUARDED)
        async with running(master):
            assert (await client.send(master.port, b"secret")).code == ResponseCode.SUCCESS
            for first in (encode_report(0), b"\x16\x03\x01\x02\x00" + bytes(600), b"GET / "):
                assert await refused_bytes(ha_port(master), first) == b""
            assert "list their addresses in haTrustedNetworks" in caplog.text
            term = master._term
            assert isinstance(term, LeaderTerm)
            assert not term.slaves.status().replicas


async def test_haTrustedNetworks_serves_a_slave_of_rocketmq(tmp_path: Path) -> None:
    async with name_server(tmp_path, GUARDED) as names, caller() as client:
        master = master_at(tmp_path, names, **GUARDED, haTrustedNetworks="10.0.0.0/8;127.0.0.1")
        slave = slave_at(tmp_path, names, **GUARDED)
        async with running(master, slave):
            assert (await client.send(master.port, b"for java")).code == ResponseCode.SUCCESS
            reader, writer = await asyncio.open_connection("127.0.0.1", ha_port(master))
            writer.write(encode_report(0))
            async with asyncio.timeout(15):
                found = b""
                while b"for java" not in found:
                    found += await reader.read(65_536)
            writer.close()
            await writer.wait_closed()
            # A broker of ours from there logs in as it does from anywhere.
            await until(lambda: end_of(slave) == end_of(master))


async def test_a_wrong_secret_is_refused_and_said_on_both_sides(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The requests of this slave are signed by a user of its own, its login is wrong."""
    async with name_server(tmp_path, GUARDED) as names, caller() as client:
        master = master_at(tmp_path, names, **GUARDED)
        address = {"haMasterAddress": "", **GUARDED, **OTHER_SECRET}
        async with running(master):
            await client.send(master.port, b"secret")
            address["haMasterAddress"] = f"127.0.0.1:{ha_port(master)}"
            slave = slave_at(tmp_path, "", **address)
            async with running(slave):
                await until(lambda: "refuses the login" in problem_of(slave))
                assert end_of(slave) == 0
    assert "its login is wrong (innerClientAuthenticationCredentials)" in caplog.text
    assert "guessed" not in caplog.text
    audit = (tmp_path / "master" / "store" / "audit.log").read_text()
    assert '"event":"loginFailed"' in audit
    assert "login of a broker" in audit


@pytest.mark.parametrize(
    ("of_master", "of_slave", "problem"),
    [
        (GUARDED, {}, "sends its log only to brokers that log in"),
        ({}, GUARDED, "does not log in, so it might be anybody"),
        ({"authenticationEnabled": "false"}, GUARDED, "does not log in"),
    ],
)
async def test_one_sided_access_control_is_refused(
    tmp_path: Path, of_master: dict[str, str], of_slave: dict[str, str], problem: str
) -> None:
    async with name_server(tmp_path, {}) as names:
        keys = {key: text for key, text in GUARDED.items() if key.startswith("inner")}
        master = master_at(tmp_path, names, **keys | of_master)
        slave = slave_at(tmp_path, names, **keys | of_slave)
        async with running(master, slave):
            await until(lambda: problem in problem_of(slave))


# Logins.


class Recorder:
    """A socket that keeps what is written to it."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.sent: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def send(self, data: bytes, flags: int = 0) -> int:
        self.sent.append(bytes(data))
        return self._sock.send(data, flags)


LOGIN = PeerLogin(Login("servers", "shared"))


class Port:
    """A door on one end of socket pairs."""

    def __init__(self, security: PeerSecurity, strangers_max: int = 64) -> None:
        self.entered: list[StreamSocket] = []
        self.door = PeerDoor(
            security,
            purpose=LOG_PURPOSE,
            audit=NoAudit(),
            on_peer=lambda sock, address: self.entered.append(sock),
            strangers_max=strangers_max,
        )

    def call(self, host: str = "10.0.0.9") -> socket.socket:
        ours, theirs = socket.socketpair()
        for each in (ours, theirs):
            each.setblocking(False)
        self.door.admit(theirs, (host, 1))
        return ours

    def close(self) -> None:
        self.door.close()
        for each in self.entered:
            each.close()


@contextlib.asynccontextmanager
async def port(security: PeerSecurity, **more: int) -> AsyncIterator[Port]:
    made = Port(security, **more)
    yield made
    made.close()
    await until(lambda: not made.door.count)


async def test_a_recorded_login_cannot_be_used_again() -> None:
    async with port(PeerSecurity(LOGIN)) as place:
        first = Recorder(place.call())
        await LOGIN.prove(first, LOG_PURPOSE)
        await until(lambda: len(place.entered) == 1)
        again = place.call()
        await send_all(again, first.sent[0])
        assert await receive(again, 1000)  # the challenge
        await send_all(again, first.sent[1])
        received = bytearray(await receive(again, 1000))
        verdict = take_login(Verdict, received)
        assert verdict is not None
        assert "not the one that is set here" in verdict.problem
        assert await receive(again, 1000) == b""
        assert len(place.entered) == 1
        again.close()
        first.close()


@pytest.mark.parametrize(
    "login", [Login("others", "shared"), Login("servers", "other"), Login("ghost", "x")]
)
async def test_unknown_users_and_wrong_secrets_get_one_answer(login: Login) -> None:
    async with port(PeerSecurity(LOGIN)) as place:
        sock = place.call()
        with pytest.raises(ReplicationError, match="its user or secret is not the one"):
            await PeerLogin(login).prove(sock, LOG_PURPOSE)
        sock.close()


async def test_a_broker_without_a_secret_lets_nobody_in_and_cannot_call() -> None:
    async with port(PeerSecurity(PeerLogin(None))) as place:
        sock = place.call()
        with pytest.raises(ReplicationError, match="its user or secret"):
            await PeerLogin(Login("servers", "")).prove(sock, LOG_PURPOSE)
        sock.close()
        again = place.call()
        with pytest.raises(ReplicationError, match="is not set"):
            await PeerLogin(None).prove(again, LOG_PURPOSE)
        again.close()


async def test_a_login_for_another_purpose_is_refused() -> None:
    async with port(PeerSecurity(LOGIN)) as place:
        sock = place.call()
        with pytest.raises(RemoteProtocolError, match="closed the connection during the login"):
            await LOGIN.prove(sock, "the group g")
        sock.close()


async def test_a_master_that_does_not_know_the_secret_is_noticed() -> None:
    """It answers as if every login were right."""
    ours, theirs = socket.socketpair()
    for each in (ours, theirs):
        each.setblocking(False)

    async def pretend() -> None:
        for answer in (Challenge(nonce=b"n" * 32), Verdict(proof=b"p" * 32)):
            await receive(theirs, 1000)
            await send_all(theirs, encode_login(answer))

    pretending = asyncio.create_task(pretend())
    with pytest.raises(ReplicationError, match="does not know the secret"):
        await PeerSecurity(LOGIN).call(ours, "127.0.0.1", LOG_PURPOSE)
    await pretending
    assert ours.fileno() < 0
    theirs.close()


async def test_strangers_are_bounded_and_do_not_keep_brokers_out() -> None:
    security = PeerSecurity(LOGIN)
    security.seconds = 0.2
    async with port(security, strangers_max=8) as place:
        silent = [place.call() for _ in range(100)]
        half = encode_login(Introduction(user="servers", purpose=LOG_PURPOSE, nonce=b"n" * 32))
        silent[-1].send(half[:20])
        await until(lambda: place.door.count <= 8)
        honest = place.call()
        await LOGIN.prove(honest, LOG_PURPOSE)
        await until(lambda: len(place.entered) == 1)
        await until(lambda: place.door.count == 0)  # the time of the others is up
        assert await receive(silent[0], 10) == await receive(silent[-1], 10) == b""
        for each in (*silent, honest):
            each.close()


async def test_a_crowd_of_one_address_does_not_keep_another_one_out() -> None:
    async with port(PeerSecurity(LOGIN), strangers_max=8) as place:
        slow = place.call("10.0.0.1")
        crowd = [place.call() for _ in range(100)]
        await LOGIN.prove(slow, LOG_PURPOSE)
        await until(lambda: len(place.entered) == 1)
        for each in (*crowd, slow):
            each.close()


async def test_too_many_wrong_logins_are_answered_late_and_then_not_at_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rocketpost.access.failures.DELAY_SECONDS", 0.05)
    wrong = PeerLogin(Login("servers", "guess"))
    loop = asyncio.get_running_loop()
    async with port(PeerSecurity(LOGIN)) as place:

        async def attempt() -> float:
            sock, began = place.call(), loop.time()
            with pytest.raises(RocketpostError):
                await wrong.prove(sock, LOG_PURPOSE)
            sock.close()
            return loop.time() - began

        for _ in range(10):
            await attempt()
        assert await attempt() >= 0.05
        assert place.door.refused_count == 11


# TLS of sockets.


@contextlib.asynccontextmanager
async def secure_pair(
    folder: CertificateFolder, *versions: str
) -> AsyncIterator[tuple[TlsSocket, TlsSocket]]:
    """Yield both ends of a connection with TLS."""
    server = ServerTls(keys=folder.issue()).make_context_blocking()
    client = ClientTls(trusted=folder.root, versions=versions).make_context_blocking()
    ours, theirs = socket.socketpair()
    for each in (ours, theirs):
        each.setblocking(False)
        each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    both = await asyncio.gather(
        shake_hands(ours, client, server_side=False, server_name="localhost"),
        shake_hands(theirs, server, server_side=True),
    )
    try:
        yield both
    finally:
        for end in both:
            end.close()


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
async def test_both_ends_have_one_binding_and_other_connections_another(
    folder: CertificateFolder, version: str
) -> None:
    async with secure_pair(folder, version) as one, secure_pair(folder, version) as other:
        assert one[0].binding == one[1].binding
        assert one[0].binding != other[0].binding


async def test_a_login_that_is_passed_on_between_two_tls_connections_is_refused(
    folder: CertificateFolder,
) -> None:
    async with secure_pair(folder) as near, secure_pair(folder) as far:

        async def relay(source: TlsSocket, target: TlsSocket) -> None:
            while data := await receive(source, 1000):
                await send_all(target, data)

        relays = [
            asyncio.create_task(relay(near[1], far[0])),
            asyncio.create_task(relay(far[0], near[1])),
        ]
        judging = asyncio.create_task(LOGIN.judge(far[1], LOG_PURPOSE))
        calling = asyncio.create_task(LOGIN.prove(near[0], LOG_PURPOSE))
        assert await judging == "servers", "the proof of the caller is refused"
        await LOGIN.refuse(far[1])
        with pytest.raises(ReplicationError, match="refuses the login"):
            await calling
        for each in relays:
            each.cancel()
        await asyncio.wait(relays)


async def test_every_byte_arrives_in_order_over_a_narrow_connection(
    folder: CertificateFolder,
) -> None:
    data = os.urandom(3_000_000)
    async with secure_pair(folder) as (ours, theirs):

        async def write() -> None:
            rest = memoryview(data)
            sizes = [1, 100, 3000, 17, 9000, 200_000]
            while rest:
                parts = [rest[: sizes[0]], rest[sizes[0] : sizes[0] + sizes[1]]]
                try:
                    rest = rest[theirs.sendmsg(parts) :]
                    if len(parts[0]) + len(parts[1]) < RECORD_BYTES:
                        sizes.append(sizes.pop(0))
                except BlockingIOError:
                    await wait_writable(theirs)

        writing = asyncio.create_task(write())
        writing.add_done_callback(lambda done: ended.append(done.exception()))
        ended: list[BaseException | None] = []
        found = bytearray()
        buffer = memoryview(bytearray(RECORD_BYTES * 2 + 100))
        while len(found) < len(data):
            try:
                size = ours.recv_into(buffer)
                assert size
                found += buffer[:size]
            except BlockingIOError:
                assert ended in ([], [None])
                async with asyncio.timeout(15):
                    await wait_readable(ours)
        await writing
        assert found == data
        theirs.close()
        assert await receive(ours, 10) == b""


async def test_a_certificate_of_another_authority_is_refused(
    folder: CertificateFolder, tmp_path: Path
) -> None:
    other = CertificateFolder(tmp_path)
    server = ServerTls(keys=other.issue()).make_context_blocking()
    client = ClientTls(trusted=folder.root).make_context_blocking()
    ours, theirs = socket.socketpair()
    for each in (ours, theirs):
        each.setblocking(False)
    results = await asyncio.gather(
        shake_hands(ours, client, server_side=False, server_name="localhost"),
        shake_hands(theirs, server, server_side=True),
        return_exceptions=True,
    )
    assert "certificate is not accepted" in str(results[0])
    assert isinstance(results[1], OSError)
    assert not isinstance(results[1], ssl.SSLError)
    assert ours.fileno() < 0
    assert theirs.fileno() < 0


# Groups.


async def test_a_group_elects_and_copies_with_tls_and_login(
    folder: CertificateFolder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    group = Group(tmp_path, **GUARDED | tls_values(folder) | secret_key(tmp_path))
    await group.start()
    try:
        async with caller(trusted=folder.root) as client:
            leader = await group.leader()
            for size in (1, 100_000, 40_000):
                sent = await client.send(group.servers[leader].port, os.urandom(size))
                assert sent.code == ResponseCode.SUCCESS, sent.remark
            ends = {node: group.servers[node] for node in NODES}
            await until(
                lambda: (
                    len({end_of(each) for each in ends.values()}) == 1
                    and end_of(ends[leader]) > 140_000
                )
            )
            assert len({log_of(each) for each in ends.values()}) == 1
        for node in NODES:
            assert await refused_bytes(group.ports[node], b"RPGROUP1") == b""
        assert "does not use TLS" in caplog.text
    finally:
        await group.stop()


async def test_a_broker_that_does_not_know_the_secret_cannot_join_a_group(tmp_path: Path) -> None:
    group = Group(tmp_path, **GUARDED | secret_key(tmp_path))
    await group.start(("n0", "n1"))
    group._settings = {**group._settings, **OTHER_SECRET}
    await group.start(("n2",))
    try:
        stranger = group.member("n2")
        await until(
            lambda: (
                len(stranger.links.problems) == 2
                and all("refuses the login" in each for each in stranger.links.problems.values())
            )
        )
        assert not stranger.links.incoming.connected
        assert "n2" not in group.member("n0").links.incoming.connected
        assert not await refused_bytes(group.ports["n0"], b"RPGROUP1" + bytes(4))
    finally:
        await group.stop()


@pytest.mark.parametrize("missing", ["innerClientAuthenticationCredentials", "authSecretKeyFile"])
async def test_a_member_with_access_control_needs_both_secrets(
    tmp_path: Path, missing: str
) -> None:
    """Without a key, users would be lost with the leader, or everybody could read them."""
    given = GUARDED | secret_key(tmp_path)
    del given[missing]
    with pytest.raises(ConfigError, match=missing):
        await Group(tmp_path, **given).start(("n0",))


async def test_a_proof_needs_its_challenge() -> None:
    """A caller that sends its proof first is not heard."""
    async with port(PeerSecurity(LOGIN)) as place:
        sock = place.call()
        await send_all(sock, encode_login(Proof(proof=b"p" * 32)))
        assert await receive(sock, 100) == b""
        sock.close()
