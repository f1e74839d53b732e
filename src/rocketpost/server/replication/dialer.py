"""A slave's connection to its master: connect, introduce itself, agree where the log continues.

Our master judges the introduction (``hello``). RocketMQ's master does not know it, so the slave
asks it for its settings and state instead, and judges itself. If only ``haMasterAddress`` is set,
no address is known for such requests, and the slave follows without these checks.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Final, NamedTuple

from rocketpost.codec.bodies.stats import decode_key_values
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.command import to_fields
from rocketpost.codec.headers.replication import ExchangeHaInfo, HaInfo
from rocketpost.errors import NotConnected, ReplicationError
from rocketpost.replication.following import LogFacts, why_not_follow
from rocketpost.server.peer_ports.security import PeerSecurity
from rocketpost.server.replication.hello import LOG_PURPOSE, describe_blocking, find_tail
from rocketpost.server.replication.master_client import MasterClient
from rocketpost.settings import parse_properties
from rocketpost.store.message_store import MessageStore
from rocketpost.transport.connector import split_address
from rocketpost.transport.sockets import make_socket
from rocketpost.transport.tls_socket import StreamSocket

logger = logging.getLogger(__name__)

CONNECT_SECONDS: Final = 3.0
_SEGMENT_KEY: Final = "mappedFileSizeCommitLog"


class Dialed(NamedTuple):
    """A connection to a master's log, before the first report."""

    sock: StreamSocket
    request: int
    """Position to request the log from."""
    is_foreign: bool
    """Whether the master did not understand the introduction."""


class Dialer:
    """Connects to the master. Owned by the loop.

    Args:
        client: Asks the master.
        log_ports: The protection of connections that carry the log.
        store: The slave's log.
        broker_id: The slave's id.
        from_last_file: Whether an empty slave starts with the master's last segment.
        keeps_flushed: Whether the position that the master had at its start is kept for tools.
    """

    def __init__(
        self,
        client: MasterClient,
        *,
        log_ports: PeerSecurity,
        store: MessageStore,
        broker_id: int,
        from_last_file: bool,
        keeps_flushed: bool,
    ) -> None:
        self._client = client
        self._log_ports = log_ports
        self._store = store
        self._broker_id = broker_id
        self._from_last_file = from_last_file
        self._keeps_flushed = keeps_flushed

    async def dial(self) -> Dialed:
        """Connect to the master and agree on where its log continues.

        Raises:
            RocketpostError: The master is not known, cannot be reached, or its log does not
                continue this one.
        """
        address = self._client.master.ha
        if not address:
            raise NotConnected(
                "no name server knows a master with an HA port for this broker's name; is the "
                "master running? Else set haMasterAddress"
            )
        sock = await _connect(address)
        try:
            request, is_foreign = await self._agree(sock)
        except BaseException:
            sock.close()
            raise
        return Dialed(await self._protect(sock, address, is_foreign), request, is_foreign)

    async def _protect(self, sock: socket.socket, address: str, is_foreign: bool) -> StreamSocket:
        """Return the connection with TLS and login, as far as the master knows them."""
        if is_foreign and self._log_ports.is_trusted(sock.getpeername()[0]):
            return sock
        host, _ = split_address(address)
        return await self._log_ports.call(sock, host, LOG_PURPOSE)

    async def _agree(self, sock: socket.socket) -> tuple[int, bool]:
        """Return the position to request, and whether the master is RocketMQ's."""
        facts = await self._describe()
        if not self._client.master.remoting:
            logger.warning(
                "the log cannot be compared with the master's: only haMasterAddress is known"
            )
            return facts.end, True
        info = await self._introduce(sock, facts)
        if info.master_ha_address is None:
            raise ReplicationError(
                f"the broker at {self._client.master.remoting} is not a master; does another "
                "broker use the master's name and address?"
            )
        self._client.master.learn(remoting="", ha=info.master_ha_address)
        self.take_flushed(info.master_flush_offset)
        if info.follow_problem is None:
            self._log_ports.check_foreign(sock.getpeername()[0])
            return await self._judge_foreign(facts), True
        self._log_ports.check_login(info.needs_login)
        if info.follow_problem:
            raise ReplicationError(info.follow_problem)
        if facts.end == 0 and self._from_last_file and info.log_end:
            last = info.log_end - info.log_end % facts.segment_bytes
            return max(info.log_first or 0, last), False
        return facts.end, False

    async def _describe(self) -> LogFacts:
        store = self._store
        try:
            return await asyncio.to_thread(describe_blocking, store, find_tail(store))
        except OSError as error:
            raise ReplicationError(
                f"the end of this broker's own log cannot be read: {error.strerror}"
            ) from error

    async def _introduce(self, sock: socket.socket, facts: LogFacts) -> HaInfo:
        host, port = sock.getsockname()[:2]
        hello = ExchangeHaInfo(
            slave_broker_id=self._broker_id,
            slave_ha_address=f"{host}:{port}",
            segment_bytes=facts.segment_bytes,
            log_end=facts.end,
            tail_position=facts.tail,
            tail_crc=facts.tail_crc,
        )
        response = await self._client.request(
            RequestCode.EXCHANGE_BROKER_HA_INFO, fields=to_fields(hello)
        )
        if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:  # RocketMQ before 5.0
            return HaInfo(master_ha_address=self._client.master.ha)
        response.raise_for_code()
        fields = response.fields
        return HaInfo(
            master_ha_address=fields.get("masterHaAddress"),
            master_flush_offset=_number(fields.get("masterFlushOffset")),
            log_first=_number(fields.get("logFirst")),
            log_end=_number(fields.get("logEnd")),
            follow_problem=fields.get("followProblem"),
            needs_login=fields.get("needsLogin") == "true",
        )

    def take_flushed(self, position: int | None) -> None:
        """Keep the position that the master had at its start, for tools, if settings say so."""
        checkpoint = self._store.checkpoint
        if self._keeps_flushed and position and not checkpoint.master_flushed:
            checkpoint.master_flushed = position

    # Masters of RocketMQ.

    async def _judge_foreign(self, facts: LogFacts) -> int:
        """Return the position to request from a master that judges nothing.

        Raises:
            ReplicationError: Its log does not continue this one.
        """
        segment_bytes = await self._foreign_segment_bytes() or facts.segment_bytes
        bounds = await self.bounds()
        first, end = bounds if bounds is not None else (0, facts.end)
        problem = why_not_follow(
            facts,
            segment_bytes=segment_bytes,
            first=first,
            end=end,
            crc_of=lambda begin, end: facts.tail_crc,  # it cannot be asked for a part of its log
        )
        if problem:
            raise ReplicationError(problem)
        if facts.end:
            return facts.end
        if not first and end > segment_bytes:
            logger.warning(
                "the master sends only the last file of its log to an empty slave: messages "
                "before position %s will not be here",
                end - end % segment_bytes,
            )
        return first if first % segment_bytes == 0 else 0

    async def bounds(self) -> tuple[int, int] | None:
        """Return start and end of the master's log; None if it does not tell.

        Raises:
            RocketpostError: It cannot be asked.
        """
        response = await self._client.request(RequestCode.GET_BROKER_RUNTIME_INFO)
        response.raise_for_code()
        values = decode_key_values(response.body)
        first, end = values.get("commitLogMinOffset"), values.get("commitLogMaxOffset")
        if first is None or end is None or not (first.isdecimal() and end.isdecimal()):
            return None
        return int(first), int(end)

    async def _foreign_segment_bytes(self) -> int | None:
        response = await self._client.request(RequestCode.GET_BROKER_CONFIG)
        response.raise_for_code()
        text = parse_properties(response.body.decode(errors="replace")).get(_SEGMENT_KEY, "")
        return int(text) if text.isascii() and text.isdecimal() else None


async def _connect(address: str) -> socket.socket:
    loop = asyncio.get_running_loop()
    host, port = split_address(address)
    sock: socket.socket | None = None
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            family, kind, protocol, _, target = found[0]
            sock = make_socket(family, kind, protocol)
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            await loop.sock_connect(sock, target)
    except TimeoutError:
        _close(sock)
        raise NotConnected(
            f"cannot connect to the master's HA port {address} in {CONNECT_SECONDS:g} s"
        ) from None
    except OSError as error:
        _close(sock)
        raise NotConnected(f"cannot connect to the master's HA port {address}: {error}") from error
    except BaseException:
        _close(sock)
        raise
    return sock


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdecimal() else None


def _close(sock: socket.socket | None) -> None:
    if sock is not None:
        sock.close()
