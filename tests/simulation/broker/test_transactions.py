"""Any mixture of halves, ends, questions, time, kills and power cuts, against a small model.

The model knows how each local transaction ended, which is decided when its half is stored. Whatever
happens to broker and producers, a message is stored at most once, one that was rolled back never,
and in the end one that was committed is there: delivered, or given up where an operator finds it.
Only a power cut may take a half that was not on disk yet.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rocketpost.broker.group.offsets import OffsetTable
from rocketpost.broker.transaction.checks import CheckService, Question, Work
from rocketpost.broker.transaction.log import half_draft
from rocketpost.broker.transaction.service import Rules, TransactionService
from rocketpost.codec.headers.transaction import EndTransaction
from rocketpost.codec.properties import encode_properties
from rocketpost.codec.record import Record, pack_host
from rocketpost.errors import Fault, StoreFull
from rocketpost.model.names import CHECK_MAX_TOPIC
from rocketpost.model.sysflag import TRANSACTION_COMMIT, TRANSACTION_NONE, TRANSACTION_ROLLBACK
from rocketpost.model.topic import TopicConfig
from rocketpost.store.config import FlushMode
from rocketpost.store.draft import Appended, Draft
from rocketpost.store.message_store import MessageStore
from rocketpost.testing.clock import FakeClock
from rocketpost.testing.sim.disk import SimulatedDisk

from ..store.world import formatted, small

pytestmark = pytest.mark.slow

BORN = pack_host("10.0.0.9", 4000)
HOST = pack_host("10.0.0.1", 10911)
COMMIT, ROLLBACK, UNKNOWN = TRANSACTION_COMMIT, TRANSACTION_ROLLBACK, TRANSACTION_NONE
RULES = Rules(timeout_ms=6000, check_max=4, check_interval_ms=30_000, op_chars_max=40)
ENDS = st.sampled_from([COMMIT, ROLLBACK])


class Topics:
    def find(self, topic: str) -> TopicConfig | None:
        return TopicConfig(topic_name=topic)

    def create_internal(self, topic: str, *, queue_nums: int) -> TopicConfig:
        return TopicConfig(topic_name=topic)


@dataclass
class Local:
    """A local transaction and what its producer knows of the half."""

    name: str
    truth: int
    places: list[tuple[int, int]]
    """Position and queue offset of every copy that the producer has heard of."""
    end: int
    may_be_lost: bool = False


class Broker:
    """The broker's part in it: a store on a simulated disk and what follows its transactions."""

    def __init__(self, disk: SimulatedDisk, clock: FakeClock, saved: bytes, alive: list[bool]):
        self.store = MessageStore.open_blocking(
            small(flush_mode=FlushMode.ASYNC_FLUSH, index_entry_count=1000),
            clock=clock,
            files=disk,
        )
        self.offsets = OffsetTable(clock=clock)
        if saved:
            self.offsets.load(saved)
        numbers = itertools.count(1)
        self.transactions = TransactionService(
            store=self.store,
            topics=Topics(),
            offsets=self.offsets,
            clock=clock,
            store_host=HOST,
            new_unique_id=lambda: f"op-{next(numbers)}",
        )
        self.transactions.rules = RULES
        self.checks = CheckService(
            transactions=self.transactions,
            record_at=self.store.record_at,
            clock=clock,
            store_host=HOST,
            has_producer=lambda group: alive[0],
        )
        self.transactions.recover()

    def put(self, drafts: list[Draft], room: int = 1000) -> list[Appended]:
        stored = [self.store.append(draft) for draft in drafts[:room]]
        self.transactions.note_arrivals(self.store.confirm(self.store.commit()))
        if not stored:
            raise StoreFull("no room")
        return stored

    def step(self, room: int) -> list[Question] | None:
        """Do one thing that is due; None if nothing is."""
        work = self.checks.next()
        if not isinstance(work, Work):
            return None
        stored: list[Appended] = []
        with contextlib.suppress(StoreFull):
            stored = self.put(work.drafts, room)
        return self.checks.note_stored(work, stored)

    def records(self, topic: str) -> list[Record]:
        found = []
        for queue in self.store.queues_of(topic):
            for offset in range(int(queue.first), int(queue.end)):
                entry = queue.entry(offset)
                record = self.store.record_at(entry[0]) if entry is not None else None
                if record is not None and record.topic == topic:
                    found.append(record)
        return found

    def names(self, topic: str) -> list[str]:
        return [record.properties["UNIQ_KEY"] for record in self.records(topic)]


class TransactionMachine(RuleBasedStateMachine):
    """The rules of the game."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = formatted()
        self.clock = FakeClock()
        self.alive = [True]
        self.saved = b""
        self.locals: list[Local] = []
        self.broker = Broker(self.disk, self.clock, b"", self.alive)

    def teardown(self) -> None:
        self.alive[0] = True
        self.broker.checks.note_producer("g")
        while self.broker.transactions.look_up_commits(10):
            pass
        for _ in range(3 * RULES.check_max):
            self.clock.advance(RULES.check_interval_ms)
            while (questions := self.broker.step(1000)) is not None:
                self.answer(questions, [True])
        assert len(self.broker.transactions.table) == 0
        delivered, given_up = self.broker.names("T"), self.broker.names(CHECK_MAX_TOPIC)
        for local in self.locals:
            if local.truth == COMMIT and not local.may_be_lost:
                assert local.name in delivered or local.name in given_up
        self.check()

    @invariant()
    def check(self) -> None:
        delivered = self.broker.names("T")
        assert len(delivered) == len(set(delivered)), "stored twice"
        wrong = {local.name for local in self.locals if local.truth == ROLLBACK}
        assert wrong.isdisjoint(delivered), "rolled back and delivered"

    def answer(self, questions: list[Question], answers: list[bool | None]) -> None:
        """Answer some questions by the truth (True), some with "unknown" (False), some never."""
        for question, said in zip(questions, itertools.cycle(answers), strict=False):
            [local] = [each for each in self.locals if each.name == question.unique_key]
            place = question.position, question.offset
            local.places.append(place)
            if said:
                self.end_at(local, place, local.truth, asked=True)
            elif said is False:
                self.broker.transactions.note_unknown(
                    self.header(local, place, UNKNOWN, asked=True)
                )

    def header(
        self, local: Local, place: tuple[int, int], kind: int, *, asked: bool = False
    ) -> EndTransaction:
        return EndTransaction(
            producer_group="g",
            tran_state_table_offset=place[1],
            commit_log_offset=place[0],
            commit_or_rollback=kind,
            from_transaction_check=asked,
            msg_id=local.name,
        )

    def end_at(
        self, local: Local, place: tuple[int, int], kind: int, *, asked: bool = False
    ) -> None:
        try:
            ending = self.broker.transactions.end(self.header(local, place, kind, asked=asked))
        except Fault:
            # Only what a power cut took may be refused, or the opposite of what is so.
            assert local.may_be_lost or kind != local.truth
            return
        assert kind == local.truth
        if ending is not None:
            assert self.broker.transactions.note_stored(ending, self.broker.put(ending.drafts))

    @rule(truth=ENDS, count=st.integers(1, 3))
    def send(self, truth: int, count: int) -> None:
        for _ in range(count):
            name = f"m{len(self.locals)}"
            properties = {"UNIQ_KEY": name, "TRAN_MSG": "true", "PGROUP": "g"}
            draft = Draft(
                "T", 0, 0, 0, self.clock.now_ms(), BORN, HOST, 0, 0, name.encode(),
                encode_properties(properties), 0, (name,),
            )  # fmt: skip
            [stored] = self.broker.put([half_draft(draft, properties)])
            place = int(stored.position), int(stored.queue_offset)
            self.locals.append(Local(name, truth, [place], int(stored.end)))

    @precondition(lambda self: self.locals)
    @rule(which=st.integers(0, 99), place=st.integers(0, 9))
    def end(self, which: int, place: int) -> None:
        local = self.locals[which % len(self.locals)]
        self.end_at(local, local.places[place % len(local.places)], local.truth)

    @precondition(lambda self: self.locals)
    @rule(which=st.integers(0, 99), is_stored=st.booleans())
    def end_and_die(self, which: int, is_stored: bool) -> None:
        local = self.locals[which % len(self.locals)]
        try:
            ending = self.broker.transactions.end(self.header(local, local.places[-1], local.truth))
        except Fault:
            assert local.may_be_lost
            return
        if ending is not None and is_stored:
            self.broker.put(ending.drafts[:1])
        self.kill()

    @precondition(lambda self: self.locals)
    @rule(which=st.integers(0, 99))
    def contradict(self, which: int) -> None:
        """End a transaction that has ended the other way; as a lying producer would."""
        local = self.locals[which % len(self.locals)]
        names = [half.identity.unique_key for half in self.broker.transactions.table]
        given_up = self.broker.names(CHECK_MAX_TOPIC)
        if local.name not in names and local.name not in given_up and not local.may_be_lost:
            if local.truth == COMMIT:
                self.end_at(local, local.places[0], ROLLBACK)
            else:
                self.end_at(local, local.places[0], COMMIT)

    @rule(
        ms=st.sampled_from([1, 3000, 6000, 30_000]),
        room=st.sampled_from([0, 1, 2, 1000, 1000]),
        answers=st.lists(st.sampled_from([True, False, None]), min_size=1, max_size=3),
    )
    def wait(self, ms: int, room: int, answers: list[bool | None]) -> None:
        self.clock.advance(ms)
        for _ in range(5):
            questions = self.broker.step(room)
            if questions is None:
                break
            self.answer(questions, answers)

    @rule(is_alive=st.booleans())
    def producers(self, is_alive: bool) -> None:
        self.alive[0] = is_alive
        if is_alive:
            self.broker.checks.note_producer("g")

    @rule(which=st.integers(0, 9))
    def resume(self, which: int) -> None:
        given_up = self.broker.records(CHECK_MAX_TOPIC)
        if given_up:
            position = given_up[which % len(given_up)].position
            try:
                self.broker.put([self.broker.transactions.resume(position)])
            except Fault:
                return

    @rule(position=st.integers(0, 20_000))
    def move_halves_before(self, position: int) -> None:
        work = self.broker.checks.move_halves_before(position)
        if work is not None:
            self.broker.checks.note_stored(work, self.broker.put(work.drafts))

    @rule()
    def sync(self) -> None:
        self.broker.store._flusher.flush_blocking()

    @rule()
    def save(self) -> None:
        self.broker.transactions.advance_progress(self.broker.store.durable_position)
        self.saved = self.broker.offsets.to_json()

    @rule()
    def save_store(self) -> None:
        self.broker.store.save_blocking()

    @rule()
    def kill(self) -> None:
        self.restart(self.disk.after_kill())

    @rule(seed=st.integers(0, 2**32))
    def cut_power(self, seed: int) -> None:
        durable = int(self.broker.store.durable_position)
        for local in self.locals:
            local.may_be_lost |= local.end > durable
            # A newer copy may be gone while the first is there; who names it is asked again.
            local.places = [at for at in local.places if at[0] < durable] or local.places[:1]
        self.restart(self.disk.after_power_cut(random.Random(seed)))

    @precondition(lambda self: self.locals)
    @rule(which=st.integers(0, 99), seed=st.integers(0, 2**32))
    def end_save_and_cut_power(self, which: int, seed: int) -> None:
        """Do that at the worst moment: what ended the half is saved, but not on disk."""
        self.sync()
        self.end(which, 0)
        self.save()
        self.cut_power(seed)

    def restart(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self.broker = Broker(disk, self.clock, self.saved, self.alive)


TestTransactions = TransactionMachine.TestCase
TestTransactions.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
