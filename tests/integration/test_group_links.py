"""Links between members of a group, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator

import pytest

from rocketpost.codec.group.frames import RaftDecoder, RaftEncoder
from rocketpost.codec.group.hello import Hello, encode_hello
from rocketpost.errors import ConfigError, ReplicationError
from rocketpost.raft.messages import Append, Message, PreVote, TermSpan, TimeoutNow
from rocketpost.server.group import incoming, outgoing
from rocketpost.server.group.incoming import IncomingLinks
from rocketpost.server.group.link_values import Framing, Protection, Seat
from rocketpost.server.group.outgoing import OutgoingLink
from rocketpost.testing.waiting import settle, until

FRAMING = Framing(RaftEncoder("g").encode, lambda: RaftDecoder("g"))
SETTINGS = {"mappedFileSizeCommitLog": "1048576"}


def append_of(log: memoryview) -> Append:
    return Append(1, 0, 0, len(log), (TermSpan(1, 0),))


class Receiver:
    """The member n0, which listens; writes down what it hears."""

    def __init__(
        self, settings: dict[str, str] | None = None, protection: Protection | None = None
    ) -> None:
        self.heard: list[tuple[str, Message, bytes]] = []
        self.hellos: list[tuple[str, str]] = []
        self.failing: Exception | None = None
        self.links = IncomingLinks(
            seat=Seat("g", "n0", settings or SETTINGS, "10.0.0.1:10911"),
            peers=["n1", "n2"],
            framing=FRAMING,
            on_message=self.hear,
            on_hello=lambda hello: self.hellos.append((hello.sender, hello.address)),
            protection=protection or Protection.of_group("g"),
        )

    def hear(self, peer: str, message: Message, body: bytes) -> None:
        if self.failing is not None:
            raise self.failing
        self.heard.append((peer, message, body))

    async def start(self, port: int = 0) -> str:
        await self.links.start("127.0.0.1", port)
        return f"127.0.0.1:{self.links.port}"


class Sender:
    """A member that dials n0; writes down when the link comes and goes."""

    def __init__(
        self,
        address: str,
        *,
        node: str = "n1",
        group: str = "g",
        protection: Protection | None = None,
    ) -> None:
        self.told: list[str] = []
        self.link = OutgoingLink(
            "n0",
            address,
            seat=Seat(group, node, SETTINGS, "10.0.0.2:10911"),
            framing=FRAMING,
            on_up=lambda peer, answer: self.told.append(f"up {peer} {answer.address}"),
            on_down=lambda peer: self.told.append(f"down {peer}"),
            protection=protection or Protection.of_group("g"),
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[OutgoingLink]:
        task = asyncio.create_task(self.link.run())
        try:
            yield self.link
        finally:
            task.cancel()
            await asyncio.wait((task,))
            assert not self.link.is_up


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(outgoing, "BACKOFF_SECONDS", 0.02)


async def test_messages_and_bytes_of_the_log_arrive_in_order() -> None:
    receiver = Receiver()
    sender = Sender(await receiver.start())
    log = memoryview(bytes(range(256)) * 20_000)
    async with sender.running() as link:
        await until(lambda: link.is_up)
        assert receiver.links.connected == {"n1"}
        assert link.send(PreVote(1, 0, 0))
        assert link.send(append_of(log), log)
        assert link.send(TimeoutNow(1))
        assert link.room < outgoing.UNSENT_BYTES_MAX - len(log)
        await until(lambda: len(receiver.heard) == 3)
        assert receiver.heard == [
            ("n1", PreVote(1, 0, 0), b""),
            ("n1", append_of(log), log),
            ("n1", TimeoutNow(1), b""),
        ]
        assert link.room == outgoing.UNSENT_BYTES_MAX
    assert sender.told == ["up n0 10.0.0.1:10911", "down n0"]
    assert receiver.hellos == [("n1", "10.0.0.2:10911")]
    await until(lambda: not receiver.links.connected)
    receiver.links.close()


async def test_a_message_that_arrives_slowly_is_read_at_ticks() -> None:
    """The rest of a message wakes the loop when it is complete; until then ticks read it."""
    receiver = Receiver()
    await receiver.start()
    log = memoryview(bytes(100_000))
    message = append_of(log)
    with socket.create_connection(("127.0.0.1", receiver.links.port)) as sock:
        sock.sendall(encode_hello(Hello(group="g", sender="n1", receiver="n0", settings=SETTINGS)))
        await until(lambda: receiver.links.connected == {"n1"})
        sock.sendall(FRAMING.encode(message, len(log)) + log[:10])
        (link,) = receiver.links._links
        await until(lambda: link._decoder.missing == len(log) - 10)
        sock.sendall(log[10:50_000])
        await settle()
        assert link._decoder.missing == len(log) - 10, "it wakes nobody"
        receiver.links.read_slow()
        assert link._decoder.missing == len(log) - 50_000
        sock.sendall(log[50_000:])
        await until(lambda: len(receiver.heard) == 1)
        assert receiver.heard == [("n1", message, log)]
        sock.sendall(FRAMING.encode(TimeoutNow(1), 0))
        await until(lambda: len(receiver.heard) == 2)
    receiver.links.close()


async def test_a_link_comes_back_and_one_outage_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    receiver = Receiver()
    address = await receiver.start()
    port = receiver.links.port
    sender = Sender(address)
    async with sender.running() as link:
        await until(lambda: link.is_up)
        receiver.links.close()
        await until(lambda: not link.is_up)
        assert not link.send(TimeoutNow(1)), "nothing is kept for later"
        assert link.room == 0
        await until(lambda: "Connection refused" in link.problem)
        await asyncio.sleep(0.1)  # several attempts
        receiver = Receiver()
        await receiver.start(port)
        await until(lambda: link.is_up)
        assert link.problem == ""
        link.send(TimeoutNow(2))
        await until(lambda: receiver.heard)
    assert sender.told == ["up n0 10.0.0.1:10911", "down n0"] * 2
    problems = [each.getMessage() for each in caplog.records if each.levelno > logging.INFO]
    assert len([each for each in problems if "Connection refused" in each]) == 1
    receiver.links.close()


@pytest.mark.parametrize(
    ("node", "group", "reason"),
    [
        ("n9", "g", "'n9' is not a peer of member n0"),
        ("n1", "h", "belongs to the group 'g', not to 'h'"),
    ],
)
async def test_a_refusal_is_said_on_both_sides_once(
    node: str, group: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    receiver = Receiver()
    sender = Sender(await receiver.start(), node=node, group=group)
    async with sender.running() as link:
        await until(lambda: reason in link.problem)
        await asyncio.sleep(0.1)
        assert sender.told == []
    said = [each.getMessage() for each in caplog.records if reason in each.getMessage()]
    assert len(said) == 2
    assert any("is closed" in each for each in said)
    assert any("refuses this member" in each for each in said)
    receiver.links.close()


async def test_other_settings_are_named() -> None:
    receiver = Receiver({"mappedFileSizeCommitLog": "1073741824"})
    sender = Sender(await receiver.start())
    async with sender.running() as link:
        await until(lambda: "mappedFileSizeCommitLog is 1048576 on n1" in link.problem)
    receiver.links.close()


async def test_a_dledger_peer_is_refused_with_a_clear_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    receiver = Receiver()
    await receiver.start()
    loop = asyncio.get_running_loop()
    with socket.socket() as sock:
        sock.setblocking(False)
        await loop.sock_connect(sock, ("127.0.0.1", receiver.links.port))
        await loop.sock_sendall(sock, b'\0\0\1\x35\0\0\0\x6f{"code":51002}')
        assert await loop.sock_recv(sock, 100) == b""
    assert "as a DLedger peer or a client does" in caplog.text
    receiver.links.close()


async def test_a_silent_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming, "HELLO_SECONDS", 0.02)
    receiver = Receiver()
    await receiver.start()
    loop = asyncio.get_running_loop()
    with socket.socket() as sock:
        sock.setblocking(False)
        await loop.sock_connect(sock, ("127.0.0.1", receiver.links.port))
        assert await loop.sock_recv(sock, 100) == b""
    receiver.links.close()


async def test_a_message_that_cannot_be_true_ends_the_connection() -> None:
    receiver = Receiver()
    sender = Sender(await receiver.start())
    async with sender.running() as link:
        await until(lambda: link.is_up)
        receiver.failing = ReplicationError("two leaders in one term")
        link.send(TimeoutNow(1))
        await until(lambda: "down n0" in sender.told)
        receiver.failing = None
        await until(lambda: sender.told.count("up n0 10.0.0.1:10911") == 2)
        assert receiver.heard == []
    receiver.links.close()


async def test_a_second_connection_of_a_peer_replaces_the_first() -> None:
    receiver = Receiver()
    address = await receiver.start()
    first, second = Sender(address), Sender(address)
    async with first.running() as one:
        await until(lambda: one.is_up)
        async with second.running() as other:
            await until(lambda: "down n0" in first.told)
            await until(lambda: other.is_up)
    receiver.links.close()


async def test_a_peer_that_does_not_read_gets_a_bounded_number_of_bytes() -> None:
    receiver = Receiver()
    sender = Sender(await receiver.start())
    async with sender.running() as link:
        await until(lambda: link.is_up)
        log = memoryview(bytes(1024 * 1024))
        while link.send(append_of(log), log):  # the loop does not turn: nobody reads
            assert link.room <= outgoing.UNSENT_BYTES_MAX
        assert link.room < len(log)
        assert link.send(TimeoutNow(1)), "small messages find room longer"
        link.drop_log_bytes()
        await until(lambda: sender.told[1:] == ["down n0", "up n0 10.0.0.1:10911"])
        link.drop_log_bytes()
        assert link.is_up, "there was nothing to drop"
    receiver.links.close()


async def test_a_port_that_is_taken_is_named() -> None:
    receiver, other = Receiver(), Receiver()
    await receiver.start()
    with pytest.raises(ConfigError, match="dLegerPeers"):
        await other.start(receiver.links.port)
    receiver.links.close()
