"""A slave's side of replication: it follows its master's log, and says why if it cannot."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from rocketpost.codec.codes import RequestCode
from rocketpost.codec.command import Command
from rocketpost.codec.headers.replication import ExchangeHaInfo
from rocketpost.errors import ConnectionLost, RequestTimeout, RocketpostError
from rocketpost.model.ids import Position
from rocketpost.replication.receiver import LogReceiver
from rocketpost.server.context import BrokerContext
from rocketpost.server.feature import Feature
from rocketpost.server.metrics.exposition import Family
from rocketpost.server.metrics.replication import slave_families
from rocketpost.server.replication.dialer import Dialed, Dialer
from rocketpost.server.replication.master_client import MasterClient
from rocketpost.server.replication.master_presence import MasterPresence
from rocketpost.server.replication.master_stream import MasterStream
from rocketpost.server.replication.status import SlaveStatus
from rocketpost.server.routes.access import UPDATE, of_cluster
from rocketpost.server.routes.route import Reply, Route, plain
from rocketpost.server.writer.follower_log import FollowerLog
from rocketpost.transport.connection import Connection

logger = logging.getLogger(__name__)

RETRY_SECONDS: Final = 0.5
"""Pause after the loss of a stream that had brought something; doubles with each failure."""
BACKOFF_SECONDS: Final = 5.0
"""Longest pause between attempts to follow the master."""
_STALLED_SECONDS: Final = 15.0


class SlaveFeature(Feature):
    """Follows the master's log. Owned by the loop.

    Args:
        context: The state of the broker.
        client: Asks the master, and knows where it is.
        log: Takes the master's records.
        broker_id: The slave's id.
        ask_name_servers: Asks the name servers soon where the master is.
        presence: Is told whether the master is alive.
    """

    def __init__(
        self,
        context: BrokerContext,
        *,
        client: MasterClient,
        log: FollowerLog,
        broker_id: int,
        ask_name_servers: Callable[[], None],
        presence: MasterPresence,
    ) -> None:
        config = context.broker_config
        self._context = context
        self._client = client
        self._log = log
        self._ask_name_servers = ask_name_servers
        self._presence = presence
        self._loop = asyncio.get_running_loop()
        self._dialer = Dialer(
            client,
            log_ports=context.peers.log_ports,
            store=context.store,
            broker_id=broker_id,
            from_last_file=config.sync_from_last_file,
            keeps_flushed=config.sync_master_flush_offset,
        )
        self._stream: MasterStream | None = None
        self._flushed = asyncio.Event()
        self._problem = ""
        self._last_read_ms = 0
        self._last_write_ms = 0
        self.on_connected: Callable[[], None] = _nobody
        """Called when the log of the master begins to flow."""

    async def open(self) -> None:
        """Register for reports of the log, which are sent to the master."""
        self._log.on_advance = self._advance

    def routes(self) -> Sequence[Route]:
        """Return the route by which a master tells its addresses."""
        return [
            plain(
                RequestCode.EXCHANGE_BROKER_HA_INFO,
                ExchangeHaInfo,
                of_cluster(UPDATE),
                self.take_addresses,
            )
        ]

    def take_addresses(
        self, connection: Connection, command: Command, header: ExchangeHaInfo
    ) -> Reply:
        """Take the addresses that a master tells its slaves; answer a question with nothing."""
        if header.master_ha_address:
            self._client.master.learn(
                remoting=header.master_address or "", ha=header.master_ha_address
            )
            self._client.master.hurry()
            self._dialer.take_flushed(header.master_flush_offset)
        return Reply()

    async def master_bounds(self) -> tuple[int, int] | None:
        """Return start and end of the master's log; None if it is not followed or does not tell.

        Raises:
            RocketpostError: It cannot be asked.
        """
        if self._stream is None or not self._client.master.remoting:
            return None
        return await self._dialer.bounds()

    async def run(self) -> None:
        """Follow the master until cancelled; connect again after each failure."""
        pause = 0.0 if self._client.master.ha else RETRY_SECONDS  # the registration may tell it
        try:
            while True:
                await self._client.master.wait_changed(pause)
                if await self._follow():
                    pause = RETRY_SECONDS
                else:
                    self._ask_name_servers()
                    pause = min(max(2 * pause, RETRY_SECONDS), BACKOFF_SECONDS)
        finally:
            await self._client.close()

    async def _follow(self) -> bool:
        """Follow the master until that fails; tells whether it had sent anything."""
        received = 0
        try:
            self._log.check_room()
            await self._flush()
            await self._log.begin_queue_again()
            dialed = await self._dial()
            stream = self._stream = self._open(dialed)
            try:
                self._note_connected(dialed)
                await self._run_stream(stream, dialed)
            finally:
                received = stream.received
                self._keep_times(stream)
                self._stream = None
                self._presence.set_alive(False)
        except RocketpostError as error:
            self._note_problem(str(error))
        return received > 0

    async def _dial(self) -> Dialed:
        """Connect to the master, and note whether it is alive."""
        try:
            dialed = await self._dialer.dial()
        except (ConnectionLost, RequestTimeout):
            self._presence.set_alive(False)
            raise
        except RocketpostError:
            self._presence.set_alive(True)  # it has answered, although it cannot be followed
            raise
        self._presence.set_alive(True)
        return dialed

    def _open(self, dialed: Dialed) -> MasterStream:
        config, store = self._context.broker_config, self._context.store
        receiver = LogReceiver(
            end=store.written_position,
            segment_bytes=store.config.segment_bytes,
            append=self._log.append,
        )
        return MasterStream(
            dialed.sock,
            receiver=receiver,
            request=dialed.request,
            heartbeat_ms=config.ha_heartbeat_ms,
            silence_ms=config.ha_housekeeping_ms,
            now_ms=self._now_ms,
            on_read=self._log.show,
        )

    async def _run_stream(self, stream: MasterStream, dialed: Dialed) -> None:
        if not dialed.is_foreign or not self._client.master.remoting:
            await stream.run()
            return
        watch = self._loop.create_task(self._watch_foreign(stream), name="watch of the master")
        try:
            await stream.run()
        finally:
            watch.cancel()
            await asyncio.wait((watch,))

    async def _watch_foreign(self, stream: MasterStream) -> None:
        """Note a problem if a master of RocketMQ has more log but sends only heartbeats."""
        while True:
            end = self._context.store.written_position
            await asyncio.sleep(_STALLED_SECONDS)
            if self._context.store.written_position > end:
                continue
            try:
                bounds = await self._dialer.bounds()
            except RocketpostError as error:
                logger.info("state of the master not known: reason=%s", error)
                continue
            if bounds is not None and bounds[1] > end == self._context.store.written_position:
                self._note_problem(
                    f"the master's log goes from {bounds[0]} to {bounds[1]}, but it sends nothing "
                    f"from {end} on; if that lasts, give this slave an empty store"
                )

    async def _flush(self) -> None:
        """Wait until the whole log is as safe as the first report will promise."""
        store = self._context.store
        while self._log.position < store.written_position:
            self._flushed.clear()
            store.request_flush()
            await self._flushed.wait()

    def _advance(self, position: Position) -> None:
        self._flushed.set()
        if self._stream is not None:
            self._stream.advance(position)

    # State.

    def _note_connected(self, dialed: Dialed) -> None:
        self._problem = ""
        logger.info(
            "follows the master: address=%s position=%s", self._client.master.ha, dialed.request
        )
        self.on_connected()

    def _note_problem(self, problem: str) -> None:
        if problem != self._problem:
            logger.warning("cannot follow the master: reason=%s", problem)
        self._problem = problem

    def _keep_times(self, stream: MasterStream) -> None:
        self._last_read_ms = self._wall_ms(stream.heard_ms)
        self._last_write_ms = self._wall_ms(stream.reported_ms)

    def _wall_ms(self, time_ms: int) -> int:
        return self._context.clock.now_ms() - (self._now_ms() - time_ms) if time_ms else 0

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def status(self) -> SlaveStatus:
        """Return the state of the stream."""
        stream = self._stream
        if stream is not None:
            self._keep_times(stream)
        return SlaveStatus(
            master_address=self._client.master.ha or None,
            is_connected=stream is not None,
            last_read_ms=self._last_read_ms,
            last_write_ms=self._last_write_ms,
            bytes_per_second=stream.bytes_per_second if stream is not None else 0,
            problem=self._problem,
        )

    def metrics(self) -> Iterable[Family]:
        """Return whether the master is followed, and when its last bytes arrived."""
        return slave_families(self.status(), now_ms=self._context.clock.now_ms())

    def runtime_values(self) -> dict[str, str]:
        """Return role, master, positions, last contact, and why the master is not followed."""
        status, store = self.status(), self._context.store
        return {
            "brokerRole": "SLAVE",
            "masterAddress": self._client.master.remoting,
            "masterHaAddress": self._client.master.ha,
            "followsMaster": "true" if status.is_connected else "false",
            "followProblem": status.problem,
            "replicatedPosition": str(self._log.position),
            "replicatedWritten": str(store.written_position),
            "masterHeardTimestamp": str(status.last_read_ms),
            "masterReportedTimestamp": str(status.last_write_ms),
        }


def _nobody() -> None:
    """Ignore that the log flows."""
