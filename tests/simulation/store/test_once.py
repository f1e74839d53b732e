"""Idempotent producers on a disk that forgets: a model that the real thing must agree with.

The truth is the log. Whatever is sent, repeated, refused, lost and recovered: no stamp is in the
log twice while its producer is remembered, what is answered as a duplicate is in the log where the
answer says, and what was acknowledged is there after every crash.
"""

from __future__ import annotations

import errno
import random
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rocketpost.broker.dedup.producers import ProducerLimits
from rocketpost.broker.dedup.service import NOWHERE, DedupService, stamp_of
from rocketpost.broker.topic import TopicTable
from rocketpost.codec.faults import ProducerFenced, SequenceForgotten, SequenceOutOfOrder
from rocketpost.codec.record import decode_record
from rocketpost.errors import StoreError
from rocketpost.model.ids import Position
from rocketpost.model.stamp import Stamp
from rocketpost.server.features.dedup_recovery import DedupState, recover_blocking
from rocketpost.server.settings.broker import BrokerConfig
from rocketpost.store.config import FlushMode
from rocketpost.store.draft import Appended, Draft
from rocketpost.store.log.walk import walk

from .world import HOST, NOW, World, small

LIMITS = ProducerLimits(producers_max=3, idle_ms_max=5_000, runs_max=3, runs_total_max=8)
IDS = st.sampled_from(["a", "b", "c", "d"])
EPOCHS = st.sampled_from([0, 0, 0, 0, 0, 1, 1, 2])
SEQUENCES = st.integers(0, 12)
AFTERS = st.sampled_from([None, None, None, *range(13)])


@dataclass
class Remembered:
    """The state that a broker must remember of one producer."""

    epoch: int
    used_ms: int
    seen: set[int] = field(default_factory=set)
    horizon: int = 0

    def runs(self) -> list[list[int]]:
        runs: list[list[int]] = []
        for number in sorted(self.seen):
            if runs and runs[-1][-1] == number - 1:
                runs[-1].append(number)
            else:
                runs.append([number])
        return runs

    def add(self, number: int) -> None:
        if number >= self.horizon:
            self.seen.add(number)
            runs = self.runs()
            if len(runs) > LIMITS.runs_max:
                self.horizon = runs[0][-1] + 1
                self.seen -= set(runs[0])


class Model:
    """A table of producers, as plain as can be."""

    def __init__(self) -> None:
        self.producers: dict[str, Remembered] = {}

    def add(self, stamp: Stamp, ms: int) -> None:
        known = self.producers.pop(stamp.producer_id, None)
        if known is None or known.epoch < stamp.epoch:
            known = Remembered(stamp.epoch, ms)
        self.producers[stamp.producer_id] = known
        if known.epoch == stamp.epoch:
            known.add(stamp.sequence)
        known.used_ms = max(ms, known.used_ms)
        while len(self.producers) > LIMITS.producers_max or (
            len(self.producers) > 1
            and sum(len(each.runs()) for each in self.producers.values()) > LIMITS.runs_total_max
        ):
            del self.producers[next(iter(self.producers))]

    def expire(self, now_ms: int) -> None:
        for name in [
            name
            for name, known in self.producers.items()
            if known.used_ms < now_ms - LIMITS.idle_ms_max
        ]:
            del self.producers[name]


class OnceMachine(RuleBasedStateMachine):
    """Sends, repeats, fails, crashes; compares what is answered with the model and the log."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.topics = TopicTable(clock=self.world.clock, cluster_name="C", broker_name="B")
        self.history: list[tuple[Stamp, Appended]] = []
        self.unwritten: list[tuple[Stamp, Appended]] = []
        self.acknowledged: set[Stamp] = set()
        self.model = Model()
        self.forgets = False
        self.has_expired = False
        self.known: DedupState | None = None

    @initialize(sync=st.booleans(), forgets=st.sampled_from([False, False, True]))
    def start(self, sync: bool, forgets: bool) -> None:
        self.forgets = forgets
        mode = FlushMode.SYNC_FLUSH if sync else FlushMode.ASYNC_FLUSH
        self.world.config = small(flush_mode=mode, flush_interval_ms=10**8)
        self.open()

    def open(self) -> None:
        store = self.world.open()
        config = BrokerConfig()
        self.known = recover_blocking(
            store,
            topics=self.topics,
            config=config,
            clock=self.world.clock,
            limits=LIMITS,
            files=self.world.disk,
        )
        self.once = DedupService(
            producers=self.known.producers, keys=self.known.keys, records=store
        )

    # -- work

    @rule(sends=st.lists(st.tuples(IDS, EPOCHS, SEQUENCES, AFTERS), min_size=1, max_size=20))
    def send_some(self, sends: list[tuple[str, int, int, int | None]]) -> None:
        for name, epoch, sequence, after in sends:
            self.send(name, epoch, sequence, after)

    def send(self, name: str, epoch: int, sequence: int, after: int | None) -> None:
        stamp = Stamp(name, epoch, sequence)
        header: Any = SimpleNamespace(topic="T", queue_id=0, sequence=stamp.to_field(after))
        draft = Draft("T", 0, 0, 0, NOW, HOST, HOST, 0, 0, b"body", b"UNIQ_KEY\x01u\x02")
        draft.keys = (f"{name}.{epoch}.{sequence}",)
        draft.properties = f"UNIQ_KEY\x01{draft.keys[0]}\x02".encode()
        in_log = dict((*self.history, *self.unwritten))
        expected = self.expected(stamp, after)
        refusal: object = None
        try:
            (admission,) = self.once.admit(header, [draft])
        except (ProducerFenced, SequenceForgotten, SequenceOutOfOrder) as error:
            refusal = type(error)
        if refusal is not None:
            assert refusal is expected or self.has_expired
            return
        if admission.original is None:
            # The model learns from the whole log again what a snapshot has forgotten.
            assert expected is None or (self.has_expired and expected == "duplicate")
            appended = self.world.running.append(draft)
            self.once.take([admission], [appended])
            self.unwritten.append((stamp, appended))
            return
        assert expected == "duplicate" or self.has_expired
        assert stamp in in_log, "a message that is not in the log was called a duplicate"
        if admission.original.queue_offset != NOWHERE:
            place = in_log[stamp]
            assert admission.original.position == place.position
            assert admission.original.queue_offset == place.queue_offset
            assert admission.original.end == place.end

    def expected(self, stamp: Stamp, after: int | None) -> object:
        """Return what must come of a send, by the model."""
        fresh = {each for each, _ in self.unwritten}
        if stamp in fresh:
            return "duplicate"
        known = self.model.producers.get(stamp.producer_id)
        epochs = [each.epoch for each in fresh if each.producer_id == stamp.producer_id]
        epoch = max([known.epoch if known else -1, *epochs])
        if epoch > stamp.epoch:
            return ProducerFenced
        seen = known.seen if known and known.epoch == stamp.epoch else set()
        if stamp.sequence in seen:
            return "duplicate"
        if known and known.epoch == stamp.epoch and stamp.sequence < known.horizon:
            return SequenceForgotten
        if after is not None and after not in seen and stamp._replace(sequence=after) not in fresh:
            return SequenceOutOfOrder
        return None

    @rule()
    def commit(self) -> None:
        end = self.world.running.commit()
        if self.world.config.flush_mode is FlushMode.ASYNC_FLUSH:
            self.world.running.confirm(end)
        self.once.commit()
        for stamp, appended in self.unwritten:
            self.model.add(stamp, appended.store_ms)
            if self.world.config.flush_mode is FlushMode.ASYNC_FLUSH:
                self.acknowledged.add(stamp)  # which survives a kill, not a power cut
        self.history += self.unwritten
        self.unwritten = []

    @precondition(lambda self: self.unwritten)
    @rule()
    def fail_to_write(self) -> None:
        self.world.disk.fault = lambda count, name, path: (
            errno.ENOSPC if name in ("pwrite", "pwritev") else None
        )
        try:
            self.world.running.commit()
            raise AssertionError("the disk was full")
        except StoreError:
            self.once.undo()
        finally:
            self.world.disk.fault = None
        self.unwritten = []

    @rule()
    def flush(self) -> None:
        self.world.running.flush_blocking()
        durable = self.world.running.durable_position
        if durable > self.world.running.confirmed_position:
            self.world.running.confirm(Position(durable))
        self.acknowledged.update(stamp for stamp, place in self.history if place.end <= durable)

    @rule()
    def save(self) -> None:
        """Do what the broker does now and then: a snapshot of what is written."""
        assert self.known is not None
        self.commit()
        store = self.world.running
        data = self.known.producers.to_json(int(store.written_position))
        self.flush()
        self.known.producers_file.save_blocking(data)

    @precondition(lambda self: self.forgets)
    @rule(ms=st.integers(1, 4_000))
    def wait(self, ms: int) -> None:
        assert self.known is not None
        self.world.clock.ms += ms
        self.known.producers.expire(self.world.clock.ms)
        before = set(self.model.producers)
        self.model.expire(self.world.clock.ms)
        # After a crash an expired producer may be known again, until it expires again.
        self.has_expired |= before != set(self.model.producers)

    # -- crashes

    @rule()
    def kill(self) -> None:
        self.unwritten = []
        self.world.kill()
        self.recover()

    @rule(seed=st.integers(0, 1000))
    def lose_power(self, seed: int) -> None:
        self.unwritten = []
        durable = self.world.running.durable_position
        self.acknowledged &= {stamp for stamp, place in self.history if place.end <= durable}
        self.world.lose_power(random.Random(seed))
        self.recover()

    @rule()
    def stop(self) -> None:
        self.save()
        self.world.close()
        self.recover()

    @precondition(lambda self: self.forgets)
    @rule()
    def lose_the_snapshot(self) -> None:
        """Damage the snapshot and what it would fall back on: the log still has everything."""
        self.commit()
        self.world.kill()
        disk, path = self.world.disk, "/store/config/producerState.json"
        for each in (path, path + ".bak"):
            if disk.stat(each) is not None:
                disk.write_bytes(each, b"{")
        self.has_expired = True  # forgotten producers are back
        self.recover()

    def recover(self) -> None:
        self.open()
        end = self.world.running.end_position
        self.history = [(stamp, place) for stamp, place in self.history if place.end <= end]
        self.model = Model()
        for stamp, place in self.history:
            self.model.add(stamp, place.store_ms)
        if self.has_expired:
            self.model.expire(self.world.clock.ms)
            assert self.known is not None
            self.known.producers.expire(self.world.clock.ms)

    # -- the truth

    @invariant()
    def the_log_holds_what_was_promised(self) -> None:
        if self.known is None:
            return
        store = self.world.running
        found: list[Stamp] = []
        for position, data in walk(store.segments, 0, int(store.written_position)):
            record = decode_record(data)
            stamp = stamp_of(record)
            assert stamp is not None
            assert record.position == position
            found.append(stamp)
        assert found == [stamp for stamp, _ in self.history]
        assert self.acknowledged <= set(found), "acknowledged and lost"

    @invariant()
    def the_table_says_what_the_model_says(self) -> None:
        if self.known is None or self.has_expired:
            return
        table = {each.producer_id: each for each in self.known.producers.states()}
        assert list(reversed(table)) == list(self.model.producers)
        for name, known in self.model.producers.items():
            runs = [(run[0], run[-1] + 1) for run in known.runs()]
            state = table[name]
            assert (state.epoch, state.runs, state.horizon) == (known.epoch, runs, known.horizon)
            assert state.last_timestamp == known.used_ms

    def teardown(self) -> None:
        if self.world.store is not None:
            self.world.kill()


def stored_and_saved(*, flushed: bool) -> OnceMachine:
    """Return a broker whose snapshot speaks of one message."""
    machine = OnceMachine()
    machine.start(sync=True, forgets=False)
    machine.send("a", 0, 1, None)
    machine.commit()
    if flushed:
        machine.flush()
    assert machine.known is not None
    data = machine.known.producers.to_json(int(machine.world.running.written_position))
    machine.known.producers_file.save_blocking(data)
    return machine


def test_a_snapshot_past_the_end_of_the_log_is_not_trusted() -> None:
    """It cannot be, since the log is durable first; if it is, a message would be lost silently."""
    machine = stored_and_saved(flushed=False)
    machine.world.lose_power(random.Random(1), keep=0.0)
    machine.recover()
    assert machine.known is not None
    assert len(machine.known.producers) == 0
    machine.teardown()


def test_a_snapshot_of_another_log_is_not_trusted() -> None:
    machine = stored_and_saved(flushed=True)
    saved = machine.world.disk.read_bytes("/store/config/producerState.json")
    machine.teardown()
    other = OnceMachine()
    other.start(sync=True, forgets=False)
    other.world.clock.ms += 1000
    for sequence in range(3):
        other.send("b", 0, sequence, None)
    other.save()
    other.world.disk.write_bytes("/store/config/producerState.json", saved.ljust(1000))
    other.kill()
    assert other.known is not None
    assert [state.producer_id for state in other.known.producers.states()] == ["b"]
    other.teardown()


TestOnce = OnceMachine.TestCase
TestOnce.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
