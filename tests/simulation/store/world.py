"""A store on a simulated disk, a producer that remembers, and the checks that follow a crash."""

from __future__ import annotations

import contextlib
import random
from dataclasses import dataclass, field
from typing import Any

from rocketpost.codec.properties import encode_properties
from rocketpost.codec.record import pack_host
from rocketpost.errors import StoreBroken, StoreError
from rocketpost.kernel.hashing import string_hash
from rocketpost.model.ids import Position
from rocketpost.store.config import FlushMode, StoreConfig
from rocketpost.store.draft import Draft
from rocketpost.store.message_store import MessageStore
from rocketpost.store.queue.files import FILLER_SIZE
from rocketpost.testing.sim.disk import SimulatedDisk

from .packing import SimPacker

ROOT = "/store"
NOW = 1_700_000_000_000
HOST = pack_host("127.0.0.1", 10911)
FOREVER = 2**62


def small(**changes: Any) -> StoreConfig:
    """Return settings with tiny files, so that a few messages fill several of each."""
    settings: dict[str, Any] = {
        "root": ROOT,
        "segment_bytes": 8192,
        "queue_file_bytes": 400,
        "message_bytes_max": 4096,
        "index_slot_count": 32,
        "index_entry_count": 64,
        "flush_mode": FlushMode.SYNC_FLUSH,
    }
    return StoreConfig(**(settings | changes))


def formatted(**options: Any) -> SimulatedDisk:
    """Return a disk on which somebody has made the root directory."""
    fault = options.pop("fault", None)
    disk = SimulatedDisk(**options)
    disk.mkdir(ROOT)
    disk.fsync_dir("/")
    disk.fault = fault
    return disk


class PowerCut(BaseException):
    """The machine stops inside a call; nothing of the program runs on."""


class Clock:
    def __init__(self) -> None:
        self.ms = NOW

    def now_ms(self) -> int:
        self.ms += 1
        return self.ms


@dataclass
class Sent:
    """One message, what the store said about it, and whether a producer was told so."""

    topic: str
    queue_id: int
    body: bytes
    key: str
    position: int = -1
    end: int = -1
    queue_offset: int = -1
    is_acked: bool = False
    is_seen: bool = False  # a consumer may have read it
    may_be_gone: bool = False  # its topic was deleted, but that need not be on disk
    is_gone: bool = False


@dataclass
class World:
    """State that survives a crash: the disk, the clock, and what producers know."""

    disk: SimulatedDisk = field(default_factory=formatted)
    config: StoreConfig = field(default_factory=small)
    clock: Clock = field(default_factory=Clock)
    sent: list[Sent] = field(default_factory=list)
    durable: int = 0
    expired: int = 0
    victims: set[int] = field(default_factory=set)  # positions of messages that were damaged
    sizes: tuple[int, ...] = (0, 5, 60, 700)
    count: int = 0
    store: MessageStore | None = None
    _packer: SimPacker | None = None

    # -- running

    def open(self, *, accept_missing: bool = False) -> MessageStore:
        self.durable = 0
        self.store = MessageStore.open_blocking(
            self.config,
            clock=self.clock,
            files=self.disk,
            accept_missing=accept_missing,
            on_durable=self._on_durable,
        )
        return self.store

    @property
    def running(self) -> MessageStore:
        assert self.store is not None
        return self.store

    def _on_durable(self, position: Position) -> None:
        self.durable = position

    def send(self, rng: random.Random, count: int = 1) -> None:
        """Append messages and commit them in one wake-up; nobody is told yet.

        Raises:
            StoreError: None of them was taken.
        """
        before = len(self.sent)
        try:
            for _ in range(count):
                message, draft = self.draft(rng)
                self._append(message, draft)
                self.sent.append(message)
        finally:
            # What an append refused does not touch what was appended before it.
            try:
                end = self.running.commit()
            except StoreBroken:
                raise  # a part may have been written; nobody is told that it was
            except StoreError:
                del self.sent[before:]
                raise
            if self.config.flush_mode is FlushMode.ASYNC_FLUSH:
                self.running.confirm(end)
            self._look()

    def _append(self, message: Sent, draft: Draft) -> None:
        """Append a message; every second one as a wave, if the store takes it so."""
        store = self.running
        queue = store.queue(draft.topic, draft.queue_id)
        position = None
        if self.count % 2 and queue is not None:
            position = self._packer_of(store).pack(draft, queue)
        if position is not None:
            message.position, message.end = position, store.end_position
            message.queue_offset = queue.next_offset - 1
        else:
            appended = store.append(draft)
            message.position, message.end = appended.position, appended.end
            message.queue_offset = appended.queue_offset

    def _packer_of(self, store: MessageStore) -> SimPacker:
        if self._packer is None or self._packer.store is not store:
            self._packer = SimPacker(store)
        return self._packer

    def draft(self, rng: random.Random) -> tuple[Sent, Draft]:
        self.count += 1
        key = f"key-{self.count:05}"
        body = f"message {self.count:05} ".encode() + rng.randbytes(rng.choice(self.sizes))
        sent = Sent(f"topic{rng.randrange(2)}", rng.randrange(2), body, key)
        properties = encode_properties({"TAGS": "tag", "UNIQ_KEY": key, "n": f"{self.count:05}"})
        draft = Draft(
            topic=sent.topic,
            queue_id=sent.queue_id,
            flag=0,
            sys_flag=0,
            born_ms=NOW,
            born_host=HOST,
            store_host=HOST,
            reconsume_times=0,
            prepared_position=0,
            body=body,
            properties=properties,
            tags_code=string_hash("tag"),
            keys=(key,),
        )
        return sent, draft

    def flush(self) -> None:
        """Do the flusher's round, then what the server does when it hears of it."""
        self.running._flusher.flush_blocking()
        self.hear()

    def hear(self) -> None:
        if self.durable > self.running.confirmed_position:
            self.running.confirm(Position(self.durable))
        for message in self.sent:
            if message.end <= self.durable:
                message.is_acked = True
        self._look()

    def _look(self) -> None:
        """Note what a consumer could have read."""
        for message in self.sent:
            if not message.is_seen:
                queue = self.running.queue(message.topic, message.queue_id)
                message.is_seen = queue is not None and queue.end > message.queue_offset

    def save(self) -> None:
        """Do the checkpoint thread's round."""
        self.running.save_blocking()
        self.hear()

    def clean(self) -> None:
        """Do a round of cleaning as if every segment had expired; the last ones stay."""
        cleaning = self.running.cleaning
        plan = cleaning.plan_blocking(now_ms=FOREVER, hour=0, is_requested=True)
        self.expired = max(
            [self.expired, *(start + self.config.segment_bytes for start in plan.to_delete)]
        )
        cleaning.apply(plan)
        while cleaning.trim_queues():
            pass
        cleaning.unlink_blocking()

    def delete(self, topic: str) -> None:
        """Delete a topic's queues; certain only when it is finished."""
        doomed = [message for message in self.sent if message.topic == topic]
        for message in doomed:
            message.may_be_gone = True
        self.running.delete_queues(topic).finish_blocking()
        for message in doomed:
            message.is_gone = True

    # -- stopping

    def lose_power(self, rng: random.Random, *, keep: float | None = None) -> None:
        """Cut the power; the disk keeps what was synced, and by chance some of the rest."""
        self._drop_store(self.disk.after_power_cut(rng, keep=keep))

    def kill(self) -> None:
        """Kill the process; the page cache stays."""
        self._drop_store(self.disk.after_kill())

    def _drop_store(self, disk: SimulatedDisk) -> None:
        store, self.store = self.store, None
        self.disk = disk
        if store is not None:
            with contextlib.suppress(OSError, StoreError):
                store.close_blocking()  # on the dead disk: nothing reaches the new one

    def close(self) -> None:
        store, self.store = self.running, None
        store.close_blocking()

    # -- checking

    def check(self) -> None:
        """Check what the open store shows against what was sent, and adopt it.

        Every acknowledged message is there; what is there was sent, is unaltered and in order.
        What is missing was never acknowledged, or it is among ``victims``; before the end of the
        log it is named as damage. Queues and index agree with the log. Messages that were cleaned
        away may be gone or still there.
        """
        store = self.running
        ends = sorted({message.end for message in self.sent})
        end = store.end_position
        recovered = []
        for message in self.sent:
            if message.end <= end and not self.is_named_lost(message):
                recovered.append(message)
                continue
            told = "acknowledged" if message.is_acked else "read" if message.is_seen else ""
            assert not told or message.is_gone or message.position in self.victims, (
                f"{told} and lost: {message}, log ends at {end}"
            )
        last = max((message.end for message in recovered), default=store.first_position)
        blanks = self.config.segment_bytes
        assert end <= last or end % blanks == 0 or end in ends, f"foreign bytes before {end}"
        shown: dict[tuple[str, int], list[Sent]] = {}
        for message in recovered:
            shown.setdefault((message.topic, message.queue_id), []).append(message)
        for queue in store.queues:
            self._check_queue(queue, shown.pop((queue.topic, queue.queue_id), []))
        for messages in shown.values():
            for message in messages:
                assert self._may_miss(message), f"no queue shows {message}"
                message.is_gone = message.may_be_gone
        self._check_index(recovered)
        self.sent = recovered

    def is_named_lost(self, message: Sent) -> bool:
        """Tell whether the store says that a message is damaged."""
        return any(
            damage.begin < message.end and message.position < damage.end
            for damage in self.running.damage.all()
        )

    def _may_miss(self, message: Sent) -> bool:
        return message.may_be_gone or message.is_gone or message.position < self.expired

    def _check_queue(self, queue: Any, expected: list[Sent]) -> None:
        store = self.running
        name = f"{queue.topic}/{queue.queue_id}"
        assert queue.next_offset == queue.end, f"{name}: the next offset is not the end"
        by_offset = {message.queue_offset: message for message in expected}
        assert len(by_offset) == len(expected), f"{name}: an offset was given twice"
        for message in expected:
            is_shown = queue.first <= message.queue_offset < queue.end
            assert is_shown or self._may_miss(message), (
                f"{name} shows [{queue.first}, {queue.end}), not {message}"
            )
            assert not (is_shown and message.is_gone), f"{name} shows {message}, which was deleted"
            message.is_gone = message.may_be_gone and not is_shown
            message.may_be_gone = message.is_gone
        for offset in range(queue.first, queue.end):
            entry = queue.entry(offset)
            assert entry is not None, f"{name}: no entry {offset}"
            position, size, tags_code = entry
            if size == FILLER_SIZE and offset not in by_offset:
                continue  # it was lost, and nobody gets its offset
            if position in self.victims:
                continue  # whether its record is sound is a reader's business
            assert offset in by_offset, f"{name}: {offset} was never sent"
            message = by_offset[offset]
            if size == FILLER_SIZE and message.position < self.expired:
                continue  # its segment is gone; the entry only keeps the place
            assert (position, position + size) == (message.position, message.end)
            assert tags_code == string_hash("tag")
            record = store.record_at(position)
            if record is None and position < self.expired:
                continue
            assert record is not None, f"{name}: no record at {position}"
            assert bytes(record.body) == message.body, f"{name}: {offset} has another body"
            assert record.properties["UNIQ_KEY"] == message.key
            assert (record.topic, record.queue_id) == (message.topic, message.queue_id)
            assert record.queue_offset == offset

    def _check_index(self, recovered: list[Sent]) -> None:
        store = self.running
        for message in recovered:
            found = store.find(message.topic, message.key, count_max=64, begin_ms=0, end_ms=FOREVER)
            if not self._may_miss(message):
                assert message.position in found, f"not in the index: {message}"
            for position in found:
                record = store.record_at(position)
                assert record is None or record.position == position
