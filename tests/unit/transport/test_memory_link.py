from __future__ import annotations

import asyncio

import pytest

from rocketpost.codec.command import Command, decode_commands, encode_response
from rocketpost.codec.frames import FrameDecoder
from rocketpost.errors import ConnectionLost, NotConnected
from rocketpost.testing.waiting import settle, until
from rocketpost.transport.connection import WRITE_BYTES_HIGH, Connection
from rocketpost.transport.listener import Listener


class Server:
    """A server that answers with the body that it got, unless told to wait."""

    def __init__(self) -> None:
        self.served: list[tuple[Connection, Command]] = []
        self.lost: list[Connection] = []
        self.listener = Listener(on_request=self.serve, on_lost=self.lost.append)
        self.answers = True

    def serve(self, connection: Connection, command: Command) -> None:
        self.served.append((connection, command))
        if self.answers:
            head = encode_response(command, body_bytes=len(command.body))
            connection.answer(head, command.body)


@pytest.fixture
async def server() -> Server:
    made = Server()
    await made.listener.bind("127.0.0.1", 0)
    return made


def connect(server: Server, seen: list[int] | None = None) -> Connection:
    return server.listener.link(
        client=("192.0.2.7", 4000),
        on_request=lambda connection, command: None,
        sees=lambda command: None if seen is None else seen.append(command.code),
    )


async def test_requests_are_answered_without_a_socket(server: Server) -> None:
    seen: list[int] = []
    link = connect(server, seen)
    answer = await link.request(10, fields={"a": "b"}, body=b"body", timeout=1)
    assert answer.body == b"body"
    connection, command = server.served[0]
    assert command.fields == {"a": "b"}
    assert connection.peer_text == "192.0.2.7:4000"
    assert connection.is_trusted
    assert not link.is_trusted
    assert seen == [10]
    await server.listener.stop()


async def test_requests_of_one_turn_are_served_in_order(server: Server) -> None:
    link = connect(server)
    bodies = [b"%d" % number for number in range(100)]
    answers = await asyncio.gather(*(link.request(1, body=body, timeout=1) for body in bodies))
    assert [answer.body for answer in answers] == bodies
    assert [command.body for _, command in server.served] == bodies
    await server.listener.stop()


async def test_requests_can_be_taken_before_they_are_decoded() -> None:
    taken: list[bytes] = []

    def take(connection: Connection, data: bytes | bytearray, at: int, end: int) -> int:
        if b"plain" not in data[at:end]:
            return at
        taken.append(bytes(data[at:end]))
        connection.expect_answers(1)
        (command,) = decode_commands(FrameDecoder().feed(data[at:end]))
        connection.answer_at_once(encode_response(command), 1)
        return end

    server = Server()
    server.listener = Listener(on_request=server.serve, on_lost=server.lost.append, express=take)
    await server.listener.bind("127.0.0.1", 0)
    link = connect(server)
    await link.request(10, body=b"plain", timeout=1)
    answer = await link.request(10, body=b"other", timeout=1)
    assert answer.body == b"other"
    assert len(taken) == 1
    assert [command.body for _, command in server.served] == [b"other"]
    await server.listener.stop()


async def test_the_server_learns_that_its_client_left(server: Server) -> None:
    server.answers = False
    link = connect(server)
    waiting = asyncio.ensure_future(link.request(1, timeout=9))
    await settle()
    link.close()
    with pytest.raises(ConnectionLost):
        await waiting
    await until(lambda: bool(server.lost))
    assert server.lost == [server.served[0][0]]
    with pytest.raises(NotConnected):
        await link.request(1, timeout=1)
    await server.listener.stop()


async def test_the_client_learns_that_the_server_closed(server: Server) -> None:
    link = connect(server)
    await link.request(1, timeout=1)
    server.served[0][0].abort()
    await link.wait_closed()
    assert not link.is_open
    await server.listener.stop()


async def test_a_last_request_reaches_the_server_before_the_end(server: Server) -> None:
    link = connect(server)
    link.send_oneway(35, body=b"leave")
    link.close()
    await until(lambda: bool(server.lost))
    assert [command.body for _, command in server.served] == [b"leave"]
    await server.listener.stop()


async def test_a_large_answer_pauses_the_server_until_it_is_taken(server: Server) -> None:
    link = connect(server)
    body = bytes(WRITE_BYTES_HIGH + 1)
    first, second = await asyncio.gather(
        link.request(1, body=body, timeout=5), link.request(2, body=body, timeout=5)
    )
    assert len(first.body) == len(second.body) == len(body)
    assert server.served[0][0].is_writable
    await server.listener.stop()
