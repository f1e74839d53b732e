"""TLS for sockets that their owner reads and writes itself: the log and the messages of a group.

Such links use the calls of a socket that does not block, and the loop notifies them when it can be
read or written. :class:`TlsSocket` has these calls, so that a link need not know whether it is
encrypted. A record of TLS counts as sent when the socket has taken all of it, and is read as a
whole. So no bytes wait in memory without the loop's knowledge.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

from rocketpost.transport.tls_layer import explain

RECORD_BYTES: Final = 16 * 1024
"""Most bytes in one record of TLS."""
_WAKE_LESS_BYTES: Final = 2 * RECORD_BYTES
_JOINED_BYTES: Final = 16 * RECORD_BYTES

Buffer = bytes | bytearray | memoryview


class StreamSocket(Protocol):
    """A connected socket that does not block, plain or with TLS."""

    def fileno(self) -> int:
        """Return its descriptor."""

    def recv(self, size: int, /) -> bytes:
        """Read; empty if the peer has closed it, ``BlockingIOError`` if there is nothing."""

    def recv_into(self, buffer: Any, /) -> int:
        """Read into a buffer; as :meth:`recv`."""

    def send(self, data: Any, flags: int = 0, /) -> int:
        """Write; returns how many bytes it took, ``BlockingIOError`` if none."""

    def sendmsg(self, buffers: Iterable[Any], /) -> int:
        """Write several buffers; as :meth:`send`."""

    def setsockopt(self, level: int, name: int, value: Any, /) -> None:
        """Set an option."""

    def getsockname(self) -> Any:
        """Return the own address."""

    def getpeername(self) -> Any:
        """Return the address of the peer."""

    def close(self) -> None:
        """Close it."""


class TlsSocket:
    """A socket with TLS, once its handshake is done. Belongs to the event loop.

    Args:
        tls: The socket.
    """

    def __init__(self, tls: ssl.SSLSocket) -> None:
        self._tls = tls
        self.fileno = tls.fileno
        self.getsockname = tls.getsockname
        self.getpeername = tls.getpeername
        self.close = tls.close

    @property
    def binding(self) -> bytes:
        """A value that both ends of this connection have, and no other connection has."""
        found = self._tls.get_channel_binding("tls-unique")
        assert found, "the handshake is done"
        return found

    def recv(self, size: int, /) -> bytes:
        """Read a few records; at least one, even if it is larger than ``size``."""
        buffer = memoryview(bytearray(max(size, RECORD_BYTES)))
        return bytes(buffer[: self.recv_into(buffer)])

    def recv_into(self, buffer: Any, /) -> int:
        """Read whole records into a buffer, as long as it has room for the largest one."""
        view = memoryview(buffer)
        at, last = 0, len(view) - RECORD_BYTES
        assert last >= 0, "a record has to fit"
        try:
            while at <= last:
                size = self._tls.recv_into(view[at : at + RECORD_BYTES])
                if not size:
                    break  # if something was read before, the next call finds the end again
                at += size
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            if not at:
                raise BlockingIOError from None
        except ssl.SSLError as error:
            if not at:
                raise ConnectionError(0, f"TLS: {explain(error)}") from None
        return at

    def send(self, data: Any, flags: int = 0, /) -> int:
        """Encrypt and write, record by record, until the socket takes no more.

        The next call must have the bytes that were not taken, and may have more after them: a part
        may be on its way already. ``flags`` have no meaning here.
        """
        view = memoryview(data)
        at = 0
        try:
            while at < len(view):
                at += self._tls.send(view[at : at + RECORD_BYTES])
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
            if not at:
                raise BlockingIOError from None
        except ssl.SSLError as error:
            raise ConnectionError(0, f"TLS: {explain(error)}") from None
        return at

    def sendmsg(self, buffers: Iterable[Any], /) -> int:
        """Encrypt and write the first buffers, joined so that they share records."""
        joined: list[Buffer] = []
        size = 0
        for buffer in buffers:
            joined.append(buffer)
            size += len(buffer)
            if size >= _JOINED_BYTES:
                break
        return self.send(joined[0] if len(joined) == 1 else b"".join(joined))

    def setsockopt(self, level: int, name: int, value: Any, /) -> None:
        """Set an option; the loop is woken by fewer bytes than asked for.

        The number of bytes to wait for is that of decrypted ones, of which a record and a half may
        have been taken from the socket already.
        """
        if (level, name) == (socket.SOL_SOCKET, socket.SO_RCVLOWAT):
            value = max(int(value) - _WAKE_LESS_BYTES, 1)
        self._tls.setsockopt(level, name, value)


async def shake_hands(
    sock: socket.socket,
    context: ssl.SSLContext,
    *,
    server_side: bool,
    server_name: str | None = None,
) -> TlsSocket:
    """Return a socket with TLS, which takes the place of the plain one.

    Whatever happens, the plain one is not to be used again. If this fails, it is closed.

    Args:
        sock: A connected socket that does not block.
        context: Certificates and rules.
        server_side: Whether this end is the server.
        server_name: The name that the server's certificate must have; None if it is not checked.

    Raises:
        OSError: The handshake failed; the text says why.
    """
    tls = context.wrap_socket(
        sock,
        server_side=server_side,
        server_hostname=server_name,
        do_handshake_on_connect=False,
    )
    try:
        while True:
            try:
                tls.do_handshake()
                return TlsSocket(tls)
            except ssl.SSLWantReadError:
                await wait_readable(tls)
            except ssl.SSLWantWriteError:
                await wait_writable(tls)
    except ssl.SSLError as error:
        tls.close()
        raise ConnectionError(0, f"no TLS: {explain(error)}") from None
    except BaseException:
        tls.close()
        raise


class _HasDescriptor(Protocol):
    def fileno(self) -> int: ...


async def wait_readable(sock: _HasDescriptor) -> None:
    """Return when a socket has something to read."""
    loop = asyncio.get_running_loop()
    await _wait(sock, loop.add_reader, loop.remove_reader)


async def wait_writable(sock: _HasDescriptor) -> None:
    """Return when a socket has room."""
    loop = asyncio.get_running_loop()
    await _wait(sock, loop.add_writer, loop.remove_writer)


async def _wait(
    sock: _HasDescriptor, add: Callable[..., Any], remove: Callable[[Any], Any]
) -> None:
    ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    add(sock, _settle, ready)
    try:
        await ready
    finally:
        remove(sock)


def _settle(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


async def receive(sock: StreamSocket, size: int) -> bytes:
    """Return the next bytes of a peer; empty if it has closed the connection.

    Raises:
        OSError: The connection is lost.
    """
    while True:
        with contextlib.suppress(BlockingIOError, InterruptedError):
            return sock.recv(size)
        await wait_readable(sock)


async def send_all(sock: StreamSocket, data: bytes) -> None:
    """Write all of some bytes.

    Raises:
        OSError: The connection is lost.
    """
    while data:
        try:
            data = data[sock.send(data) :]
        except (BlockingIOError, InterruptedError):
            await wait_writable(sock)
