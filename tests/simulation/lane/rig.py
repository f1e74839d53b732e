"""A broker's sends without sockets: bytes go in as connections would read them, replies come out.

Everything from ``SendFeature`` down is real, the files included. The clock is the test's; so two
rigs that get the same bytes in the same turns must end with the same replies, files and counters,
whether they have a lane or not.
"""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import importlib
import importlib.util
import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import rocketpost.kernel
from rocketpost.broker.stats import BrokerStats
from rocketpost.broker.topic import TopicTable
from rocketpost.codec.frames import Frame, FrameDecoder
from rocketpost.kernel import FORM, send_lane
from rocketpost.model.topic import TopicConfig
from rocketpost.server.access.control import AccessControl
from rocketpost.server.context import BrokerContext
from rocketpost.server.features import send as send_feature
from rocketpost.server.features.send import SendFeature
from rocketpost.server.name_servers.announcing import Announcing
from rocketpost.server.routes.dispatch import Dispatcher
from rocketpost.server.settings.broker import BrokerConfig
from rocketpost.server.settings.live_config import LiveConfig
from rocketpost.server.settings.replication import BrokerRole
from rocketpost.server.tables.broker_tables import Identity, Tables
from rocketpost.server.writer import send_lane as server_lane
from rocketpost.server.writer.acknowledgement_rules import NO_REPLICAS, Replicas
from rocketpost.server.writer.pending_sends import PendingSend
from rocketpost.server.writer.send_lane import LaneSends
from rocketpost.store.config import FlushMode, StoreConfig
from rocketpost.store.dispatch.arrival import Arrival
from rocketpost.store.files import RealFiles
from rocketpost.store.message_store import MessageStore
from rocketpost.store.queue.files import ENTRY_BYTES
from rocketpost.testing.clock import FakeClock
from rocketpost.testing.link import let_arrive
from rocketpost.transport.served_connection import Inbox, ServedConnection

OFF, COMPILED, UNCOMPILED = "off", "compiled", "uncompiled"
MODES = [OFF, UNCOMPILED, *([COMPILED] if FORM.is_compiled else [])]
PEERS = [("192.0.2.7", 4711), ("192.0.2.8", 4712), ("2001:db8::9", 4713)]
QUEUES = 3
_FOLDER = Path(rocketpost.kernel.__file__).parent


class _Sources:
    """Finds kernel modules as sources, even where they are compiled."""

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        package, _, module = name.rpartition(".")
        if package != "rocketpost.kernel":
            return None
        return importlib.util.spec_from_file_location(name, _FOLDER / f"{module}.py")


def _load_plain(name: str) -> ModuleType:
    """Load a kernel module uncompiled, together with the kernel modules that it imports."""
    prefix = "rocketpost.kernel."
    kept = {each: module for each, module in sys.modules.items() if each.startswith(prefix)}
    for each in kept:
        del sys.modules[each]
    finder: Any = _Sources()
    sys.meta_path.insert(0, finder)
    try:
        return importlib.import_module(prefix + name)
    finally:
        sys.meta_path.remove(finder)
        for each in [each for each in sys.modules if each.startswith(prefix)]:
            del sys.modules[each]
        sys.modules.update(kept)
        for each, module in kept.items():
            setattr(rocketpost.kernel, each.removeprefix(prefix), module)


_plain: ModuleType = _load_plain("send_lane") if FORM.is_compiled else send_lane


class FailingFiles(RealFiles):
    """Files whose next writes to the log fail on request, before or after some of the bytes."""

    def __init__(self) -> None:
        self.failures: list[int] = []

    def pwrite(self, fd: int, data: Any, offset: int) -> int:
        if self.failures and "commitlog" in os.readlink(f"/proc/self/fd/{fd}"):
            written = self.failures.pop()
            if written:
                super().pwrite(fd, bytes(data)[:written], offset)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().pwrite(fd, data, offset)


class Pipe(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self, peer: tuple[str, int]) -> None:
        super().__init__({"peername": peer, "sockname": ("192.0.2.1", 10911)})
        self.written = bytearray()
        self.is_closed = False
        self.turn_bytes = 0
        """Number of bytes written before the turn in which it was closed."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Take everything at once."""

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: Any) -> None:
        self.written += data

    def writelines(self, list_of_data: Any) -> None:
        for data in list_of_data:
            self.written += data

    def is_closing(self) -> bool:
        return self.is_closed

    def abort(self) -> None:
        self.is_closed = True

    close = abort

    def pause_reading(self) -> None:
        """Nothing is read by itself."""

    resume_reading = pause_reading


class Rig:
    """A broker's sends in one mode. Belongs to the event loop.

    Args:
        root: Directory of the store.
        mode: OFF, COMPILED or UNCOMPILED.
        seed: Determines unique ids that the broker makes, and queues that it chooses.
        slaves: What the slaves of a SYNC_MASTER have; None for an ASYNC_MASTER.
        access: Access control; None if it is off.
        more: Other settings of the broker.
    """

    def __init__(
        self,
        root: Path,
        mode: str,
        *,
        seed: int = 0,
        flush_mode: FlushMode = FlushMode.ASYNC_FLUSH,
        segment_bytes: int = 256 * 1024,
        slaves: Replicas | None = None,
        slave_timeout_ms: int = 60_000,
        access: AccessControl | None = None,
        **more: Any,
    ) -> None:
        self.access = access or AccessControl.off()
        self.root = root
        self.mode = mode
        self.clock = FakeClock()
        self.random = random.Random(seed)
        self.files = FailingFiles()
        self._made = 0
        self.broker = BrokerConfig(
            send_lane=mode != OFF,
            sync_flush_timeout_ms=60_000,
            broker_role=BrokerRole.ASYNC_MASTER if slaves is None else BrokerRole.SYNC_MASTER,
            slave_timeout_ms=slave_timeout_ms,
            **more,
        )
        self.config = StoreConfig(
            root=str(root),
            segment_bytes=segment_bytes,
            queue_file_bytes=20 * 500,
            index_slot_count=50,
            index_entry_count=900,
            message_bytes_max=16 * 1024,
            flush_mode=flush_mode,
        )
        self.store = MessageStore.open_blocking(self.config, clock=self.clock, files=self.files)
        self.stats = BrokerStats(clock=self.clock)
        self.topics = TopicTable(clock=self.clock, cluster_name="C", broker_name="b")
        self.announcing = Announcing(wait_registered=self._no_servers)
        self.arrivals: dict[tuple[str, int], bytearray] = {}
        with self._patched():
            self.feature = SendFeature(
                self._context(),
                term=1,
                announcing=self.announcing,
                replicas=slaves or NO_REPLICAS,
            )
            self.feature.writer.begin_term(1)
            self.feature._handler.lane = self.feature._lane
            self.configure()
        self.lane = self.feature._lane
        self.writer = self.feature.writer
        self.writer.arrival_listeners = (self.stats.count_stored, self._arrived)
        self.topics.on_change = lambda topic: self.feature.topic_changed()
        self.dispatcher = Dispatcher()
        self.dispatcher.gate = self.access.gate
        self.dispatcher.use(self.feature.routes(), [self.feature.express])
        self.connections: list[tuple[ServedConnection, Pipe]] = []
        inbox = Inbox()
        for peer in PEERS:
            connection = ServedConnection(
                inbox=inbox, express=self.dispatcher.take, on_request=self.dispatcher.handle
            )
            pipe = Pipe(peer)
            connection.connection_made(pipe)
            self.connections.append((connection, pipe))
        for name, attributes in [
            ("Orders", {}),
            ("Typed", {"message.type": "NORMAL"}),
            ("Urgent", {"message.type": "PRIORITY"}),
        ]:
            self.set_topic(name, attributes=attributes)
        self.unanswered: list[list[int]] = []
        self.taken = 0
        """Number of requests that the lane took."""
        submit = self.writer.submit
        self.writer.submit = lambda send: self._submitted(send, submit)  # type: ignore[method-assign]

    def _submitted(self, send: PendingSend, submit: Callable[[PendingSend], None]) -> None:
        if isinstance(send, LaneSends):
            self.taken += send.count
        submit(send)

    def configure(self, **changes: Any) -> None:
        """Change settings of the broker."""
        self.broker = dataclasses.replace(self.broker, **changes)
        with self._patched():
            self.feature.configure(self.broker, self.config)

    def set_topic(self, name: str, *, queues: int = QUEUES, **more: Any) -> None:
        """Create or change a topic."""
        self.topics._configs[name] = TopicConfig(
            topic_name=name, read_queue_nums=queues, write_queue_nums=queues, **more
        )
        assert self.topics.on_change is not None
        self.topics.on_change(name)

    def feed(self, number: int, data: bytes) -> None:
        """Let bytes arrive on a connection."""
        connection, pipe = self.connections[number]
        if not pipe.is_closed:
            let_arrive(connection, data)

    async def turn(self) -> None:
        """Let the loop do what it was asked to do."""
        for _ in range(3):
            await asyncio.sleep(0)
        for _, pipe in self.connections:
            if not pipe.is_closed:
                pipe.turn_bytes = len(pipe.written)

    async def settle(self) -> None:
        """Return when nothing waits for the disk."""
        while True:
            await self.turn()
            if not len(self.writer._waiting):
                open_ones = [c for c, pipe in self.connections if not pipe.is_closed]
                self.unanswered.append([connection._unanswered for connection in open_ones])
                return
            await asyncio.sleep(0.001)

    def close(self) -> None:
        """Write everything."""
        self.feature.close()
        self.store.close_blocking()

    def outcome(self) -> dict[str, Any]:
        """Return all that must not depend on the lane, after the end."""
        stats = self.stats
        return {
            "replies": [self._replies(pipe) for _, pipe in self.connections],
            "closed": [pipe.is_closed for _, pipe in self.connections],
            "unanswered": self.unanswered,
            "encodings": [connection.encoding for connection, _ in self.connections],
            "arrivals": self.arrivals,
            "stored": (stats.put_count, stats.put_bytes, stats.put_failures),
            "by topic": {
                name: (meter.count, meter.size, meter.calls)
                for name, meter in stats._topics.items()
            },
            "files": dict(self._contents()),
        }

    def _replies(self, pipe: Pipe) -> list[Frame]:
        """Return the replies on a connection; their order is free, since each names its request.

        How many replies leave in the turn in which a connection is dropped depends on the end of a
        segment, before which messages are written early, and under SYNC_FLUSH on the disk.
        """
        if not pipe.is_closed:
            return sorted(FrameDecoder().feed(bytes(pipe.written)))
        if self.config.flush_mode is FlushMode.SYNC_FLUSH:
            return []
        return sorted(FrameDecoder().feed(bytes(pipe.written[: pipe.turn_bytes])))

    def _contents(self) -> Iterator[tuple[str, bytes]]:
        for path in sorted(self.root.rglob("*")):
            name = path.relative_to(self.root).as_posix()
            folder = name.split("/")[0]
            if not path.is_file() or "/allocating/" in name:
                continue  # files made ahead
            if folder in ("commitlog", "consumequeue", "index"):
                yield name, path.read_bytes()

    def _arrived(self, arrivals: list[Arrival]) -> None:
        for arrival in arrivals:
            heard = self.arrivals.setdefault((arrival.topic, arrival.queue_id), bytearray())
            assert len(heard) == arrival.first_offset * ENTRY_BYTES
            heard += arrival.entries

    @contextmanager
    def _patched(self) -> Iterator[None]:
        """Make ids and choices repeatable, and choose the build of the lane."""
        form: Any = SimpleNamespace(is_compiled=self.mode != OFF, reason="off in this test")
        lane = send_lane if self.mode == COMPILED else _plain
        chance: Any = SimpleNamespace(randrange=self.random.randrange)
        with (
            patch.object(server_lane, "FORM", form),
            patch.object(server_lane, "Lane", lane.Lane),
            patch.object(send_feature, "unique_id", self._unique_id),
            patch.object(send_feature, "random", chance),
        ):
            yield

    def _unique_id(self) -> str:
        self._made += 1
        return f"MADE{self._made}"

    async def _no_servers(self) -> None:
        """There are no name servers to wait for."""

    def _context(self) -> BrokerContext:
        tables: dict[str, Any] = dict.fromkeys(Tables._fields)
        groups = SimpleNamespace(find_or_create=lambda group, by="": None, use=lambda group: None)
        tables |= {"topics": self.topics, "groups": groups}
        locks: Any = SimpleNamespace(holds_locks=lambda group: False)
        given: dict[str, Any] = {
            "identity": Identity("C", "b", "192.0.2.1", 10911),
            "clock": self.clock,
            "settings": LiveConfig(self.broker, self.config, clock=self.clock),
            "store": self.store,
            "tables": Tables(**tables),
            "persistence": None,
            "repairs": (),
            "membership": None,
            "locks": locks,
            "filters": None,
            "stats": self.stats,
            "turns": None,
            "name_servers": list,
            "peers": None,
            "access": self.access,
        }
        return BrokerContext(**given)
