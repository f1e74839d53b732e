"""Fakes that tests of the log writer share: a store of records of ten bytes, and who sends."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rocketpost.codec.codes import ResponseCode
from rocketpost.errors import StoreError, StoreFull
from rocketpost.model.ids import Position, QueueOffset
from rocketpost.server.writer.acknowledgement_rules import Replicated, rules_for
from rocketpost.server.writer.log_writer import LogWriter
from rocketpost.server.writer.pending_sends import PendingSend
from rocketpost.server.writer.replica_demand import ReplicaPolicy
from rocketpost.store.config import FlushMode
from rocketpost.store.draft import Appended, Draft

_LATE = {
    ResponseCode.FLUSH_DISK_TIMEOUT: "late",
    ResponseCode.SLAVE_NOT_AVAILABLE: "no slave",
    ResponseCode.FLUSH_SLAVE_TIMEOUT: "late slave",
}

DRAFT = Draft("T", 0, 0, 0, 0, b"", b"", 0, 0, b"", b"")


TWO_REPLICAS = ReplicaPolicy(replicas=2, gap_bytes=1000)


class Store:
    """A store of records that take ten bytes each."""

    def __init__(self) -> None:
        self.end = 0
        self.written_position = Position(0)
        self.durable_position = Position(0)
        self.confirmed: list[int] = []
        self.hidden: list[Appended] = []
        self.room = 100
        self.commits = 0
        self.failing: StoreError | None = None
        self.broken = False
        self.why_not_writable: str | None = None
        self.flushes = 0
        self.refuses_new: dict[str, str] = {}
        self.report_to()

    def break_down(self, why: str) -> None:
        self.broken, self.why_not_writable = True, why
        self.refuses_new["broken"] = why

    def check_writable(self) -> None:
        raise StoreFull(next(iter(self.refuses_new.values())))

    def append(self, draft: Draft) -> Appended:
        if self.room == 0:
            raise StoreFull("no room")
        self.room -= 1
        self.end += 10
        appended = Appended(
            Position(self.end - 10), 10, QueueOffset(0), 0, draft.topic, 0, 0, ("U",), None
        )
        self.hidden.append(appended)
        return appended

    def append_batch(self, drafts: Sequence[Draft]) -> list[Appended]:
        return [self.append(draft) for draft in drafts]

    def commit(self) -> Position:
        self.commits += 1
        if self.failing is not None:
            self.end = self.written_position
            raise self.failing
        self.written_position = Position(self.end)
        return self.written_position

    @property
    def confirmed_position(self) -> Position:
        return Position(self.confirmed[-1] if self.confirmed else 0)

    def confirm(self, position: Position) -> list[Appended]:
        assert position <= self.written_position
        arrivals, self.hidden = self.hidden, []
        self.confirmed.append(position)
        return arrivals

    def report_to(
        self,
        *,
        on_durable: Callable[[Position], None] = lambda position: None,
        on_broken: Callable[[str], None] = lambda why: None,
    ) -> None:
        self.on_durable, self.on_broken = on_durable, on_broken

    def request_flush(self) -> None:
        self.flushes += 1


class Ledger:
    """Remembers what it was told of the log."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def commit(self) -> None:
        self.told.append("commit")

    def undo(self) -> None:
        self.told.append("undo")


class NamedSend(PendingSend):
    """A send with a name to tell it by."""

    name: str


class Senders:
    """Submits sends and writes down what it is told of them."""

    def __init__(self, writer: LogWriter, trace: list[str] | None = None) -> None:
        self._writer = writer
        self.trace: list[str] = [] if trace is None else trace

    def send(self, name: str, *, early: bool = False) -> None:
        stored = [self._writer.append(DRAFT)]
        self._writer.submit(self.pending(name, stored, early=early))

    def repeat(self, name: str, end: int, *, early: bool = False) -> None:
        """Send what was stored before, up to ``end``."""
        original = Appended(Position(end - 10), 10, QueueOffset(0), 0, "T", 0, 0, ("U",), None)
        self._writer.submit_duplicate(self.pending(name, [original], early=early))

    def pending(self, name: str, stored: list[Appended], *, early: bool = False) -> NamedSend:
        return NamedSend(self, stored, self._writer.term, early, name)

    def told(self) -> list[str]:
        """Return what was written down since the last call."""
        trace, self.trace[:] = self.trace[:], []
        return trace

    def acknowledge(self, sends: list[NamedSend]) -> None:
        self.trace += [f"stored {send.name}" for send in sends]

    def answer_late(self, sends: list[NamedSend], status: ResponseCode) -> None:
        self.trace += [f"{_LATE[status]} {send.name}" for send in sends]

    def refuse(self, sends: list[NamedSend], error: StoreError) -> None:
        self.trace += [f"refused {send.name}: {error}" for send in sends]

    def refuse_unwritten(self, sends: list[NamedSend], error: StoreError) -> None:
        self.trace += [f"unwritten {send.name}: {error}" for send in sends]


class Slaves:
    """The reports of slaves: what each of them has."""

    def __init__(self, *positions: int) -> None:
        self.positions = list(positions)

    def position_of(self, replicas: int) -> int:
        ordered = sorted(self.positions, reverse=True)
        return ordered[replicas - 1] if replicas <= len(ordered) else 0

    def in_sync(self, end: int, gap_bytes: int) -> int:
        return sum(end - position < gap_bytes for position in self.positions)


class Group:
    """A group that a broker leads; counts how often it was told of growth."""

    def __init__(self, committed: int = 0) -> None:
        self.committed = committed
        self.growths = 0

    def note_growth(self) -> None:
        self.growths += 1


def log_writer(
    store: Store,
    *,
    sync: bool,
    group: Group | None = None,
    ledger: object = None,
    timeout_ms: int = 60_000,
    slaves: Slaves | None = None,
    slave_timeout_ms: int = 60_000,
    policy: ReplicaPolicy = TWO_REPLICAS,
) -> LogWriter:
    """Return a writer in its first term; if ``slaves`` are given, that of a SYNC_MASTER."""
    mode = FlushMode.SYNC_FLUSH if sync else FlushMode.ASYNC_FLUSH
    writer = LogWriter(
        store=store,  # type: ignore[arg-type]
        rules=rules_for(mode, store, group),
        ledger=Ledger() if ledger is None else ledger,  # type: ignore[arg-type]
        timeout_ms=timeout_ms,
        replicated=slaves and Replicated(store, replicas=slaves, policy=policy),
        slave_timeout_ms=slave_timeout_ms,
    )
    writer.begin_term(1)
    return writer
