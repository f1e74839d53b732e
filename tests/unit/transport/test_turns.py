"""Turns of the loop: work left over is taken up later, round robin, with others in between."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable, Generator

import pytest

from rocketpost.codec.command import Command, encode_command, encode_response
from rocketpost.testing.waiting import settle, until
from rocketpost.transport import turns as turns_module
from rocketpost.transport.connection import Connection
from rocketpost.transport.connector import Connector
from rocketpost.transport.listener import Listener
from rocketpost.transport.room import Room
from rocketpost.transport.turns import SlicedWork, Turns, advance

SLOW, STEPPED, ENDS_TURN = 2, 3, 4


class Server:
    """Notes what it serves; each request takes longer than a turn may."""

    def __init__(self) -> None:
        self.served: list[tuple[Connection, int]] = []

    def on_request(self, connection: Connection, command: Command) -> None:
        if command.code == STEPPED:
            connection.work(self.steps(connection, command))
        else:
            if command.code == SLOW:
                busy_for(turns_module.BUDGET_SECONDS * 1.2)
            self.answer(connection, command)

    def steps(self, connection: Connection, command: Command) -> Generator[None, None, None]:
        for _ in range(20):
            busy_for(turns_module.BUDGET_SECONDS / 5)
            yield
        self.answer(connection, command)

    def answer(self, connection: Connection, command: Command) -> None:
        self.served.append((connection, command.opaque))
        if command.code == ENDS_TURN:
            connection.end_turn()
        if not command.is_oneway:
            connection.answer(encode_response(command))


def busy_for(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
async def listener(server: Server) -> AsyncIterator[Listener]:
    listener = Listener(on_request=server.on_request)
    await listener.start("127.0.0.1", 0)
    yield listener
    await listener.stop()


@pytest.fixture
async def connector() -> AsyncIterator[Connector]:
    connector = Connector(on_request=lambda connection, command: None)
    yield connector
    await connector.close()


@pytest.mark.parametrize("code", [SLOW, STEPPED])
async def test_a_small_request_is_served_amid_many_long_ones(
    listener: Listener, connector: Connector, server: Server, code: int
) -> None:
    greedy = Connector(on_request=lambda connection, command: None)
    try:
        much = await greedy.connect(f"127.0.0.1:{listener.port}")
        little = await connector.connect(f"127.0.0.1:{listener.port}")
        answers = [much.start_request(code) for _ in range(30)]
        await asyncio.sleep(0)
        for _ in range(3):
            await little.request(7, timeout=20)
        assert not all(answer.done() for answer in answers)
        assert sum(answer.done() for answer in answers) < 20
        await asyncio.gather(*answers)
    finally:
        await greedy.close()
    assert len(server.served) == 33


@pytest.mark.parametrize("code", [SLOW, STEPPED])
async def test_requests_of_one_connection_keep_their_order(
    listener: Listener, connector: Connector, server: Server, code: int
) -> None:
    connection = await connector.connect(f"127.0.0.1:{listener.port}")
    answers = [connection.start_request(code if n % 3 == 0 else 7) for n in range(20)]
    await asyncio.gather(*answers)
    opaques = [opaque for _, opaque in server.served]
    assert opaques == sorted(opaques)


async def test_work_started_by_a_request_runs_before_the_next_is_served(
    listener: Listener, connector: Connector, server: Server
) -> None:
    connection = await connector.connect(f"127.0.0.1:{listener.port}")
    answers = [connection.start_request(ENDS_TURN) for _ in range(5)]
    counts = []
    while len(server.served) < 5:
        await asyncio.sleep(0)
        counts.append(len(server.served))
    assert sorted({*counts} - {0}) == [1, 2, 3, 4, 5]
    await asyncio.gather(*answers)


async def test_requests_without_an_answer_are_served_although_the_peer_hangs_up(
    listener: Listener, server: Server
) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    for opaque in range(20):
        writer.write(encode_command(SLOW, opaque=opaque, flag=2))
    writer.close()
    await writer.wait_closed()
    await until(lambda: len(server.served) == 20)
    assert [opaque for _, opaque in server.served] == list(range(20))


def reset(sock: socket.socket) -> None:
    """Close at once, as a peer does that has not read all its answers."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


async def test_requests_without_an_answer_are_served_although_the_peer_takes_none(
    listener: Listener, server: Server
) -> None:
    sock = socket.create_connection(("127.0.0.1", listener.port))
    wants_answer = encode_command(SLOW, opaque=0)
    sock.sendall(
        wants_answer + b"".join(encode_command(SLOW, opaque=at, flag=2) for at in range(1, 10))
    )
    reset(sock)
    await until(lambda: len(server.served) == 10)
    assert [opaque for _, opaque in server.served] == list(range(10))
    await until(lambda: not listener.connections)


async def test_a_connection_is_reported_lost_when_its_last_request_is_served(
    server: Server,
) -> None:
    lost: list[Connection] = []
    room = Room(connections_max=1, partial_bytes_max=10_000, unwritten_bytes_max=10_000)
    connection = Connection(on_request=server.on_request, on_lost=lost.append, room=room)
    near, far = socket.socketpair()
    near.setblocking(False)
    connection.connection_made(SocketTransport(near))
    far.sendall(b"".join(encode_command(SLOW, opaque=at, flag=2) for at in range(3)))
    far.sendall(encode_command(SLOW, opaque=3))  # nobody is left to take its answer
    connection.connection_lost(ConnectionResetError())  # before anything was read
    near.close()
    far.close()
    assert not lost
    assert room.partial_bytes > 0
    async with asyncio.timeout(20):
        await connection.wait_closed()
    assert [opaque for _, opaque in server.served] == [0, 1, 2]
    assert lost == [connection]
    assert room.partial_bytes == 0


@pytest.mark.parametrize("end", [Connection.abort, Connection.close])
async def test_a_lost_connection_that_is_given_up_serves_nothing_more(
    server: Server, end: Callable[[Connection], None]
) -> None:
    lost: list[Connection] = []
    room = Room(connections_max=1, partial_bytes_max=10_000, unwritten_bytes_max=10_000)
    connection = Connection(on_request=server.on_request, on_lost=lost.append, room=room)
    connection.connection_made(SocketTransport(None))
    connection.data_received(b"".join(encode_command(SLOW, opaque=at, flag=2) for at in range(3)))
    connection.connection_lost(None)
    end(connection)
    assert lost == [connection]
    await settle()
    assert [opaque for _, opaque in server.served] == [0]


class SocketTransport(asyncio.Transport):
    """The transport of a socket that nobody reads."""

    def __init__(self, sock: socket.socket | None) -> None:
        super().__init__({"socket": sock, "peername": ("127.0.0.1", 1)})

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Accept any limits."""

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        """Read nothing, as before."""


async def test_a_listener_that_stops_serves_nothing_more(
    listener: Listener, connector: Connector, server: Server
) -> None:
    connection = await connector.connect(f"127.0.0.1:{listener.port}")
    answers = [connection.start_request(SLOW) for _ in range(50)]
    await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED)
    await listener.stop()
    count = len(server.served)
    results = await asyncio.gather(*answers, return_exceptions=True)
    assert sum(isinstance(each, Command) for each in results) <= count < 50
    await settle()
    assert len(server.served) == count


async def test_work_goes_round_and_each_gets_its_turn() -> None:
    turns, done = Turns(), list[str]()

    def steps(name: str) -> Generator[None, None, None]:
        for _ in range(3):
            busy_for(turns_module.BUDGET_SECONDS * 1.1)
            done.append(name)
            yield

    for name in "ab":
        turns.add(SlicedWork(steps(name), turns))
    while len(turns) or len(done) < 6:
        await asyncio.sleep(0)
    assert done == ["a", "b"] * 3


def test_steps_continue_until_the_deadline() -> None:
    def steps() -> Generator[None, None, None]:
        yield
        yield

    long = steps()
    assert not advance(long, deadline=0)
    assert advance(long, deadline=float("inf"))
