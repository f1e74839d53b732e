"""Transactions over a real store, without the server that drives them, and a crash at any point."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import NamedTuple

import msgspec

from rocketpost.broker.delivery import Wait
from rocketpost.broker.group.offsets import OffsetTable
from rocketpost.broker.kinds import HalfMessages
from rocketpost.broker.transaction.checks import CheckService, Question, Work
from rocketpost.broker.transaction.service import Ending, Rules, TransactionService
from rocketpost.codec.headers.transaction import EndTransaction
from rocketpost.codec.properties import decode_properties, encode_properties
from rocketpost.codec.record import Record, pack_host
from rocketpost.errors import StoreFull
from rocketpost.kernel.hashing import string_hash
from rocketpost.model.names import CHECK_MAX_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from rocketpost.model.sysflag import TRANSACTION_COMMIT, TRANSACTION_NONE, TRANSACTION_ROLLBACK
from rocketpost.model.topic import TopicConfig
from rocketpost.store.config import StoreConfig
from rocketpost.store.draft import Appended, Draft
from rocketpost.store.message_store import MessageStore
from rocketpost.testing.clock import FakeClock

BORN = pack_host("10.0.0.9", 4000)
HOST = pack_host("10.0.0.1", 10911)
COMMIT, ROLLBACK, UNKNOWN = TRANSACTION_COMMIT, TRANSACTION_ROLLBACK, TRANSACTION_NONE
TOPIC, GROUP = "T", "g"
START_MS = 1_700_000_000_000


class SetClock(FakeClock):
    """A clock that may be set back."""

    def set_back(self, ms: int) -> None:
        self._now_ms -= ms


class Topics:
    def __init__(self) -> None:
        self.table = {TOPIC: TopicConfig(topic_name=TOPIC, read_queue_nums=4, write_queue_nums=4)}

    def find(self, topic: str) -> TopicConfig | None:
        return self.table.get(topic)

    def create_internal(self, topic: str, *, queue_nums: int) -> TopicConfig:
        config = TopicConfig(
            topic_name=topic, read_queue_nums=queue_nums, write_queue_nums=queue_nums
        )
        return self.table.setdefault(topic, config)


class Sent(NamedTuple):
    """The place of a half, as its producer knows it."""

    name: str
    position: int
    offset: int


class World:
    """A store and its transactions. Every draft is committed at once, unless ``room`` is short."""

    def __init__(self, root: Path, *, index: bool = True, rules: Rules | None = None) -> None:
        self.root = root
        self.clock = SetClock(START_MS)
        self.topics = Topics()
        self.rules = rules or Rules()
        self.producers = {GROUP}
        self.index = index
        self.saved = b""
        self.room: int | None = None
        self._names = itertools.count(1)
        self._op_names = itertools.count(1)
        self.open()

    def open(self) -> None:
        config = StoreConfig(
            root=str(self.root),
            segment_bytes=64 * 1024,
            queue_file_bytes=2000,
            message_bytes_max=8192,
            index_slot_count=64,
            index_entry_count=4096,
            index_enabled=self.index,
        )
        self.store = MessageStore.open_blocking(config, clock=self.clock)
        self.offsets = OffsetTable(clock=self.clock)
        if self.saved:
            self.offsets.load(self.saved)
        self.kind = HalfMessages()
        self.transactions = TransactionService(
            store=self.store,
            topics=self.topics,
            offsets=self.offsets,
            clock=self.clock,
            store_host=HOST,
            new_unique_id=lambda: f"op-{next(self._op_names)}",
        )
        self.transactions.rules = self.rules
        self.checks = CheckService(
            transactions=self.transactions,
            record_at=self.store.record_at,
            clock=self.clock,
            store_host=HOST,
            has_producer=lambda group: group in self.producers,
        )
        self.transactions.recover()
        self.kind.pending_count = self.transactions.table.__len__

    def save(self) -> None:
        """Save the offsets, as far as they may be."""
        self.store.save_blocking()
        self.transactions.advance_progress(self.store.durable_position)
        self.saved = self.offsets.to_json()

    def crash(self) -> None:
        """Forget everything but the files, and start again."""
        self.store._flusher.close_blocking()
        self.store._checkpointer.close_blocking()
        self.store._parts.release_blocking()
        self.open()

    def close(self) -> None:
        self.store.close_blocking()

    # What producers do.

    def put(self, drafts: list[Draft]) -> list[Appended]:
        if self.room is not None:
            drafts = drafts[: self.room]
            if not drafts:
                raise StoreFull("no room")
        stored = [self.store.append(draft) for draft in drafts]
        self.transactions.note_arrivals(self.store.confirm(self.store.commit()))
        return stored

    def send(self, name: str = "", *, group: str = GROUP, topic: str = TOPIC, **more: str) -> Sent:
        name = name or f"m{next(self._names)}"
        properties = {"UNIQ_KEY": name, "TRAN_MSG": "true", "PGROUP": group, "TAGS": "A", **more}
        draft = Draft(
            topic, 2, 7, 0, self.clock.now_ms(), BORN, HOST, 0, 0, f"body of {name}".encode(),
            encode_properties(properties), string_hash("A"), (name,),
        )  # fmt: skip
        half = self.kind.prepare(draft, decode_properties(draft.properties))
        assert half is not None
        [stored] = self.put([half])
        return Sent(name, stored.position, stored.queue_offset)

    def header(
        self, sent: Sent, kind: int, *, asked: bool = False, **more: object
    ) -> EndTransaction:
        header = EndTransaction(
            producer_group=GROUP,
            tran_state_table_offset=sent.offset,
            commit_log_offset=sent.position,
            commit_or_rollback=kind,
            from_transaction_check=asked,
            msg_id=sent.name,
        )
        return msgspec.structs.replace(header, **more)

    def begin(self, sent: Sent, kind: int, *, asked: bool = False) -> Ending | None:
        return self.transactions.end(self.header(sent, kind, asked=asked))

    def end(self, sent: Sent, kind: int, *, asked: bool = False) -> bool:
        """End a transaction; return whether that changed anything."""
        ending = self.begin(sent, kind, asked=asked)
        return ending is not None and self.transactions.note_stored(ending, self.put(ending.drafts))

    # What the broker does.

    def work(self) -> list[Question]:
        """Do what is to be done now; return what would be asked."""
        questions: list[Question] = []
        while isinstance(step := self.checks.next(), Work):
            questions += self.do(step)
        return questions

    def do(self, work: Work) -> list[Question]:
        stored: list[Appended] = []
        try:
            stored = self.put(work.drafts)
        finally:
            questions = self.checks.note_stored(work, stored)
        return questions

    def wait_ms(self) -> int | None:
        step = self.checks.next()
        assert isinstance(step, Wait)
        return step.ms

    def later(self, ms: int) -> list[Question]:
        self.clock.advance(ms)
        return self.work()

    # What stands in the log.

    def records(self, topic: str) -> list[Record]:
        found = []
        for queue in self.store.queues_of(topic):
            for offset in range(int(queue.first), int(queue.end)):
                entry = queue.entry(offset)
                record = self.store.record_at(entry[0]) if entry is not None else None
                assert record is not None
                found.append(record)
        return found

    def names(self, topic: str = TOPIC) -> list[str]:
        return sorted(record.properties["UNIQ_KEY"] for record in self.records(topic))

    def halves(self) -> list[Record]:
        return self.records(HALF_TOPIC)

    def discarded(self) -> list[str]:
        return self.names(CHECK_MAX_TOPIC)

    def done(self) -> set[int]:
        """Return the offsets that op messages name."""
        texts = [bytes(record.body).decode() for record in self.records(OP_HALF_TOPIC)]
        return {int(word) for text in texts for word in text.split(",") if word}

    @property
    def pending(self) -> list[str]:
        return sorted(half.identity.unique_key for half in self.transactions.table)


def answer(question: Question) -> Sent:
    """Return the half that a question is about, as its producer would name it."""
    return Sent(question.unique_key, question.position, question.offset)
