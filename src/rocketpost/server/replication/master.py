"""A master's side of replication: its slaves, what each has, and who may not follow."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from rocketpost.codec.codes import RequestCode
from rocketpost.codec.command import Command, to_fields
from rocketpost.codec.headers.replication import ExchangeHaInfo, HaInfo
from rocketpost.errors import ConfigError, ReplicationError
from rocketpost.replication.acks import ReplicaAcks
from rocketpost.replication.sender import WINDOW_BYTES, LogSender
from rocketpost.server.context import BrokerContext
from rocketpost.server.feature import Feature
from rocketpost.server.metrics.exposition import Family
from rocketpost.server.metrics.replication import master_families
from rocketpost.server.peer_ports.door import PeerDoor
from rocketpost.server.replication.hello import LOG_PURPOSE, judge_blocking
from rocketpost.server.replication.listener import HaListener
from rocketpost.server.replication.master_log import MasterLog
from rocketpost.server.replication.slave_link import LINGER_SECONDS, SlaveLink
from rocketpost.server.replication.status import MasterStatus, ReplicaStatus
from rocketpost.server.routes.access import UPDATE, of_cluster
from rocketpost.server.routes.route import Reply, Route, waiting
from rocketpost.server.settings.broker import BrokerConfig
from rocketpost.server.settings.replication import BrokerRole
from rocketpost.store.config import StoreConfig
from rocketpost.transport.connection import Connection
from rocketpost.transport.tls_socket import StreamSocket

logger = logging.getLogger(__name__)

LINKS_MAX: Final = 64
"""Most connections of slaves."""
_HELLOS_MAX: Final = 256
_HELLO_MS: Final = 30_000
"""Time for which an introduction, or a refusal, is remembered."""
_TICK_MS: Final = 1000


@dataclass(slots=True)
class _Hello:
    """An introduction of a slave, kept until its connection is accepted, or while it is refused."""

    broker_id: int
    time_ms: int
    problem: str


class MasterFeature(Feature):
    """Sends the log to slaves and keeps account of what they have. Owned by the loop.

    Args:
        context: The state of the broker.
    """

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._log = MasterLog(context.store)
        self._end_at_start = context.store.written_position
        self.acks = ReplicaAcks()
        """The position that each slave has reported."""
        self.on_acks: Callable[[], None] = _nobody
        """Called when slaves have more, or when one came or went."""
        self._listener = HaListener(
            door=PeerDoor(
                context.peers.log_ports,
                purpose=LOG_PURPOSE,
                audit=context.access.audit,
                on_peer=self._add,
                serves_foreign=True,
            )
        )
        self._links: dict[SlaveLink, bool] = {}
        self._has_links = asyncio.Event()
        self._hellos: dict[str, _Hello] = {}

    @property
    def ha_address(self) -> str:
        """The address for slaves; empty if there is no HA port."""
        port = self._listener.port
        config, identity = self._context.broker_config, self._context.identity
        return f"{config.ha_ip or identity.ip}:{port}" if port else ""

    async def open(self) -> None:
        """Listen for slaves.

        A broker serves clients even if the default port is taken, as long as no setting shows that
        it needs slaves.

        Raises:
            ConfigError: The HA port cannot be bound.
        """
        config = self._context.broker_config
        try:
            await self._listener.start(config.bind_address, config.ha_listen_port)
        except ConfigError as error:
            is_default = config.ha_listen_port == config.listen_port + 1
            if config.broker_role is BrokerRole.SYNC_MASTER or not is_default:
                raise
            logger.warning("no slave can connect: reason=%s", error)

    def abandon(self) -> None:
        """Stop listening."""
        self.close()

    def routes(self) -> Sequence[Route]:
        """Return the route of introductions."""
        return [
            waiting(
                RequestCode.EXCHANGE_BROKER_HA_INFO, ExchangeHaInfo, of_cluster(UPDATE), self.greet
            )
        ]

    def note_growth(self, end: int) -> None:
        """Send new messages, up to ``end``, to the slaves; called once for each commit."""
        for link in self._links:
            link.note_growth(end)

    async def run(self) -> None:
        """Send heartbeats, and end connections on which a slave is silent."""
        while True:
            await self._has_links.wait()
            config = self._context.broker_config
            tick_ms = min(_TICK_MS, config.ha_heartbeat_ms // 4 + 1)
            await asyncio.sleep(tick_ms / 1000)
            now = self._now_ms()
            silent = set(self.acks.silent(now, config.ha_housekeeping_ms))
            for link, has_reported in list(self._links.items()):
                mute_ms = 0 if has_reported else now - link.connected_ms
                if link in silent or mute_ms > config.ha_housekeeping_ms:
                    link.close(f"it was silent for {config.ha_housekeeping_ms} ms")
                else:
                    link.tick()

    def configure(self, broker: BrokerConfig, store: StoreConfig) -> None:
        """Apply the limits of the stream to connected slaves; new ones get them anyway."""
        limits = _limits(broker)
        for link in self._links:
            link.set_limits(frame_bytes_max=limits.frame_bytes_max, rate_max=limits.rate_max)

    def close(self) -> None:
        """End all connections and stop listening."""
        self._listener.close()
        for link in list(self._links):
            link.close("the broker is no longer the master")

    # Introductions.

    async def greet(
        self, connection: Connection, command: Command, header: ExchangeHaInfo
    ) -> Reply:
        """Answer a slave: where the log is sent, and whether this slave can follow."""
        store, identity = self._context.store, self._context.identity
        answer = HaInfo(
            master_ha_address=self.ha_address,
            master_flush_offset=self._end_at_start,
            master_address=identity.address,
        )
        if header.slave_broker_id is None:  # RocketMQ's slave asks for the addresses only
            return Reply(fields=to_fields(answer))
        problem = await asyncio.to_thread(judge_blocking, header, store)
        self._remember(header, problem)
        answer.segment_bytes = self._log.segment_bytes
        answer.log_first, answer.log_end = self._log.first, self._log.end
        answer.follow_problem = problem
        answer.needs_login = self._context.peers.log_ports.login is not None
        return Reply(fields=to_fields(answer))

    def _remember(self, header: ExchangeHaInfo, problem: str) -> None:
        assert header.slave_broker_id is not None
        address, now = header.slave_ha_address or "", self._now_ms()
        if problem:
            known = self._refusal_of(header.slave_broker_id)
            if known is None or known.problem != problem:
                logger.error(
                    "a slave cannot follow: id=%s address=%s reason=%s",
                    header.slave_broker_id, address, problem,
                )  # fmt: skip
        hello = _Hello(header.slave_broker_id, now, problem)
        stale = [
            key
            for key, other in self._hellos.items()
            if now - other.time_ms > _HELLO_MS or other.broker_id == hello.broker_id
        ]
        for key in stale:
            del self._hellos[key]
        for link in self._links:
            if link.address == address:
                link.broker_id = None if problem else hello.broker_id
        if len(self._hellos) < _HELLOS_MAX:
            self._hellos[address] = hello

    def _refusal_of(self, broker_id: int) -> _Hello | None:
        for hello in self._hellos.values():
            if hello.broker_id == broker_id and hello.problem:
                return hello
        return None

    # Connections.

    def _add(self, sock: StreamSocket, address: tuple[str, int]) -> None:
        if len(self._links) >= LINKS_MAX:
            logger.warning(
                "slave refused: address=%s:%s reason=%s slaves are connected", *address, LINKS_MAX
            )
            sock.close()
            return
        config = self._context.broker_config
        limits = _limits(config)
        link = SlaveLink(
            sock,
            address,
            log=MasterLog(self._context.store),
            sender=LogSender(
                first=self._log.first,
                end=self._log.end,
                segment_bytes=self._log.segment_bytes,
                batch_bytes=limits.frame_bytes_max,
                window_bytes=WINDOW_BYTES,
                heartbeat_ms=config.ha_heartbeat_ms,
                from_last_segment=config.sync_from_last_file,
                record_bytes=self._log.record_bytes,
            ),
            now_ms=self._now_ms,
            frame_bytes_max=limits.frame_bytes_max,
            rate_max=limits.rate_max,
            linger_seconds=0.0 if config.broker_role is BrokerRole.SYNC_MASTER else LINGER_SECONDS,
            on_report=self._take_report,
            on_end=self._drop,
        )
        hello = self._hellos.get(link.address)
        if hello is not None and not hello.problem:
            link.broker_id = hello.broker_id
        self._links[link] = False
        self._has_links.set()

    def _take_report(self, link: SlaveLink) -> None:
        now = self._now_ms()
        if not self._links[link]:
            self._links[link] = True
            self._hellos.pop(link.address, None)
            self.acks.add(link, link.host, link.broker_id, now)
            logger.info(
                "slave connected: address=%s id=%s position=%s",
                link.address, _id_text(link), link.sender.requested,
            )  # fmt: skip
        try:
            self.acks.report(link, link.sender.acked, now, is_stuck=bool(link.sender.stuck))
        except ReplicationError as error:
            link.close(str(error))
            return
        self.on_acks()

    def _drop(self, link: SlaveLink, reason: str) -> None:
        has_reported = self._links.pop(link)
        if not self._links:
            self._has_links.clear()
        if has_reported:
            logger.warning(
                "slave gone: address=%s id=%s reason=%s", link.address, _id_text(link), reason
            )
            self.acks.remove(link)
            self.on_acks()

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    # For tools.

    def status(self) -> MasterStatus:
        """Return the state of all slaves, refused ones included."""
        for link in list(self._links):
            link.read_reports()
        end = self._log.end
        gap_bytes = self._context.broker_config.ha_gap_bytes_max
        connected = [
            ReplicaStatus(
                address=link.address,
                acknowledged=link.sender.acked,
                next_position=link.sender.next if link.sender.requested is not None else -1,
                broker_id=link.broker_id,
                bytes_per_second=link.bytes_per_second,
                is_in_sync=has_reported
                and not link.sender.stuck
                and end - link.sender.acked < gap_bytes,
                problem=link.sender.stuck,
            )
            for link, has_reported in self._links.items()
        ]
        oldest = self._now_ms() - _HELLO_MS
        refused = [
            ReplicaStatus(
                address=address,
                acknowledged=0,
                next_position=-1,
                broker_id=hello.broker_id,
                problem=hello.problem,
            )
            for address, hello in self._hellos.items()
            if hello.problem and hello.time_ms >= oldest
        ]
        return MasterStatus((*connected, *refused))

    def metrics(self) -> Iterable[Family]:
        """Return how far each slave is behind."""
        return master_families(self.status(), self._log.end)

    def runtime_values(self) -> dict[str, str]:
        """Return role, HA address, and the state of each slave."""
        end, status = self._log.end, self.status()
        return {
            "brokerRole": self._context.broker_config.broker_role.name,
            "haAddress": self.ha_address,
            "slavesInSync": str(status.in_sync_count),
            "slaves": "; ".join(_describe(replica, end) for replica in status.replicas),
        }


class _Limits(NamedTuple):
    """Limits of the stream to a slave."""

    frame_bytes_max: int
    rate_max: int | None


def _limits(config: BrokerConfig) -> _Limits:
    rate_max = config.ha_bytes_per_second if config.ha_flow_control else None
    return _Limits(min(config.ha_batch_bytes, rate_max or config.ha_batch_bytes), rate_max)


def _id_text(link: SlaveLink) -> str:
    return "unknown" if link.broker_id is None else str(link.broker_id)


def _describe(replica: ReplicaStatus, end: int) -> str:
    name = f"id {replica.broker_id}" if replica.broker_id is not None else "unknown id"
    if replica.problem:
        return f"{name} at {replica.address} cannot follow: {replica.problem}"
    sync = "in sync" if replica.is_in_sync else "not in sync"
    behind = end - replica.acknowledged
    return f"{name} at {replica.address}: {sync}, has {replica.acknowledged}, {behind} behind"


def _nobody() -> None:
    """Ignore what slaves have."""
