"""The entry check of a port for brokers: a stranger gets nothing until it has logged in.

Callers that have not finished TLS and login are strangers. Each has a time limit. If there are too
many, the server takes the address with most of them and closes the one that has waited longest: an
honest broker needs milliseconds, and must not suffer from strangers at another address.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Callable
from typing import Final

from rocketpost.access.failures import Failures
from rocketpost.codec.peer_login import MAGIC
from rocketpost.errors import RemoteProtocolError
from rocketpost.server.access.audit import Audit
from rocketpost.server.peer_ports.security import PeerSecurity
from rocketpost.transport.entrance import TlsMode
from rocketpost.transport.tls_socket import StreamSocket, shake_hands, wait_readable

logger = logging.getLogger(__name__)

STRANGERS_MAX: Final = 64
"""Most callers of a port that have not finished their login."""
_TLS: Final = b"\x16"
_NAME_CHARS_MAX: Final = 128

Address = tuple[str, int]


class PeerDoor:
    """The strangers of one port. Owned by the loop.

    Args:
        security: TLS and login.
        purpose: The purpose of this port's connections.
        audit: Records failed logins.
        on_peer: Called with the socket and the address of each caller that may enter.
        serves_foreign: Whether brokers of RocketMQ may call, if they are in a trusted network.
        strangers_max: Most callers that have not finished their login.
    """

    def __init__(
        self,
        security: PeerSecurity,
        *,
        purpose: str,
        audit: Audit,
        on_peer: Callable[[StreamSocket, Address], None],
        serves_foreign: bool = False,
        strangers_max: int = STRANGERS_MAX,
    ) -> None:
        self._security = security
        self._purpose = purpose
        self._audit = audit
        self._on_peer = on_peer
        self._serves_foreign = serves_foreign
        self._strangers_max = strangers_max
        self._strangers: dict[asyncio.Task[None], str] = {}
        self._failures = Failures()
        self.refused_count = 0
        """Callers that were not let in."""

    @property
    def count(self) -> int:
        """Number of callers that have not finished their login."""
        return len(self._strangers)

    def admit(self, sock: socket.socket, address: Address) -> None:
        """Let a caller in, at once or when it has logged in.

        Args:
            sock: Its socket, which does not block.
            address: Its host and port.
        """
        if not self._security.is_needed:
            self._on_peer(sock, address)
            return
        if len(self._strangers) >= self._strangers_max:
            [(crowd, _)] = Counter(self._strangers.values()).most_common(1)
            oldest = next(task for task, host in self._strangers.items() if host == crowd)
            del self._strangers[oldest]
            oldest.cancel()
        waiting: list[StreamSocket] = [sock]

        def forget(task: asyncio.Task[None]) -> None:
            self._strangers.pop(task, None)
            for each in waiting:  # also if the task was cancelled before it began
                each.close()

        task = asyncio.create_task(
            self._examine(sock, address, waiting), name="caller at a peer port"
        )
        self._strangers[task] = address[0]
        task.add_done_callback(forget)

    def close(self) -> None:
        """Close all strangers."""
        for task in self._strangers:
            task.cancel()

    async def _examine(
        self, sock: socket.socket, address: Address, waiting: list[StreamSocket]
    ) -> None:
        """Let a caller in if it proves who it is; else log why not.

        Args:
            sock: Its socket.
            address: Its address.
            waiting: Has its socket, or the one that replaces it, while it waits outside.
        """
        problem = ""
        try:
            async with asyncio.timeout(self._security.seconds):
                problem = await self._meet(sock, address, waiting)
            if not problem:
                self._on_peer(waiting.pop(), address)
        except TimeoutError:
            problem = f"no TLS or login in {self._security.seconds:g} s"
        except OSError as error:
            problem = error.strerror or str(error)
        except RemoteProtocolError as error:
            problem = f"{error}. {self._advice()}"
        if problem:
            self.refused_count += 1
            logger.warning(
                "broker refused: peer=%s:%s purpose=%s reason=%s", *address, self._purpose, problem
            )

    async def _meet(
        self, sock: socket.socket, address: Address, waiting: list[StreamSocket]
    ) -> str:
        """Return the reason why a caller is refused; empty if it may enter."""
        security, rules = self._security, self._security.rules
        is_trusted = self._serves_foreign and security.is_trusted(address[0])
        is_tls = False
        if rules.mode is not TlsMode.DISABLED:
            is_tls = await _peek(sock) == _TLS
            if not is_tls and rules.mode is TlsMode.ENFORCING:
                return "it does not use TLS, which is required here (tls.server.mode)"
        if is_tls:
            assert rules.certificates is not None
            waiting.clear()
            context = rules.certificates.server_context
            waiting.append(await shake_hands(sock, context, server_side=True))
        if security.login is None:
            return ""
        if is_trusted and not is_tls and await _peek(sock) != MAGIC[:1]:
            return ""
        user = await security.login.judge(waiting[0], self._purpose)
        if user:
            await self._turn_away(waiting[0], address, user)
            return "its login is wrong (innerClientAuthenticationCredentials)"
        return ""

    async def _turn_away(self, sock: StreamSocket, address: Address, user: str) -> None:
        """Tell a caller that its login is wrong, late if there were many from its address."""
        host, port = address
        self._audit.note(
            "loginFailed",
            user=user[:_NAME_CHARS_MAX],
            source=f"{host}:{port}",
            reason=f"login of a broker for {self._purpose}",
        )
        delay = self._failures.note(host, asyncio.get_running_loop().time())
        if delay is None:
            return
        try:
            await asyncio.sleep(delay)
        finally:
            if delay:
                self._failures.note_answer(host)
        assert self._security.login is not None
        await self._security.login.refuse(sock)

    def _advice(self) -> str:
        """Return what to do about a caller that does not log in."""
        advice = (
            "Brokers log in here, because authenticationEnabled=true: set it at that broker, too, "
            "with the same innerClientAuthenticationCredentials"
        )
        if not self._serves_foreign:
            return advice
        return (
            f"{advice}. Brokers of RocketMQ cannot log in: list their addresses in "
            "haTrustedNetworks"
        )


async def _peek(sock: socket.socket) -> bytes:
    """Return the first byte of a caller, which stays to be read.

    Raises:
        OSError: The connection is lost.
    """
    await wait_readable(sock)
    first = sock.recv(1, socket.MSG_PEEK)
    if not first:
        raise ConnectionResetError(0, "it closed the connection")
    return first
