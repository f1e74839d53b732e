"""The scrub: damage that nobody reads is found, named and, in queues, mended."""

from __future__ import annotations

import errno
import itertools
import os
from types import SimpleNamespace
from typing import Any

import pytest

from rocketpost.store.message_store import MessageStore
from rocketpost.store.queue.files import ENTRY
from rocketpost.testing.sim.disk import SleepingWorker
from store.conftest import Opener, Roomy, draft

HEAD = 88


def fill(opener: Opener, count: int = 300, **more: Any) -> MessageStore:
    """Return a store of several segments, opened again, so that entries are in files."""
    more = {"scrub_bytes_per_second": 2**30, **more}
    store = opener(**more)
    for number in range(count):
        properties = b"TAGS\x01blue\x02"
        store.append(draft(b"body%03d" % number, properties=properties, tags_code=3027034))
        store.append(draft(b"other%03d" % number, topic="Other"))
        store.confirm(store.commit())
    store.close_blocking()
    opener.stores.remove(store)
    opener.clock.ms += 60_000
    store = opener(**more)
    assert len(store.segments) > 3
    return store


def entry(store: MessageStore, offset: int) -> tuple[int, int, int]:
    queue = store.queue("TopicA", 0)
    assert queue is not None
    found = queue.entry(offset)
    assert found is not None
    return found


def overwrite(path: str, at: int, data: bytes) -> None:
    fd = os.open(path, os.O_RDWR)
    try:
        os.pwrite(fd, data, at)
    finally:
        os.close(fd)


def change(store: MessageStore, position: int, at: int, data: bytes | None = None) -> None:
    """Flip a bit of a record, or write over it."""
    segment = store.segments.find(position)
    assert segment is not None
    at += position - segment.start
    overwrite(segment.path, at, data or bytes([segment.view()[at] ^ 1]))


def change_entry(store: MessageStore, offset: int, wrong: tuple[int, int, int]) -> None:
    start = offset * 20 // 2000 * 2000
    path = f"{store.config.root}/consumequeue/TopicA/0/{start:020d}"
    overwrite(path, offset * 20 - start, ENTRY.pack(*wrong))


def test_a_sound_store_has_no_damage(opener: Opener) -> None:
    store = fill(opener)
    assert store.integrity.scrub.describe_from_thread() == "idle, 0 rounds done"
    store.integrity.scrub.run_round_blocking()
    assert (
        store.damage.count
        == store.integrity.scrub.found_count
        == store.integrity.scrub.mended_count
        == 0
    )
    assert store.integrity.scrub.describe_from_thread() == "idle, 1 rounds done"


@pytest.mark.parametrize(
    ("at", "reason"),
    [
        (1, "size"), (3, "size"), (6, "magic"), (34, "position"), (87, "lengths"),
        (HEAD + 2, "CRC"), (HEAD + 7, "lengths"),
    ],
)  # fmt: skip
def test_a_damaged_record_is_reported_and_later_ones_are_read(
    opener: Opener, at: int, reason: str
) -> None:
    store = fill(opener)
    position, size, _ = entry(store, 70)
    change(store, position, at)
    later = entry(store, 72)[0]
    change(store, later, HEAD)
    store.integrity.scrub.run_round_blocking()
    first, second = store.damage.all()
    assert (first.topic, first.queue_id, first.queue_offset) == ("TopicA", 0, 70)
    assert (first.begin, first.end) == (position, position + size)
    assert reason in first.reason
    assert first.found_by == "scrub"
    assert (second.begin, second.queue_offset) == (later, 72)
    assert store.integrity.scrub.found_count == 2


def test_a_zeroed_page_ends_at_the_next_record(opener: Opener) -> None:
    store = fill(opener)
    position = entry(store, 70)[0]
    change(store, position + 1, 0, bytes(500))
    store.integrity.scrub.run_round_blocking()
    (damage,) = store.damage.all()
    assert damage.begin == position
    assert position + 501 <= damage.end <= position + 700


def test_a_record_that_states_a_place_which_is_not_its_own_is_damaged(opener: Opener) -> None:
    store = fill(opener)
    position = entry(store, 70)[0]
    change(store, position, 20)  # far behind the end of the queue
    other = entry(store, 81)[0]
    change(store, other, 27)  # 80, which has a record
    store.integrity.scrub.run_round_blocking()
    assert [each.begin for each in store.damage.all()] == [position, other]


@pytest.mark.parametrize("wrong", [(5, 0, 0), (0, 3, 0), (0, 0, 1), (2**40, 7, 9)])
def test_a_damaged_entry_is_mended(opener: Opener, wrong: tuple[int, int, int]) -> None:
    store = fill(opener)
    right = entry(store, 70)
    change_entry(store, 70, (right[0] ^ wrong[0], right[1] ^ wrong[1], right[2] ^ wrong[2]))
    assert entry(store, 70) != right
    store.integrity.scrub.run_round_blocking()
    assert entry(store, 70) == right
    assert store.integrity.scrub.mended_count == 1
    assert store.damage.count == 0


def test_queues_of_a_topic_that_was_deleted_and_made_again_are_left_alone(opener: Opener) -> None:
    store = fill(opener)
    store.delete_queues("TopicA").finish_blocking()
    for _ in range(5):
        store.append(draft(b"new"))
    store.confirm(store.commit())
    store.integrity.scrub.run_round_blocking()
    assert store.damage.count == store.integrity.scrub.mended_count == 0


class BadSector(Roomy):
    """A disk with one page that cannot be read."""

    at = -1
    read_count = 0

    def read_aside(self, fd: int, size: int, offset: int) -> bytes:
        self.read_count += 1
        if self.at >= 0 and offset <= self.at < offset + size:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().read_aside(fd, size, offset)


def test_leftovers_of_a_topic_deleted_by_java_are_not_damage(opener: Opener) -> None:
    store = fill(opener)
    queue = store.queue("TopicA", 0)
    assert queue is not None
    store.queues._remove(queue)
    queue.is_deleted = True
    queue.remove_files()
    for number in range(250):  # a topic that is made again counts from 0
        store.append(draft(b"again%03d" % number))
        store.confirm(store.commit())
    assert entry(store, 249)[0] > 0
    change_entry(store, 5, (2**40, 100, 0))
    store.integrity.scrub.run_round_blocking()
    assert store.damage.all() == []
    found = store.record_at(entry(store, 5)[0])
    assert found is not None
    assert found.body == b"again005"


def test_a_sector_that_cannot_be_read_is_damage(opener: Opener) -> None:
    disk = BadSector()
    store = fill(opener, files=disk)
    disk.at = 4096 + 100
    store.integrity.scrub.run_round_blocking()
    found = [each for each in store.damage.all() if each.begin < store.segments.segment_bytes]
    assert found
    assert all("cannot be read: Input/output error" in each.reason for each in found)
    assert found[0].begin <= 4096 < 2 * 4096 <= found[-1].end


def test_a_round_continues_where_it_stopped(opener: Opener) -> None:
    disk = BadSector()
    store = fill(opener, files=disk)
    store.integrity.scrub._stopping = True
    store.integrity.scrub.run_round_blocking()
    assert disk.read_count == 0
    store.integrity.scrub._stopping = False
    store.integrity.scrub._state.position = store.segments.all()[2].start
    store.integrity.scrub.run_round_blocking()
    reads = disk.read_count
    assert 0 < reads < 2 * len(store.segments)
    assert store.integrity.scrub.describe_from_thread() == "idle, 1 rounds done"
    store.close_blocking()
    opener.stores.remove(store)
    again = opener(files=disk)
    again.integrity.scrub.load_blocking()
    assert again.integrity.scrub.describe_from_thread() == "idle, 1 rounds done"
    assert not again.integrity.scrub._is_due()
    opener.clock.ms += 169 * 3_600_000
    assert again.integrity.scrub._is_due()


def test_reading_aside_reads_the_same(tmp_path: Any) -> None:
    path = tmp_path / "file"
    data = os.urandom(300_000)
    path.write_bytes(data)
    files = Roomy()
    fd = files.open(str(path))
    try:
        assert files.read_aside(fd, 65536, 4096) == data[4096 : 4096 + 65536]
        assert files.read_aside(fd, 65536, 290_000) == data[290_000:]
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        assert files.read_aside(fd, 65536, 4096) == data[4096 : 4096 + 65536]
    finally:
        files.close(fd)


@pytest.mark.parametrize(("enabled", "rounds"), [(True, 1), (False, 0)])
def test_scrubCommitLogEnable(opener: Opener, enabled: bool, rounds: int) -> None:
    store = fill(opener, scrub_enabled=enabled)
    store.integrity.scrub.run_round_blocking()
    assert store.integrity.scrub._state.rounds == rounds


def test_scrubCommitLogIntervalHours(opener: Opener) -> None:
    store = fill(opener, scrub_interval_hours=1)
    store.integrity.scrub.run_round_blocking()
    assert not store.integrity.scrub._is_due()
    opener.clock.ms += 2 * 3_600_000
    assert store.integrity.scrub._is_due()


def test_scrubCommitLogBytesPerSecond(opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: dict[int, list[float]] = {}

    class NotingWorker(SleepingWorker):
        """Notes how long a step would wait, and lets it go on."""

        def __init__(self, noted: list[float]) -> None:
            self.noted = noted

        def pause(self, seconds: float) -> None:
            self.noted.append(seconds)

    for rate in (1000, 2**30):
        store = opener(scrub_bytes_per_second=rate)
        scrub = store.integrity.scrub
        scrub.close_blocking()  # no thread but this one waits
        scrub._stopping = False
        scrub._worker = NotingWorker(waits.setdefault(rate, []))
        looks = itertools.count(0, 60)  # each a minute after the last one
        clock = SimpleNamespace(monotonic=lambda looks=looks: next(looks))
        monkeypatch.setattr("rocketpost.store.integrity.scrub.time", clock)
        scrub.pause(100_000, 0.0)
        store.close_blocking()
        opener.stores.remove(store)
    assert waits == {1000: [40.0], 2**30: []}  # 100 seconds, of which 60 were over


def test_the_newest_segment_is_scrubbed_as_far_as_it_is_durable_and_old(opener: Opener) -> None:
    store = opener(scrub_bytes_per_second=2**30, read_check_interval_ms=30_000)
    scrub = store.integrity.scrub

    def append() -> int:
        position = store.append(draft(b"body of a message")).position
        store.confirm(store.commit())
        return position

    first = append()
    store.flush_blocking()
    change(store, first, HEAD + 2)
    scrub.run_round_blocking()
    assert store.damage.count == 0  # it was written a moment ago
    opener.clock.ms += 30_000
    scrub.run_round_blocking()  # takes note of what is durable now
    second = append()
    opener.clock.ms += 30_000
    change(store, second, HEAD + 2)
    scrub.run_round_blocking()
    assert [damage.begin for damage in store.damage.all()] == [first]
    opener.clock.ms += 30_000
    scrub.run_round_blocking()
    assert [damage.begin for damage in store.damage.all()] == [first]  # not durable yet
    store.flush_blocking()
    for _ in range(2):
        opener.clock.ms += 30_000
        scrub.run_round_blocking()
    found = store.damage.all()
    assert [damage.begin for damage in found] == [first, second]
    assert [(damage.topic, damage.queue_offset) for damage in found] == [
        ("TopicA", 0),
        ("TopicA", 1),
    ]
    assert found[-1].end == store.end_position


def test_a_recovered_log_is_scrubbed_to_its_end(opener: Opener) -> None:
    store = fill(opener)
    bad = entry(store, 299)[0]
    assert bad // 16384 == store.end_position // 16384  # in the newest segment
    change(store, bad, HEAD + 2)
    store.integrity.scrub.run_round_blocking()
    assert [damage.begin for damage in store.damage.all()] == [bad]
