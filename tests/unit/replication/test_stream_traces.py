"""Life stories of a master and its slaves, as text: ``traces/stream/*.txt``.

After each command stands what crossed the network, what was refused, and what the master counts.
``a`` and ``b`` are slaves of ours with the broker ids 1 and 2; ``java`` is one without a broker id.
Records have 100 bytes, segments 1024, frames at most 250. Checked after every command, whatever the
file says: a slave's log is a part of the master's that ends between two records, and the master
counts nothing that is not there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rocketpost.errors import ReplicationError
from rocketpost.replication.acks import ReplicaAcks
from rocketpost.replication.receiver import LogReceiver
from rocketpost.replication.reports import ReportSchedule
from rocketpost.replication.sender import LogSender, stated_bytes
from rocketpost.testing.trace_files import TraceCommand, run_trace

from .logs import SEGMENT_BYTES, MasterLog, SlaveLog

TRACES = sorted((Path(__file__).parent / "traces" / "stream").glob("*.txt"))
OWN_BYTES = 97
"""Size of a record without its body."""
IDS = {"a": 1, "b": 2}


class TracedSlave:
    """A slave, and the newest of its connections."""

    def __init__(self) -> None:
        self.log = SlaveLog()
        self.durable = 0
        self.receiver: LogReceiver | None = None
        self.sender: LogSender | None = None
        self.schedule = ReportSchedule()
        self.connection = ""
        self.count = 0


class TracedGroup:
    """Runs commands, and tells what follows from them."""

    def __init__(self) -> None:
        self.master = MasterLog()
        self.slaves = {name: TracedSlave() for name in ("a", "b", "java")}
        self.acks = ReplicaAcks()
        self.now_ms = 0
        self.window = 4000
        self.senders: dict[str, LogSender] = {}
        self.from_last = False
        self.lines: list[str] = []

    def run(self, command: TraceCommand) -> Iterator[str]:
        action: Callable[[TraceCommand], None] = getattr(self, f"do_{command.name}")
        self.lines = []
        try:
            action(command)
        except ReplicationError as error:
            self.lines.append(f"refused: {error}")
        yield from self.lines
        counts = [self.acks.position_of(count) for count in (1, 2, 3)]
        yield f"counted: {', '.join(str(count) for count in counts if count) or 'nothing'}"
        self.check()

    def check(self) -> None:
        for slave in self.slaves.values():
            log = slave.log
            kept_from = max(log.start, self.master.first)
            if log.end > kept_from:
                theirs = self.master.bytes_of(kept_from, log.end - kept_from)
                assert log.data[kept_from - log.start :] == theirs
            assert not log.data or log.end in self.master.borders
        kept = sorted((slave.log.end for slave in self.slaves.values()), reverse=True)
        for count, end in enumerate(kept, start=1):
            assert self.acks.position_of(count) <= end

    def tell(self, text: str) -> None:
        self.lines.append(text)

    # The master.

    def do_send(self, command: TraceCommand) -> None:
        """Append records, of 100 bytes unless told otherwise."""
        size = command.option_int("size", 100)
        self.master.add(*[size - OWN_BYTES] * int(command.args[0]))
        self.tell(f"the log ends at {self.master.end}")

    def do_expire(self, command: TraceCommand) -> None:
        """Delete the log before a position."""
        first = int(command.args[0])
        self.master.data = self.master.data[first - self.master.first :]
        self.master.first = first

    def do_window(self, command: TraceCommand) -> None:
        self.window = int(command.args[0])

    def do_settings(self, command: TraceCommand) -> None:
        self.from_last = "syncFromLastFile" in command.args

    def do_lost(self, command: TraceCommand) -> None:
        """Let the master notice that a connection is gone."""
        self.acks.remove(command.args[0])

    def do_later(self, command: TraceCommand) -> None:
        """Let time go by, and close what is silent."""
        self.now_ms += int(command.args[0])
        for connection in self.acks.silent(self.now_ms, 20_000):
            self.tell(f"silent: {connection}")
            self.acks.remove(connection)

    # Slaves.

    def do_connect(self, command: TraceCommand) -> None:
        """Connect; the master has not noticed the end of an older connection."""
        name = command.args[0]
        slave = self.slaves[name]
        if "empty" in command.args:
            slave.log = SlaveLog()
        slave.count += 1
        slave.connection = f"{name}{slave.count}"
        slave.sender = LogSender(
            first=self.master.first,
            end=self.master.end,
            segment_bytes=SEGMENT_BYTES,
            batch_bytes=250,
            window_bytes=self.window,
            heartbeat_ms=5000,
            from_last_segment=self.from_last,
            record_bytes=self._record_bytes,
        )
        self.senders[slave.connection] = slave.sender
        requested = command.option_int("at", slave.log.end)
        slave.receiver = LogReceiver(
            end=requested, segment_bytes=SEGMENT_BYTES, append=slave.log.append
        )
        slave.schedule = ReportSchedule()
        host = "10.0.0.9" if name == "java" else f"10.0.0.{IDS[name]}"
        self.acks.add(slave.connection, host, IDS.get(name), self.now_ms)
        assert slave.schedule.is_due(requested, self.now_ms)
        self._take(slave, requested)

    def _record_bytes(self, position: int) -> int:
        if not self.master.first <= position <= self.master.end - 8:
            return 0
        return stated_bytes(self.master.bytes_of(position, 8))

    def do_flow(self, command: TraceCommand) -> None:
        """Send a slave what it may have; it appends that, and reports unless told otherwise."""
        slave = self.slaves[command.args[0]]
        assert slave.sender is not None
        assert slave.receiver is not None
        left = command.option_int("frames", 1000)
        cut = command.option_int("cut", 2**31)
        while left:
            frame = slave.sender.next_frame(self.master.first, self.master.end, self.now_ms)
            if frame is None:
                break
            self.tell(f"frame: {frame.position} + {frame.size}" if frame.size else _beat(frame))
            data = frame.head()
            if frame.size:
                data += self.master.bytes_of(*frame)
            slave.receiver.feed(data[:cut])
            cut -= len(data)
            left -= 1
            if cut <= 0:
                self.tell("cut")
                break
        self.tell(f"{command.args[0]} has {slave.log.end}")
        self._stuck(slave)
        if "silently" not in command.args:
            self.do_report(command)

    def do_report(self, command: TraceCommand) -> None:
        """Report what a slave has, or what it claims to have."""
        slave = self.slaves[command.args[0]]
        position = command.option_int("at", slave.log.end)
        if "at" in command.options or slave.schedule.is_due(position, self.now_ms):
            self._take(slave, position)

    def do_late(self, command: TraceCommand) -> None:
        """Let the master read a report of an older connection."""
        connection = command.args[0]
        self.acks.report(connection, self.senders[connection].acked, self.now_ms)

    def _take(self, slave: TracedSlave, position: int) -> None:
        assert slave.sender is not None
        self.tell(f"report: {position} by {slave.connection}")
        sender = slave.sender
        sender.report(position, self.now_ms)
        if sender.requested is not None and not sender._has_started and not sender.stuck:
            sender._begin(sender.requested, self.master.first, self.master.end)
        self._stuck(slave)
        self.acks.report(slave.connection, sender.acked, self.now_ms, is_stuck=bool(sender.stuck))

    def _stuck(self, slave: TracedSlave) -> None:
        assert slave.sender is not None
        if slave.sender.stuck:
            self.tell(f"stuck: {slave.sender.stuck}")


def _beat(frame: tuple[int, int]) -> str:
    return f"heartbeat: {frame[0]}"


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_trace(path: Path, rewrite: bool) -> None:
    run_trace(path, TracedGroup().run, rewrite=rewrite)
