"""A master and slaves: the real machines and stores, joined by a simulated network.

The wiring is that of the servers: a slave introduces itself, flushes, asks for the log from its end
on, and reports what it keeps; a master judges it, sends it frames, and counts what it acknowledges.
"""

from __future__ import annotations

import contextlib
import random
from dataclasses import dataclass, field
from zlib import crc32

from rocketpost.codec.ha_frames import FrameHead, HaFrameDecoder, ReportDecoder, encode_report
from rocketpost.errors import ReplicationError, StoreBroken, StoreError
from rocketpost.model.ids import Position
from rocketpost.replication.acks import ReplicaAcks
from rocketpost.replication.following import LogFacts, why_not_follow
from rocketpost.replication.receiver import LogReceiver
from rocketpost.replication.reports import ReportSchedule
from rocketpost.replication.sender import Frame, LogSender, stated_bytes
from rocketpost.store.config import FlushMode, StoreConfig
from rocketpost.store.message_store import MessageStore
from rocketpost.testing.sim.disk import SimulatedDisk

from ..store.world import Clock, World, formatted
from .network import Link

HEARTBEAT_MS = 5000
HOUSEKEEPING_MS = 20_000


class Producers(World):
    """Producers that are told about a message by :meth:`Master.acknowledge` alone."""

    def hear(self) -> None:
        if self.durable > self.running.confirmed_position:
            self.running.confirm(Position(self.durable))
        self._look()


@dataclass
class Stream:
    """The master's end of a connection."""

    link: Link
    sender: LogSender
    decoder: ReportDecoder = field(default_factory=ReportDecoder)
    rest: bytes = b""
    """Part of a frame that the network has not taken yet."""


class Master:
    """A master with its store, its producers (``world``), and the slaves that are connected."""

    def __init__(
        self,
        world: Producers,
        *,
        batch_bytes: int,
        window_bytes: int,
        needed: int,
        sends_flushed: bool,
    ) -> None:
        self.world = world
        self.sends_flushed = sends_flushed
        """Whether slaves get only what is flushed here."""
        self.batch_bytes = batch_bytes
        self.window_bytes = window_bytes
        self.needed = needed
        """Slaves that must have a message before it is acknowledged."""
        self.streams: dict[int, Stream] = {}
        self.acks = ReplicaAcks()
        self._numbers = 0

    @property
    def store(self) -> MessageStore:
        return self.world.running

    @property
    def is_up(self) -> bool:
        return self.world.store is not None

    @property
    def end(self) -> int:
        """The end of what slaves may have."""
        store = self.store
        return store.durable_position if self.sends_flushed else store.written_position

    def start(self) -> None:
        self.world.open()
        self.world.check()
        self.world.flush()
        self.acks = ReplicaAcks()
        self.streams = {}

    def judge(self, facts: LogFacts) -> str:
        """Answer a slave that introduces itself: why it can never follow, or nothing."""
        return why_not_follow(
            facts,
            segment_bytes=self.world.config.segment_bytes,
            first=self.store.first_position,
            end=self.end,
            crc_of=lambda begin, end: crc32(self.read(begin, end - begin)),
        )

    def accept(self, link: Link, now_ms: int) -> None:
        store = self.store
        self._numbers += 1
        sender = LogSender(
            first=store.first_position,
            end=self.end,
            segment_bytes=self.world.config.segment_bytes,
            batch_bytes=self.batch_bytes,
            window_bytes=self.window_bytes,
            heartbeat_ms=HEARTBEAT_MS,
            record_bytes=self.record_bytes,
        )
        self.streams[self._numbers] = Stream(link, sender)
        self.acks.add(self._numbers, link.host, link.broker_id, now_ms)

    def read(self, position: int, size: int) -> bytes:
        view = self.store.view(position, size)
        assert view is not None, f"the log lacks [{position}, {position + size})"
        return bytes(view)

    def log(self) -> tuple[int, bytes]:
        """Return the start of the log, and its bytes."""
        return log_of(self.world.disk, self.store)

    def record_bytes(self, position: int) -> int:
        return stated_bytes(self.store.view(position, 8))

    def pump(self, now_ms: int, rng: random.Random) -> None:
        """Read reports, send frames, close what is silent, and acknowledge sends."""
        for number, stream in list(self.streams.items()):
            link = stream.link
            data = link.up.read(link.piece(rng))
            reports = stream.decoder.feed(data)
            for position in reports:
                stream.sender.report(position, now_ms)
            self._send(stream, now_ms)
            if reports:
                self.acks.report(number, stream.sender.acked, now_ms)
            if not data and link.master_is_told:
                self.drop(number)
        for connection in self.acks.silent(now_ms, HOUSEKEEPING_MS):
            assert isinstance(connection, int)
            self.drop(connection)

    def _send(self, stream: Stream, now_ms: int) -> None:
        while True:
            taken = stream.link.down.write(stream.rest)
            stream.rest = stream.rest[taken:]
            if stream.rest:
                return
            frame = stream.sender.next_frame(self.store.first_position, self.end, now_ms)
            if frame is None:
                return
            self._check_window(stream.sender, frame)
            stream.rest = frame.head()
            if frame.size:
                stream.rest += self.read(frame.position, frame.size)

    def _check_window(self, sender: LogSender, frame: Frame) -> None:
        begin = max(sender.acked, sender._start)
        limit = max(self.window_bytes, self.batch_bytes, self.record_bytes(begin))
        is_within = frame.position + frame.size - begin <= limit
        assert is_within or not frame.size, "more is under way than the window has room for"

    def drop(self, number: int) -> None:
        stream = self.streams.pop(number)
        self.acks.remove(number)
        stream.link.up.is_cut = stream.link.down.is_cut = stream.link.slave_is_told = True

    def acknowledge(self) -> None:
        """Answer the sends that are written or flushed here, and that enough slaves have."""
        is_sync = self.world.config.flush_mode is FlushMode.SYNC_FLUSH
        safe = self.store.durable_position if is_sync else self.store.written_position
        bound = min(safe, self.acks.position_of(self.needed))
        for message in self.world.sent:
            message.is_acked = message.is_acked or message.end <= bound

    def stopped(self) -> None:
        """Lose all connections: the process is gone."""
        for stream in self.streams.values():
            stream.link.slave_is_told = stream.link.up.is_cut = stream.link.down.is_cut = True
        self.streams = {}


def log_of(disk: SimulatedDisk, store: MessageStore) -> tuple[int, bytes]:
    """Return the start of a log and its bytes, without a file operation that could fail."""
    end = store.written_position
    parts = [
        disk.read_bytes(segment.path)[: max(0, end - segment.start)]
        for segment in store.segments.all()
    ]
    return store.first_position, b"".join(parts)


class Slave:
    """A slave of ours with its store."""

    def __init__(self, broker_id: int, config: StoreConfig) -> None:
        self.broker_id: int | None = broker_id
        self.host = f"10.0.0.{broker_id}"
        self.config = config
        self.disk = formatted()
        self.store: MessageStore | None = None
        self.link: Link | None = None
        self.refusal = ""
        self.kept = 0
        """Position up to which the log survives what the flush mode promises to survive."""
        self.tolerates_faults = False
        self.faults = 0
        self._receiver: LogReceiver | None = None
        self._schedule = ReportSchedule()
        self._rest = b""

    @property
    def is_up(self) -> bool:
        return self.store is not None

    @property
    def running(self) -> MessageStore:
        assert self.store is not None
        return self.store

    @property
    def end(self) -> int:
        return self.running.end_position

    def start(self) -> None:
        self.store = MessageStore.open_blocking(self.config, clock=Clock(), files=self.disk)
        if self.config.flush_mode is FlushMode.SYNC_FLUSH:
            self.store.flush_blocking()
        self.store.confirm(self.store.end_position)
        self._keep()

    def _keep(self) -> None:
        store = self.running
        is_sync = self.config.flush_mode is FlushMode.SYNC_FLUSH
        self.kept = store.durable_position if is_sync else store.written_position

    def facts(self) -> LogFacts:
        store = self.running
        end = store.end_position
        tail = max((queue.last_position for queue in store.queues), default=-1)
        if tail < 0:
            return LogFacts(self.config.segment_bytes, 0, 0, 0)
        view = store.view(tail, end - tail)
        assert view is not None
        return LogFacts(self.config.segment_bytes, end, tail, crc32(view))

    def connect(self, master: Master, link: Link, now_ms: int) -> None:
        """Introduce itself, and ask for the log from its end on."""
        store = self.running
        if self.config.flush_mode is FlushMode.SYNC_FLUSH:
            store.flush_blocking()
        store.confirm(store.end_position)
        self._keep()
        self.refusal = master.judge(self.facts())
        if self.refusal:
            return
        master.accept(link, now_ms)
        self.link = link
        self._receiver = LogReceiver(
            end=store.end_position,
            segment_bytes=self.config.segment_bytes,
            append=self._append,
        )
        self._schedule = ReportSchedule()
        self._rest = b""
        self._report(store.end_position, now_ms)

    def _append(self, position: int, data: memoryview) -> int:
        return self.running.append_raw(Position(position), data)

    def pump(self, now_ms: int, rng: random.Random) -> None:
        """Read a piece of the stream, append what it completes, and report."""
        link, receiver = self.link, self._receiver
        if link is None or receiver is None:
            return
        data = link.down.read(link.piece(rng))
        if not data and link.slave_is_told:
            self.disconnect()
            return
        try:
            receiver.feed(data)
        except ReplicationError:
            assert self.tolerates_faults
            self.faults += 1
            self.disconnect()
            return
        except StoreBroken:
            raise
        except StoreError:
            self.disconnect()
            return
        self._keep()
        self._report(self._reportable(receiver), now_ms)

    def _reportable(self, receiver: LogReceiver) -> int:
        if self.config.flush_mode is FlushMode.SYNC_FLUSH:
            return min(receiver.end, self.running.durable_position)
        return receiver.end

    def _report(self, position: int, now_ms: int) -> None:
        assert self.link is not None
        if not self._rest and self._schedule.is_due(position, now_ms):
            self._rest = encode_report(position)
        taken = self.link.up.write(self._rest)
        self._rest = self._rest[taken:]

    def flush(self) -> None:
        self.running.flush_blocking()
        self.running.confirm(self.running.durable_position)
        self._keep()

    def disconnect(self) -> None:
        if self.link is not None:
            self.link.master_is_told = self.link.up.is_cut = self.link.down.is_cut = True
        self.link = None

    def stopped(self, disk: SimulatedDisk, *, tell_master: bool) -> None:
        """Be gone; the disk is what it left."""
        store, self.store = self.store, None
        if self.link is not None:
            self.link.up.is_cut = self.link.down.is_cut = True
            self.link.master_is_told = tell_master
            self.link = None
        self.disk = disk
        if store is not None:
            with contextlib.suppress(OSError, StoreError):
                store.close_blocking()

    def log(self) -> tuple[int, bytes]:
        """Return the start of the log, and its bytes."""
        return log_of(self.disk, self.running)


class JavaSlave:
    """A slave as Java's: takes whole frames as bytes, undecoded, and acknowledges any byte.

    It asserts what Java's slave would answer with a closed connection or lost bytes.
    """

    def __init__(self, config: StoreConfig) -> None:
        self.broker_id = None
        self.host = "10.0.0.99"
        self.config = config
        self.start_at = -1
        self.data = b""
        self.link: Link | None = None
        self.is_up = True
        self._decoder = HaFrameDecoder()
        self._left = 0
        self._frame = b""
        self._rest = b""
        self._reported_ms = 0

    @property
    def end(self) -> int:
        return max(self.start_at, 0) + len(self.data)

    kept = end

    def connect(self, master: Master, link: Link, now_ms: int) -> None:
        master.accept(link, now_ms)
        self.link = link
        self._decoder = HaFrameDecoder()
        self._left, self._frame, self._rest = 0, b"", b""
        self._report(now_ms)

    def pump(self, now_ms: int, rng: random.Random) -> None:
        link = self.link
        if link is None:
            return
        data = link.down.read(link.piece(rng))
        if not data and link.slave_is_told:
            self.disconnect()
            return
        end = self.end
        for piece in self._decoder.feed(data):
            if isinstance(piece, FrameHead):
                self._check(piece)
                self._left = piece.size
            else:
                self._frame += bytes(piece)
                if len(self._frame) == self._left:
                    self.data += self._frame
                    self._frame = b""
        if self.end > end or now_ms - self._reported_ms >= HEARTBEAT_MS or self._rest:
            self._report(now_ms)

    def _check(self, head: FrameHead) -> None:
        size = self.config.segment_bytes
        assert not self._frame
        if not self.end:
            assert head.position % size == 0, "the first file would begin inside a segment"
            self.start_at = head.position
        assert head.position == self.end, "Java's slave closes the connection"
        assert head.position % size + head.size <= size, "Java's slave drops these bytes"

    def _report(self, now_ms: int) -> None:
        assert self.link is not None
        if not self._rest:
            self._rest = encode_report(self.end)
            self._reported_ms = now_ms
        self._rest = self._rest[self.link.up.write(self._rest) :]

    def disconnect(self) -> None:
        if self.link is not None:
            self.link.master_is_told = self.link.up.is_cut = self.link.down.is_cut = True
        self.link = None

    def log(self) -> tuple[int, bytes]:
        return max(self.start_at, 0), self.data
