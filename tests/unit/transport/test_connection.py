"""Connections over real sockets on the loopback: pairing, batching, back-pressure, bad bytes."""

from __future__ import annotations

import asyncio
import gc
import logging
import struct
from collections.abc import AsyncIterator

import pytest

from rocketpost.codec.command import BINARY, Command, encode_command, encode_response
from rocketpost.errors import ConnectionLost, RequestTimeout
from rocketpost.kernel.client_sends import read_answers
from rocketpost.testing.waiting import settle, until
from rocketpost.transport.connection import Connection
from rocketpost.transport.connector import Connector, split_address
from rocketpost.transport.listener import Listener
from rocketpost.transport.room import Room

MIB = 1024 * 1024


def room_for(
    *, connections: int = 1000, partial_bytes: int = 1024 * MIB, unwritten_bytes: int = 1024 * MIB
) -> Room:
    return Room(
        connections_max=connections,
        partial_bytes_max=partial_bytes,
        unwritten_bytes_max=unwritten_bytes,
    )


class Echo:
    """A server that answers with the request's body, unless told to keep quiet."""

    def __init__(self) -> None:
        self.connections: list[Connection] = []
        self.lost: list[Connection] = []
        self.requests: list[Command] = []
        self.quiet = False

    def on_request(self, connection: Connection, command: Command) -> None:
        self.requests.append(command)
        if connection not in self.connections:
            self.connections.append(connection)
        if command.is_oneway or self.quiet:
            return
        head = encode_response(command, fields={"n": "1"}, body_bytes=len(command.body))
        connection.answer(head, command.body)


@pytest.fixture
def echo() -> Echo:
    return Echo()


@pytest.fixture
async def listener(echo: Echo) -> AsyncIterator[Listener]:
    listener = Listener(on_request=echo.on_request, on_lost=echo.lost.append)
    await listener.start("127.0.0.1", 0)
    yield listener
    await listener.stop()


@pytest.fixture
async def connector() -> AsyncIterator[Connector]:
    def refuse(connection: Connection, command: Command) -> None:
        connection.answer(encode_response(command, 3, remark="no"))

    connector = Connector(on_request=refuse)
    yield connector
    await connector.close()


async def connect(listener: Listener, connector: Connector) -> Connection:
    return await connector.connect(f"127.0.0.1:{listener.port}")


@pytest.mark.parametrize("encoding", [0, BINARY])
async def test_many_requests_on_one_connection(
    listener: Listener, connector: Connector, encoding: int
) -> None:
    connection = await connect(listener, connector)
    responses = await asyncio.gather(
        *[connection.request(10, body=b"%d" % n, timeout=5, encoding=encoding) for n in range(500)]
    )
    assert [r.body for r in responses] == [b"%d" % n for n in range(500)]
    assert {r.encoding for r in responses} == {encoding}
    assert await connect(listener, connector) is connection


async def test_a_server_asks_its_client_in_the_clients_encoding(
    listener: Listener, connector: Connector, echo: Echo
) -> None:
    connection = await connect(listener, connector)
    await connection.request(10, timeout=5, encoding=BINARY)
    (server_side,) = echo.connections
    response = await server_side.request(40, timeout=5)
    assert response.code == 3
    assert response.encoding == BINARY
    # POP's codes do not fit the binary header.
    response = await server_side.request(200050, timeout=5)
    assert response.encoding == 0


async def test_a_sender_encodes_requests_itself(
    listener: Listener, connector: Connector, echo: Echo
) -> None:
    connection = await connect(listener, connector)
    outcomes: list[object] = []

    def receive(sent: object, outcome: object) -> None:
        assert sent == "mine"
        outcomes.append(outcome)

    for body in (b"a", b"b", b"c"):
        opaque = connection.next_opaque()
        head = encode_command(7, opaque=opaque, body_bytes=len(body))
        connection.send_encoded(opaque, (receive, "mine"), head, body)
    assert connection.unanswered_count == 3
    connection.forget(opaque - 1)
    await connection.request(7, timeout=5)
    assert [outcome.body for outcome in outcomes if isinstance(outcome, Command)] == [b"a", b"c"]
    echo.quiet = True
    opaque = connection.next_opaque()
    head = encode_command(7, opaque=opaque)
    connection.send_encoded(opaque, (receive, "mine"), head, b"")
    connection.abort()
    await connection.wait_closed()
    assert isinstance(outcomes[-1], ConnectionLost)
    assert connection.next_opaque() == -1
    assert not connection.unanswered_count


STORED = {"msgId": "AB", "queueId": "0", "queueOffset": "7"}


class IdleTransport(asyncio.Transport):
    """An open transport to which nothing is written."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        return

    def is_closing(self) -> bool:
        return False


@pytest.mark.parametrize("cut", [1, 7, 100, 299, 300, 301, 5000])
async def test_plain_answers_are_passed_on_however_they_are_cut(cut: int) -> None:
    connection = Connection(on_request=lambda *_: None, read_answers=read_answers)
    connection.connection_made(IdleTransport())
    outcomes: list[object] = []
    opaques = [connection.next_opaque() for _ in range(8)]
    for opaque in opaques:
        connection._encoded[opaque] = list.append, outcomes
    others: list[object] = []
    connection._waiting[100] = others.append
    flag = 1
    answers = [encode_command(0, opaque=opaque, flag=flag, fields=STORED) for opaque in opaques]
    answers[3] = encode_command(14, opaque=opaques[3], flag=flag, remark="busy")
    answers.insert(5, encode_command(0, opaque=100, flag=flag, fields=STORED))
    answers.insert(6, encode_command(0, opaque=999, flag=flag, fields=STORED))  # late
    stream = b"".join(answers)
    for at in range(0, len(stream), cut):
        connection.data_received(stream[at : at + cut])
    found = [each.opaque if isinstance(each, Command) else each[0] for each in outcomes]  # type: ignore[index]
    assert found == opaques
    assert isinstance(outcomes[3], Command)
    assert all(isinstance(each, Command) for each in others)
    assert len(others) == 1
    assert not connection.unanswered_count
    assert connection.is_open


def sign(fields: object, body: object) -> dict[str, str]:
    return {}


async def test_only_unsigned_json_requests_may_be_encoded_by_their_sender() -> None:
    def ignore(connection: Connection, command: Command) -> None:
        return

    plain, signed = Connection(on_request=ignore), Connection(on_request=ignore, sign=sign)
    assert plain.next_opaque() == signed.next_opaque() == -1  # not connected
    for connection in (plain, signed):
        connection.connection_made(IdleTransport())
    assert plain.next_opaque() > 0
    assert signed.next_opaque() == -1
    plain.encoding = BINARY
    assert plain.next_opaque() == -1


async def test_oneway_gets_no_answer(listener: Listener, connector: Connector, echo: Echo) -> None:
    connection = await connect(listener, connector)
    connection.send_oneway(15, fields={"a": "b"}, body=[b"x", b"y"])
    await connection.request(10, timeout=5)
    assert [c.code for c in echo.requests] == [15, 10]
    assert echo.requests[0].body == b"xy"


async def test_no_answer_in_time(listener: Listener, connector: Connector, echo: Echo) -> None:
    echo.quiet = True
    connection = await connect(listener, connector)
    with pytest.raises(RequestTimeout, match=r"to SEND_MESSAGE in 0\.01 s") as error:
        await connection.request(10, timeout=0.01)
    assert error.value.request_code == 10
    echo.quiet = False
    assert (await connection.request(11, timeout=5)).body == b""


async def test_a_lost_connection_fails_whoever_waits(
    listener: Listener, connector: Connector, echo: Echo
) -> None:
    echo.quiet = True
    connection = await connect(listener, connector)
    waiting = asyncio.ensure_future(connection.request(10, timeout=5))
    while not echo.connections:
        await asyncio.sleep(0)
    echo.connections[0].abort()
    with pytest.raises(ConnectionLost, match="was lost"):
        await waiting
    with pytest.raises(ConnectionLost, match="closed"):
        await connection.request(10, timeout=5)
    with pytest.raises(ConnectionLost, match="closed"):
        connection.send_oneway(10)
    again = await connect(listener, connector)
    assert again is not connection
    assert echo.lost


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack(">iI", 2**31 - 1, 0),
        struct.pack(">iI", 6, 2) + b"[]",
        struct.pack(">iI", 6, 7 << 24 | 2) + b"{}",
        struct.pack(">iI", 6, 1 << 24 | 2) + b"\x00\x01",
    ],
)
async def test_bad_bytes_close_the_connection_and_name_the_peer(
    listener: Listener, connector: Connector, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    port = writer.get_extra_info("sockname")[1]
    with caplog.at_level(logging.WARNING):
        writer.write(data)
        async with asyncio.timeout(5):
            assert await reader.read() == b""
    writer.close()
    assert f"peer=127.0.0.1:{port}" in caplog.text
    good = await connect(listener, connector)
    assert (await good.request(10, timeout=5)).code == 0


async def test_a_peer_that_does_not_read_is_cut_off(echo: Echo) -> None:
    made: list[Connection] = []

    def make() -> Connection:
        return Connection(
            on_request=echo.on_request, on_made=made.append, write_bytes_max=8 * 1024 * 1024
        )

    loop = asyncio.get_running_loop()
    server = await loop.create_server(make, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
    while not made:
        await asyncio.sleep(0)
    block = bytes(1024 * 1024)
    async with asyncio.timeout(20):
        while made[0].is_open:
            made[0].send(block)
            await asyncio.sleep(0)
    await made[0].wait_closed()
    writer.close()
    server.close()
    await server.wait_closed()


async def test_unanswered_requests_stop_the_reading(echo: Echo) -> None:
    echo.quiet = True
    made: list[Connection] = []
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: Connection(on_request=echo.on_request, on_made=made.append, pending_max=3),
        "127.0.0.1",
        0,
    )
    port = server.sockets[0].getsockname()[1]
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    for n in range(5):
        writer.write(encode_command(10, opaque=n))
    await until(lambda: len(echo.requests) == 5)
    writer.write(encode_command(10, opaque=99))
    await writer.drain()
    await settle()
    assert len(echo.requests) == 5
    for command in list(echo.requests):
        made[0].answer(encode_response(command))
    await until(lambda: len(echo.requests) == 6)
    writer.close()
    made[0].abort()
    await made[0].wait_closed()
    server.close()
    await server.wait_closed()


async def test_idle_connections_are_closed(echo: Echo) -> None:
    listener = Listener(on_request=echo.on_request, idle_seconds=0.02)
    await listener.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    async with asyncio.timeout(5):
        assert await reader.read() == b""
    writer.close()
    await listener.stop()


async def test_nobody_there(connector: Connector, unused_tcp_port: int) -> None:
    with pytest.raises(ConnectionLost, match="cannot connect"):
        await connector.connect(f"127.0.0.1:{unused_tcp_port}")
    connector.drop(f"127.0.0.1:{unused_tcp_port}")


async def test_a_failure_that_nobody_waits_for_is_no_noise(
    connector: Connector, unused_tcp_port: int
) -> None:
    noise: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: noise.append(context))
    waiting = asyncio.ensure_future(connector.connect(f"127.0.0.1:{unused_tcp_port}"))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await connector.close()
    gc.collect()
    assert not noise


@pytest.mark.parametrize("address", ["", "host", "host:", "host:x", ":1", "host:0", "h:99999"])
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(ConnectionLost, match="is not host:port"):
        split_address(address)


@pytest.mark.parametrize("address", ["a..b:9876", f"{'a' * 64}.b:9876", ".a:1"])
def test_hosts_that_no_look_up_takes(address: str) -> None:
    with pytest.raises(ConnectionLost, match="no possible host name"):
        split_address(address)


def test_addresses() -> None:
    assert split_address(" a.b:9876") == ("a.b", 9876)
    assert split_address("[::1]:9876") == ("::1", 9876)


@pytest.mark.slow
async def test_small_requests_for_large_answers_wait_for_each_other(
    listener: Listener, echo: Echo
) -> None:
    # All arrive in one read; answering them at once would take 200 MB.
    answer = bytes(1024 * 1024)
    queued: list[int] = []

    def on_request(connection: Connection, command: Command) -> None:
        connection.answer(encode_response(command, body_bytes=len(answer)), answer)
        queued.append(connection._out_bytes)

    listener._on_request = on_request
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    writer.write(b"".join(encode_command(1, opaque=n) for n in range(200)))
    size = 0
    async with asyncio.timeout(20):
        while size < 200 * len(answer):
            size += len(await reader.read(1 << 20))
    assert len(queued) == 200
    assert max(queued) < 6 * 1024 * 1024
    writer.close()


async def test_postponed_requests_keep_their_order_and_later_ones_follow(
    listener: Listener, echo: Echo
) -> None:
    seen: list[int] = []

    def on_request(connection: Connection, command: Command) -> None:
        seen.append(command.opaque)
        body = bytes(3 * 1024 * 1024) if command.opaque < 10 else b""
        connection.answer(encode_response(command, body_bytes=len(body)), body)

    listener._on_request = on_request
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    for start in (0, 20, 40):
        frames = [encode_command(1, opaque=start + n) for n in range(20)]
        writer.write(b"".join(frames))
        await writer.drain()
        await settle()
    wanted = 60 * len(encode_response(Command(opaque=1))) + 10 * 3 * 1024 * 1024 - 1000
    size = 0
    async with asyncio.timeout(20):
        while size < wanted:
            size += len(await reader.read(1 << 20))
    assert seen == list(range(60))
    writer.close()


async def test_unfinished_frames_of_all_peers_together_are_bounded(
    echo: Echo, caplog: pytest.LogCaptureFixture
) -> None:
    room = room_for(partial_bytes=MIB)
    listener = Listener(on_request=echo.on_request, room=room)
    await listener.start("127.0.0.1", 0)
    half = struct.pack(">iI", 8 * 1024 * 1024, 2) + bytes(400 * 1024)
    peers = []
    async with asyncio.timeout(5):
        for _ in range(4):
            peers.append(await asyncio.open_connection("127.0.0.1", listener.port))
            peers[-1][1].write(half)
            await peers[-1][1].drain()
        await until(lambda: len(listener.connections) <= 2)
    assert room.partial_bytes <= MIB
    assert "unfinished frames take" in caplog.text
    for _, writer in peers:
        writer.close()
    await until(lambda: not listener.connections)
    assert room.partial_bytes == 0
    await listener.stop()


async def test_connections_beyond_the_bound_are_refused_whatever_their_port(
    echo: Echo, caplog: pytest.LogCaptureFixture
) -> None:
    room = room_for(connections=2)
    listeners = [Listener(on_request=echo.on_request, room=room) for _ in range(2)]
    for listener in listeners:
        await listener.start("127.0.0.1", 0)
    ports = [listeners[0].port, listeners[1].port, listeners[1].port]
    peers = [await asyncio.open_connection("127.0.0.1", port) for port in ports]
    await until(lambda: sum(len(listener.connections) for listener in listeners) == 2)
    assert "connection refused: peer=127.0.0.1:" in caplog.text
    for _, writer in peers:
        writer.close()
    for listener in listeners:
        await listener.stop()
    assert room.connections == 0


@pytest.mark.slow
async def test_unread_bytes_of_all_peers_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    answer = bytes(8 * MIB)

    def on_request(connection: Connection, command: Command) -> None:
        connection.answer(encode_response(command, body_bytes=len(answer)), answer)

    room = room_for(unwritten_bytes=24 * MIB)
    listener = Listener(on_request=on_request, room=room)
    await listener.start("127.0.0.1", 0)
    peers = [await asyncio.open_connection("127.0.0.1", listener.port) for _ in range(6)]
    for _, writer in peers:
        # One answer fills the socket, the next shows that nobody reads.
        writer.write(b"".join(encode_command(1, opaque=n) for n in range(4)))
        await writer.drain()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
    await until(lambda: len(listener.connections) < 6)
    assert room.unwritten_bytes <= 24 * MIB
    assert "bytes wait for all" in caplog.text
    for _, writer in peers:
        writer.transport.abort()
    await until(lambda: not listener.connections)
    assert room.unwritten_bytes == 0
    await listener.stop()
