"""A slave's store equals its master's, whatever was stored and however it came.

Random traffic goes into one store. Its log goes into another in random chunks, with kills, restarts
and topics that are deleted and created again. Then everything that is derived from the log must be
the same, and the slave's directory must go on as the master's would have.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rocketpost.codec.properties import encode_properties
from rocketpost.codec.record import pack_host
from rocketpost.kernel.record_scan import index_words, record_starts
from rocketpost.model import sysflag
from rocketpost.model.ids import Position
from rocketpost.model.names import HALF_TOPIC, OP_HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from rocketpost.store.draft import Draft
from rocketpost.store.message_store import MessageStore
from rocketpost.store.replica.raw_append import RawAppender

from ..conftest import HOST, Opener
from ..packing import append_packed

TOPICS = (
    "TopicA", "TopicB", "Thema-ü", "%RETRY%group", "%LMQ%lite", "l" * 200, SCHEDULE_TOPIC,
    TIMER_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, "rmq_sys_REVIVE_LOG_C",
)  # fmt: skip
DELETABLE = TOPICS[:5]
STATES = (
    sysflag.TRANSACTION_NONE, sysflag.TRANSACTION_NONE, sysflag.TRANSACTION_NONE,
    sysflag.TRANSACTION_COMMIT, sysflag.TRANSACTION_PREPARED, sysflag.TRANSACTION_ROLLBACK,
)  # fmt: skip
HOST_V6 = pack_host("2001:db8::7", 10911)


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[Opener]:
    opener = Opener(tmp_path / "leader")
    yield opener
    for store in opener.stores:
        store.close_blocking()


class Master:
    """A store with random traffic of all kinds."""

    def __init__(self, opener: Opener, rng: random.Random, **settings: Any) -> None:
        self.opener = opener
        self.rng = rng
        self.settings = settings
        self.store = opener(**settings)
        self.keys: set[tuple[str, str]] = set()
        self._count = 0

    def step(self) -> None:
        rng, store = self.rng, self.store
        self.opener.clock.ms += rng.choice((0, 0, 1, 7, 400, 3000, 200_000))
        drafts = [self.draft() for _ in range(rng.choice((1, 1, 2, 5, 12)))]
        if rng.random() < 0.5 and not self.settings.get("append_checksum"):
            append_packed(store, drafts)
        else:
            for each in drafts:
                store.append(each)
        store.confirm(store.commit())
        if rng.random() < 0.04:
            store.delete_queues(rng.choice(DELETABLE)).finish_blocking()
        if rng.random() < 0.02:
            store.close_blocking()
            self.opener.stores.remove(store)
            self.store = self.opener(**self.settings)

    def draft(self) -> Draft:
        rng = self.rng
        self._count += 1
        topic = rng.choice(TOPICS)
        words = {
            "UNIQ_KEY": f"U{self._count}",
            "TAGS": rng.choice(("a", "b", "tåg", "")),
            "KEYS": rng.choice(("", "k", f"k {self._count}", "x  y ", "ключ 鍵")),
            "DELAY": rng.choice(("", "1", "3", "99", "none")),
            "other": rng.choice(("", "1234567890", "z" * 600, "ö")),
        }
        properties = encode_properties({name: text for name, text in words.items() if text})
        if rng.random() < 0.1:
            properties = b"TAGS\x01\xff\xfe\x02KEYS\x01a\0b\x02" + properties + b"TAGS\x01last"
        tags_code, keys = index_words(properties)
        self.keys.update((topic, key) for key in keys)
        host = HOST_V6 if rng.random() < 0.1 else HOST
        state = rng.choice(STATES)
        v6 = (sysflag.BORN_HOST_V6 | sysflag.STORE_HOST_V6) if host is HOST_V6 else 0
        return Draft(
            topic, rng.randrange(3), rng.randrange(3), state | v6, 1_700_000_000_000, host, host,
            0, 0, rng.randbytes(rng.choice((0, 1, 50, 400))), properties, tags_code, keys,
        )  # fmt: skip


class Slave:
    """A store that gets a master's log, and is killed and restarted now and then."""

    def __init__(self, opener: Opener, rng: random.Random, **settings: Any) -> None:
        self.opener = opener
        self.rng = rng
        self.settings = settings
        self.store = opener(**settings)

    def follow(self, master: MessageStore, *, is_last: bool = False) -> None:
        """Take some of the master's log, or all that is left."""
        rng = self.rng
        position = self.store.end_position if len(self.store.segments) else master.first_position
        while position < master.end_position and (is_last or rng.random() < 0.9):
            segment_bytes = master.config.segment_bytes
            segment_end = position - position % segment_bytes + segment_bytes
            end = min(segment_end, master.end_position)
            view = master.view(position, end - position)
            assert view is not None
            count = rng.choice((1, 2, 7, 1000))
            starts, after = record_starts(view, 0, count_max=count, bytes_max=10**9)
            # The last records of a segment come with its filler, or before it.
            with_filler = len(starts) < count and (rng.random() < 0.5 or not starts)
            chunk = view if with_filler else view[:after]
            position = self.store.append_raw(Position(position), chunk)
            if rng.random() < 0.6:
                self.store.confirm(position)
            if rng.random() < 0.1:
                self.store.save_blocking()
        if position == master.end_position and (is_last or rng.random() < 0.5):
            self.store.confirm(position)
            rest = self.store.deletions.follow(master.deletions.snapshot())
            if rest is not None:
                rest.finish_blocking()
        if not is_last and rng.random() < 0.1:
            self.restart()

    def restart(self) -> None:
        if self.rng.random() < 0.7:
            self.opener.crash(self.store)
        else:
            self.store.close_blocking()
            self.opener.stores.remove(self.store)
        self.store = self.opener(**self.settings)
        assert not self.store.damage.all()


def queues_of(store: MessageStore) -> dict[tuple[str, int], tuple[int, int, bytes]]:
    """Return next offset, first and entries of each queue, and of those that are deleted."""
    return {
        (queue.topic, queue.queue_id): (
            queue.next_offset,
            queue.first,
            queue.read(queue.first, 10**6),
        )
        for queue in store.queues
        if queue.end > queue.first
    }


def assert_same(master: Master, slave: Slave) -> None:
    ours, copy = master.store, slave.store
    assert copy.end_position == ours.end_position == copy.confirmed_position
    for segment in copy.segments.all():
        size = min(segment.size, copy.end_position - segment.start)
        assert copy.view(segment.start, size) == ours.view(segment.start, size)
    assert queues_of(copy) == queues_of(ours)
    for topic, key in master.keys:
        found = [
            store.find(topic, key, count_max=10**6, begin_ms=0, end_ms=2**62)
            for store in (ours, copy)
        ]
        assert [at for at in found[0] if at >= copy.first_position] == found[1], (topic, key)
    assert copy.deletions.snapshot() == ours.deletions.snapshot()
    assert not copy.damage.all()


@pytest.mark.parametrize("wants_rows", [True, False], ids=["rows", "single records"])
@pytest.mark.parametrize("checksum", [False, True], ids=["", "checksums"])
def test_a_slave_derives_what_its_master_has(
    opener: Opener,
    leader: Opener,
    monkeypatch: pytest.MonkeyPatch,
    wants_rows: bool,
    checksum: bool,
) -> None:
    monkeypatch.setitem(RawAppender.__init__.__kwdefaults__ or {}, "wants_rows", wants_rows)
    rng = random.Random(f"{wants_rows} {checksum}")
    settings = {"append_checksum": checksum, "require_checksum": checksum}
    master, slave = Master(leader, rng, **settings), Slave(opener, rng, **settings)
    for _ in range(150):
        master.step()
        slave.follow(master.store)
    slave.follow(master.store, is_last=True)
    assert master.store.deletions.count > 2
    assert master.store.end_position > 5 * master.store.config.segment_bytes
    assert_same(master, slave)
    # The slave becomes the master: both go on with the same messages, and stay the same.
    slave.restart()
    assert_same(master, slave)
    opener.clock.ms = leader.clock.ms = leader.clock.ms + 10_000
    for _ in range(20):
        drafts = [master.draft() for _ in range(5)]
        for store in (master.store, slave.store):
            for each in drafts:
                store.append(each)
            store.confirm(store.commit())
    assert_same(master, slave)


def test_a_slave_may_begin_in_the_middle(opener: Opener, leader: Opener) -> None:
    rng = random.Random(7)
    master = Master(leader, rng)
    while master.store.end_position < 4 * master.store.config.segment_bytes:
        master.step()
    store = master.store
    store.save_blocking()
    plan = store.cleaning.plan_blocking(now_ms=2**60, hour=4, is_requested=True)
    store.cleaning.apply(plan._replace(to_delete=plan.to_delete[:2]))
    while store.cleaning.trim_queues():
        pass
    store.cleaning.unlink_blocking()
    assert store.first_position == 2 * store.config.segment_bytes
    slave = Slave(opener, rng)
    for _ in range(40):
        slave.follow(master.store)
        master.step()
    slave.follow(master.store, is_last=True)
    assert slave.store.first_position == store.first_position
    assert_same(master, slave)
