"""TLS between a TCP transport and the protocol of a connection.

The layer reads ciphertext into a buffer that all connections of its owner share, decrypts into the
buffer of the connection above it, and encrypts what that connection writes. So the connection reads
decrypted bytes exactly as a plain one reads its socket: requests are taken from the listener's
inbox before they are decoded, and unwritten bytes are those of the TCP transport (ADR 0170).

The connection above is made only when the handshake is done: before that, it gets no byte, not even
the peer's address. A handshake that takes too long, or fails, closes the TCP connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol, cast

from rocketpost.transport.host import address_text, parse_address

logger = logging.getLogger(__name__)

HANDSHAKE_SECONDS: Final = 10.0
"""Time for a handshake, and before it for the first byte of a connection."""
CIPHER_BYTES: Final = 256 * 1024
"""Largest number of encrypted bytes that are read at once."""
_SLICE_BYTES: Final = 64 * 1024
"""Bytes that pass through the memory of one connection at a time: OpenSSL never frees it."""
_JOINED_BYTES_MAX: Final = 16 * 1024
"""Largest buffer that is copied to share a record with others; a record has at most 16 KiB."""

Buffer = bytes | bytearray | memoryview


class Upper(Protocol):
    """A connection above TLS."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; the handshake is done."""

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""

    def data_received(self, data: bytes) -> None:
        """Take decrypted bytes; not called if the connection has a buffer of its own."""

    def eof_received(self) -> bool | None:
        """Note that the peer has closed its side."""

    def pause_writing(self) -> None:
        """Note that the peer does not read."""

    def resume_writing(self) -> None:
        """Note that the peer reads again."""


class CipherInbox:
    """The buffer for ciphertext of all connections of one owner. Belongs to the event loop."""

    def __init__(self, size: int = CIPHER_BYTES) -> None:
        self.view = memoryview(bytearray(size))


class TlsLayer(asyncio.BufferedProtocol):
    """TLS of one connection. Belongs to the event loop.

    Args:
        context: Certificates and rules.
        upper: The connection above.
        inbox: The buffer to read into.
        server_side: Whether this end is the server.
        server_name: The name that the server's certificate must have; None if it is not checked.
        seconds: Time for the handshake.
        on_secure: Called with this layer when the handshake is done, before ``upper`` is made.
        on_failed: Called with this layer and the reason if there was no handshake.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        upper: Upper,
        *,
        inbox: CipherInbox,
        server_side: bool,
        server_name: str | None = None,
        seconds: float = HANDSHAKE_SECONDS,
        on_secure: Callable[[TlsLayer], None],
        on_failed: Callable[[TlsLayer, str], None],
    ) -> None:
        self._upper = upper
        self._fill: tuple[Callable[[int], memoryview], Callable[[int], None]] | None = None
        if isinstance(upper, asyncio.BufferedProtocol):
            self._fill = cast(Any, upper.get_buffer), upper.buffer_updated
        self._inbox = inbox
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_side, server_hostname=server_name
        )
        self._seconds = seconds
        self._on_secure = on_secure
        self._on_failed = on_failed
        self._raw: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._is_secure = self._is_ended = False

    @property
    def tls(self) -> ssl.SSLObject:
        """The state of TLS: certificates, protocol and ciphers."""
        return self._tls

    @property
    def upper(self) -> Upper:
        """The connection above."""
        return self._upper

    @property
    def peer_text(self) -> str:
        """The address at the other end of the TCP connection."""
        if self._raw is None:
            return "?"
        return address_text(parse_address(self._raw.get_extra_info("peername")))

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake."""
        self._raw = cast(asyncio.Transport, transport)
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(
            self._seconds, self._fail, f"no TLS handshake in {self._seconds:g} s"
        )
        self._shake_hands()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the room for ciphertext."""
        return self._inbox.view

    def buffer_updated(self, nbytes: int) -> None:
        """Decrypt what has been read."""
        self.feed(self._inbox.view[:nbytes])

    def eof_received(self) -> bool:
        """Close: TLS has no half-closed connections."""
        if self._is_secure:
            self._upper.eof_received()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """End the connection above, or report that it never began."""
        if self._is_secure:
            self._end()
            self._upper.connection_lost(exc)
        else:
            self._fail("the peer closed the connection during the TLS handshake")

    def pause_writing(self) -> None:
        """Make the connection above stop writing."""
        if self._is_secure:
            self._upper.pause_writing()

    def resume_writing(self) -> None:
        """Let the connection above write again."""
        if self._is_secure:
            self._upper.resume_writing()

    # Bytes of the peer.

    def feed(self, data: Buffer) -> None:
        """Decrypt bytes of the peer and pass them on."""
        view = memoryview(data)
        at = 0
        while at < len(view) and not self._is_ended:
            if self._is_secure:
                self._decrypt(view[at:])
                return
            at += self._incoming.write(view[at : at + _SLICE_BYTES])
            self._shake_hands()

    def _shake_hands(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._write_outgoing()
            return
        except (ssl.SSLError, ValueError) as error:
            self._write_outgoing()  # it tells the peer why
            self._fail(explain(error))
            return
        self._write_outgoing()
        if self._deadline is not None:
            self._deadline.cancel()
        self._is_secure = True
        self._on_secure(self)
        assert self._raw is not None
        if self._is_ended:
            return
        self._upper.connection_made(TlsTransport(self, self._raw))
        if self._incoming.pending and not self._is_ended:
            self._decrypt(memoryview(b""))

    def _decrypt(self, view: memoryview) -> None:
        """Decrypt ``view`` after what is there already, and pass everything on."""
        try:
            if self._fill is None:
                parts: list[bytes] = []
                is_closed = self._read(view, lambda: self._read_part(parts))
                if parts:
                    self._upper.data_received(b"".join(parts))
            else:
                is_closed = self._decrypt_into(view, *self._fill)
        except ssl.SSLError as error:
            self._give_up(f"TLS: {explain(error)}")
            return
        if self._outgoing.pending and not self._is_ended:
            self._write_outgoing()  # an answer to a new key
        if is_closed and self._raw is not None and not self._is_ended:
            self._upper.eof_received()
            self.close()

    def _decrypt_into(
        self,
        view: memoryview,
        get_buffer: Callable[[int], memoryview],
        buffer_updated: Callable[[int], None],
    ) -> bool:
        buffer = get_buffer(-1)
        at = 0

        def read() -> int:
            nonlocal buffer, at
            if at == len(buffer):
                self._pass_on(buffer_updated, at)
                buffer, at = get_buffer(-1), 0
            count = cast(int, self._tls.read(len(buffer) - at, cast(Any, buffer[at:])))
            at += count
            return count

        is_closed = self._read(view, read)
        if at:
            self._pass_on(buffer_updated, at)
        return is_closed

    def _pass_on(self, buffer_updated: Callable[[int], None], count: int) -> None:
        if not self._is_ended:
            buffer_updated(count)

    def _read_part(self, parts: list[bytes]) -> int:
        part = self._tls.read(_SLICE_BYTES)
        parts.append(part)
        return len(part)

    def _read(self, view: memoryview, read: Callable[[], int]) -> bool:
        """Call ``read`` while there is something; return whether the peer has closed its side."""
        tls, incoming = self._tls, self._incoming
        at, end = 0, len(view)
        while True:
            if at < end:
                at += incoming.write(view[at : at + _SLICE_BYTES])
            try:
                while incoming.pending or tls.pending():
                    if not read():
                        return True
            except ssl.SSLWantReadError:
                pass  # a record is incomplete
            if at == end:
                return False

    # Bytes for the peer.

    def encrypt(self, buffers: Iterable[Buffer]) -> None:
        """Encrypt and write bytes."""
        raw = self._raw
        if raw is None or self._is_ended or raw.is_closing():
            return
        tls, outgoing = self._tls, self._outgoing
        out: list[bytes] = []
        try:
            for buffer in _records(buffers):
                view = memoryview(buffer)
                for at in range(0, len(view), _SLICE_BYTES):
                    tls.write(view[at : at + _SLICE_BYTES])
                    out.append(outgoing.read())
        except ssl.SSLError as error:
            self._give_up(f"cannot encrypt: {explain(error)}")
            return
        if len(out) == 1:
            raw.write(out[0])
        elif out:
            raw.writelines(out)

    def close(self) -> None:
        """Notify the peer that nothing follows, and close when everything is written."""
        raw = self._raw
        if raw is None or self._is_ended or raw.is_closing():
            return
        with contextlib.suppress(ssl.SSLError):  # the peer's own closing message is not awaited
            self._tls.unwrap()
        self._write_outgoing()
        raw.close()

    def abort(self) -> None:
        """Close at once."""
        if self._raw is not None:
            self._raw.abort()

    def refuse(self) -> None:
        """Close at once, and never make the connection above; only called by ``on_secure``."""
        self._is_secure = False
        self._end()
        self.abort()

    def _write_outgoing(self) -> None:
        if self._outgoing.pending and self._raw is not None and not self._raw.is_closing():
            self._raw.write(self._outgoing.read())

    # The end.

    def _give_up(self, reason: str) -> None:
        logger.warning("connection dropped: peer=%s reason=%s", self.peer_text, reason)
        self.abort()

    def _fail(self, reason: str) -> None:
        """End a connection whose handshake is not done."""
        if self._is_ended or self._is_secure:
            return
        self._on_failed(self, reason)
        self._end()
        if self._raw is not None:
            self._raw.close()

    def _end(self) -> None:
        self._is_ended = True
        if self._deadline is not None:
            self._deadline.cancel()


class TlsTransport(asyncio.Transport):
    """The transport of a connection above TLS. Belongs to the event loop."""

    def __init__(self, layer: TlsLayer, raw: asyncio.Transport) -> None:
        super().__init__()
        self._layer = layer
        self._raw = raw
        self.get_write_buffer_size = raw.get_write_buffer_size  # type: ignore[method-assign]
        self.set_write_buffer_limits = raw.set_write_buffer_limits  # type: ignore[method-assign]
        self.is_closing = raw.is_closing  # type: ignore[method-assign]
        self.pause_reading = raw.pause_reading  # type: ignore[method-assign]
        self.resume_reading = raw.resume_reading  # type: ignore[method-assign]

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return a fact about TLS or about the TCP connection."""
        if name == "ssl_object":
            return self._layer.tls
        if name == "sslcontext":
            return self._layer.tls.context
        return self._raw.get_extra_info(name, default)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt and write bytes."""
        self._layer.encrypt((data,))

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        """Encrypt and write several buffers."""
        self._layer.encrypt(list_of_data)

    def close(self) -> None:
        """Write what is left, tell the peer, and close."""
        self._layer.close()

    def abort(self) -> None:
        """Close at once."""
        self._layer.abort()


def explain(error: Exception) -> str:
    """Return the reason of a TLS error in one line, without OpenSSL's place in its sources."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the peer's certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.replace("_", " ").lower()
    return str(error) or type(error).__name__


def _records(buffers: Iterable[Buffer]) -> Iterable[Buffer]:
    """Join small buffers, so that each record carries many."""
    small: list[Buffer] = []
    size = 0
    for buffer in buffers:
        if len(buffer) > _JOINED_BYTES_MAX:
            if small:
                yield b"".join(small)
                small, size = [], 0
            yield buffer
            continue
        if size + len(buffer) > _SLICE_BYTES:
            yield b"".join(small)
            small, size = [], 0
        small.append(buffer)
        size += len(buffer)
    if size:
        yield small[0] if len(small) == 1 else b"".join(small)
