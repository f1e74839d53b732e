"""Fakes that tests of the log writer share: a store of records of ten bytes, and who sends."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rocketpost.errors import StoreError, StoreFull
from rocketpost.model.ids import Position, QueueOffset
from rocketpost.server.writer.acknowledgement_rules import rules_for
from rocketpost.server.writer.log_writer import LogWriter
from rocketpost.server.writer.pending_sends import PendingSend
from rocketpost.store.config import FlushMode
from rocketpost.store.draft import Appended, Draft

DRAFT = Draft("T", 0, 0, 0, 0, b"", b"", 0, 0, b"", b"")


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

    def answer_late(self, sends: list[NamedSend]) -> None:
        self.trace += [f"late {send.name}" for send in sends]

    def refuse(self, sends: list[NamedSend], error: StoreError) -> None:
        self.trace += [f"refused {send.name}: {error}" for send in sends]

    def refuse_unwritten(self, sends: list[NamedSend], error: StoreError) -> None:
        self.trace += [f"unwritten {send.name}: {error}" for send in sends]


def log_writer(
    store: Store, *, sync: bool, ledger: object = None, timeout_ms: int = 60_000
) -> LogWriter:
    """Return a writer in its first term."""
    mode = FlushMode.SYNC_FLUSH if sync else FlushMode.ASYNC_FLUSH
    writer = LogWriter(
        store=store,  # type: ignore[arg-type]
        rules=rules_for(mode, store),
        ledger=Ledger() if ledger is None else ledger,  # type: ignore[arg-type]
        timeout_ms=timeout_ms,
    )
    writer.begin_term(1)
    return writer
