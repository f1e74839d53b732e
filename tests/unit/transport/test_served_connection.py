from __future__ import annotations

import asyncio
import struct
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpost.codec.command import ONEWAY, Command, encode_command
from rocketpost.transport import served_connection
from rocketpost.transport.connection import Connection
from rocketpost.transport.express import Data
from rocketpost.transport.listener import Listener
from rocketpost.transport.served_connection import FRONT_BYTES_MAX, Inbox, ServedConnection

TAKEN, SERVED = 310, 11


def request(code: int, number: int, body: bytes) -> bytes:
    head = encode_command(code, opaque=number, flag=ONEWAY, body_bytes=len(body))
    return head + body


class Server:
    """Two connections with one inbox; notes what each got, by what way, in its order."""

    def __init__(self, inbox: Inbox) -> None:
        self.inbox = inbox
        self.got: dict[Connection, list[tuple[str, bytes]]] = {}
        self.offered: list[int] = []
        self.connections = [self._connect(), self._connect()]

    def _connect(self) -> ServedConnection:
        connection = ServedConnection(inbox=self.inbox, express=self.take, on_request=self.serve)
        self.got[connection] = []
        return connection

    def take(self, connection: Connection, data: Data, at: int, end: int) -> int:
        self.offered.append(end - at)
        while end - at >= 8:
            length, mark = struct.unpack_from(">iI", data, at)
            if at + 4 + length > end or b'"code":310' not in data[at + 8 : at + 8 + mark]:
                break
            self.got[connection].append(("taken", bytes(data[at + 8 + mark : at + 4 + length])))
            at += 4 + length
        return at

    def serve(self, connection: Connection, command: Command) -> None:
        self.got[connection].append(("served", command.body))

    def read(self, connection: ServedConnection, data: bytes) -> None:
        """Let bytes arrive as by one read, then let somebody else use the inbox."""
        room = connection.get_buffer(-1)
        size = min(len(room), len(data))
        room[:size] = data[:size]
        connection.buffer_updated(size)
        self.inbox.view[:] = b"\xff" * len(self.inbox.view)
        if size < len(data):
            self.read(connection, data[size:])


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


@given(
    streams=st.lists(
        st.lists(st.tuples(st.sampled_from([TAKEN, SERVED]), st.integers(0, 300)), max_size=8),
        min_size=2,
        max_size=2,
    ),
    sizes=st.lists(st.integers(1, 700), min_size=1, max_size=20),
    front_max=st.sampled_from([0, 20, 250, FRONT_BYTES_MAX]),
)
def test_requests_are_whole_and_in_order_however_reads_alternate(
    streams: list[list[tuple[int, int]]], sizes: list[int], front_max: int
) -> None:
    async def check() -> None:
        server = Server(Inbox(600))
        bodies = [[bytes([i]) * size for i, (_, size) in enumerate(each)] for each in streams]
        left = [
            b"".join(
                request(code, i, body)
                for i, ((code, _), body) in enumerate(zip(each, texts, strict=True))
            )
            for each, texts in zip(streams, bodies, strict=True)
        ]
        turn = 0
        while any(left):
            which, size = turn % 2, sizes[turn % len(sizes)]
            if left[which]:
                server.read(server.connections[which], left[which][:size])
                left[which] = left[which][size:]
            turn += 1
        for connection, each, texts in zip(server.connections, streams, bodies, strict=True):
            assert [body for _, body in server.got[connection]] == texts
            for (way, _), (code, _) in zip(server.got[connection], each, strict=True):
                assert way == "served" or code == TAKEN
            assert not connection._decoder.held

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(served_connection, "FRONT_BYTES_MAX", min(front_max, 500))
        run(check())


def test_a_frame_in_two_reads_is_offered_once_with_what_follows() -> None:
    async def check() -> None:
        server = Server(Inbox())
        connection = server.connections[0]
        stream = request(TAKEN, 1, b"one") + request(TAKEN, 2, b"two")
        server.read(connection, stream[:50])
        server.read(connection, stream[50:])
        assert server.got[connection] == [("taken", b"one"), ("taken", b"two")]
        assert server.offered == [50, len(stream)]

    run(check())


def test_a_frame_larger_than_the_inbox_is_served() -> None:
    async def check() -> None:
        server = Server(Inbox(FRONT_BYTES_MAX + 1000))
        connection = server.connections[0]
        body = bytes(range(256)) * 400
        server.read(connection, request(TAKEN, 1, body) + request(TAKEN, 2, b"after"))
        assert server.got[connection] == [("taken", body), ("taken", b"after")]

    run(check())


@pytest.mark.parametrize("with_uvloop", [False, True])
def test_both_event_loops_read_into_the_inbox(with_uvloop: bool) -> None:
    taken: list[bytes] = []
    served: list[bytes] = []

    def take(connection: Connection, data: Data, at: int, end: int) -> int:
        if end == at or b"x" not in data[at:end]:
            return at
        assert isinstance(data, bytearray)
        taken.append(bytes(data[at:end]))
        return end

    async def check() -> None:
        listener = Listener(
            on_request=lambda connection, command: served.append(command.body), express=take
        )
        await listener.start("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(request(SERVED, 1, b"y"))
        while not served:
            await asyncio.sleep(0)
        writer.write(request(TAKEN, 1, b"x"))
        while not taken:
            await asyncio.sleep(0)
        writer.close()
        assert await reader.read() == b""
        await listener.stop()

    if with_uvloop:
        uvloop = pytest.importorskip("uvloop")
        uvloop.run(check())
    else:
        run(check())
    assert served == [b"y"]
    assert taken == [request(TAKEN, 1, b"x")]
