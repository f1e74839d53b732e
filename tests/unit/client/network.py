"""A network in memory: real connections and codecs, no sockets.

``FakeNetwork`` serves addresses with plain functions; ``FakeConnector`` is the transport's
connector with the one method replaced that opens a socket.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from rocketpost.codec.command import Command, encode_response
from rocketpost.errors import NotConnected
from rocketpost.transport.connection import Connection
from rocketpost.transport.connector import Connector


@dataclass
class Answer:
    code: int = 0
    fields: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    remark: str | None = None


Serve = Callable[[Command], "Answer | asyncio.Future[Answer] | None"]
"""Answers a request, now or later; None means never."""


class PipeTransport(asyncio.Transport):
    """One end of a pipe; what is written arrives at the other end in the next turn of the loop."""

    def __init__(self, port: int) -> None:
        super().__init__({"peername": ("127.0.0.1", port), "sockname": ("127.0.0.1", 1)})
        self.far: asyncio.Protocol | None = None
        self.near: asyncio.Protocol | None = None
        self.partner: PipeTransport | None = None
        self._closing = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        return

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._closing:
            asyncio.get_running_loop().call_soon(self._arrive, bytes(data))

    def writelines(self, list_of_data) -> None:  # type: ignore[no-untyped-def]
        self.write(b"".join(list_of_data))

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        loop = asyncio.get_running_loop()
        assert self.near is not None
        assert self.partner is not None
        loop.call_soon(self.near.connection_lost, None)
        loop.call_soon(self.partner.close)

    abort = close

    def pause_reading(self) -> None:
        return

    def resume_reading(self) -> None:
        return

    def _arrive(self, data: bytes) -> None:
        assert self.far is not None
        self.far.data_received(data)


def respond(connection: Connection, command: Command, answer: Answer) -> None:
    head = encode_response(
        command,
        answer.code,
        remark=answer.remark,
        fields=answer.fields,
        body_bytes=len(answer.body),
    )
    connection.answer(head, answer.body)


class FakeNetwork:
    """Addresses and who serves them; an address without a server refuses connections."""

    def __init__(self) -> None:
        self.servers: dict[str, Serve] = {}
        self.requests: list[tuple[str, Command]] = []
        self.links: dict[str, list[Connection]] = {}
        self.vanished: set[str] = set()
        """Addresses that neither accept nor refuse connections."""

    def connector(self, **options: object) -> FakeConnector:
        return FakeConnector(self, **options)

    def sent(self, code: int, address: str | None = None) -> list[Command]:
        """Return the requests of one code that servers have seen."""
        return [c for a, c in self.requests if c.code == code and address in (None, a)]

    def cut(self, address: str) -> None:
        """Break every connection to ``address`` and refuse new ones."""
        self.servers.pop(address, None)
        for server_end in self.links.pop(address, []):
            server_end.abort()

    def pipe(self, address: str, client_end: Connection) -> None:
        port = int(address.rpartition(":")[2])
        near, far = PipeTransport(port), PipeTransport(port)

        def serve(connection: Connection, command: Command) -> None:
            self.requests.append((address, command))
            handler = self.servers.get(address)
            answer = handler(command) if handler else None
            if command.is_oneway:
                return
            if answer is None:
                connection.no_answer()
            elif isinstance(answer, Answer):
                respond(connection, command, answer)
            else:
                answer.add_done_callback(lambda done: late(connection, command, done))

        def late(connection: Connection, command: Command, done: asyncio.Future[Answer]) -> None:
            if not done.cancelled() and connection.is_open:
                respond(connection, command, done.result())

        server_end = Connection(on_request=serve)
        near.near, near.far, near.partner = client_end, server_end, far
        far.near, far.far, far.partner = server_end, client_end, near
        client_end.connection_made(near)
        server_end.connection_made(far)
        self.links.setdefault(address, []).append(server_end)


class FakeConnector(Connector):
    def __init__(self, network: FakeNetwork, **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self._network = network

    async def _make(self, address: str) -> Connection:
        await asyncio.sleep(0)
        if address in self._network.vanished:
            nothing = asyncio.get_running_loop().create_future()
            await asyncio.wait([nothing], timeout=self._connect_seconds)
            raise NotConnected(f"cannot connect to {address} in {self._connect_seconds:g} s")
        if address not in self._network.servers:
            raise NotConnected(f"cannot connect to {address}")
        connection = Connection(
            on_request=self._on_request,
            on_lost=lambda lost: self._on_lost_connection(address, lost),
            sign=self._sign,
            read_answers=self._read_answers,
        )
        self._network.pipe(address, connection)
        self.connections[address] = connection
        if self._on_made is not None:
            self._on_made(address, connection)
        return connection
