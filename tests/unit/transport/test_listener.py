from __future__ import annotations

import asyncio
import errno
import socket

import pytest

from rocketpost.testing.waiting import until
from rocketpost.transport.listener import Listener, bind_problem


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.EADDRINUSE, "in use"), "is another server running there?"),
        (OSError(errno.EADDRNOTAVAIL, "no"), "this machine does not have that address"),
        (socket.gaierror(-2, "Name or service not known"), "set bindAddress"),
        (OSError(errno.EACCES, "denied"), "ports below 1024 need privileges"),
        (OSError(errno.EMFILE, "Too many open files"), "Too many open files"),
    ],
)
def test_only_an_address_in_use_hints_at_another_server(error: OSError, said: str) -> None:
    reason = bind_problem(error)
    assert said in reason
    assert ("another server" in reason) == (error.errno == errno.EADDRINUSE)


async def test_a_port_that_the_kernel_chose_is_not_shared_before_it_listens() -> None:
    listener = Listener(on_request=lambda connection, command: None)
    await listener.bind("127.0.0.1", 0)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", listener.port))
    await listener.accept()
    await listener.stop()


async def test_a_successor_binds_the_port_while_old_connections_linger() -> None:
    listener = Listener(on_request=lambda connection, command: None)
    await listener.start("127.0.0.1", 0)
    port = listener.port
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await until(lambda: listener.connections)
    await listener.stop()  # closes first, so the kernel keeps this end for a minute
    assert not await reader.read()
    writer.close()
    successor = Listener(on_request=lambda connection, command: None)
    await successor.start("127.0.0.1", port)
    await successor.stop()
