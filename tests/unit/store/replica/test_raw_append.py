"""Records of a leader, appended as they are."""

from __future__ import annotations

import errno
import itertools
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rocketpost.codec.properties import encode_properties
from rocketpost.errors import CorruptRecord, StoreBroken, StoreError, StoreFull
from rocketpost.kernel.hashing import string_hash
from rocketpost.kernel.record_scan import record_starts
from rocketpost.model import sysflag
from rocketpost.model.ids import Position
from rocketpost.model.names import SCHEDULE_TOPIC
from rocketpost.store.message_store import MessageStore
from rocketpost.store.replica import raw_append
from rocketpost.store.replica.raw_append import RawAppender

from ..conftest import Opener, Roomy, draft
from ..test_faults import FaultyFiles
from ..test_java_store import SIZES, _golden

STATES = (
    sysflag.TRANSACTION_NONE,
    sysflag.TRANSACTION_PREPARED,
    sysflag.TRANSACTION_COMMIT,
    sysflag.TRANSACTION_ROLLBACK,
)
TOPICS = ("TopicA", "TopicB", SCHEDULE_TOPIC)
Chunk = tuple[Position, bytes]


@pytest.fixture(params=["rows", "single records"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run every test with and without rows; without is the way of an uncompiled kernel."""
    defaults = RawAppender.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "wants_rows", request.param == "rows")


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[Opener]:
    opener = Opener(tmp_path / "leader")
    yield opener
    for store in opener.stores:
        store.close_blocking()


def fill(store: MessageStore, count: int, *, size: int = 100) -> None:
    kinds = itertools.cycle(itertools.product(TOPICS, range(2), STATES))
    for number in range(count):
        topic, queue_id, state = next(kinds)
        key = f"key-{number}"
        properties = encode_properties({"TAGS": "a", "UNIQ_KEY": key, "DELAY": "2"})
        store.append(
            draft(
                number.to_bytes(4, "big") * (size // 4),
                topic=topic,
                queue_id=queue_id,
                properties=properties,
                keys=(key,),
                tags_code=string_hash("a"),
                sys_flag=state,
            )
        )
    store.confirm(store.commit())


def chunks(store: MessageStore, begin: int = 0) -> list[Chunk]:
    """Return the log from ``begin`` on, one chunk for each segment."""
    size, end = store.config.segment_bytes, store.end_position
    cuts = [begin, *range(begin - begin % size + size, end, size), end]
    found = []
    for low, high in itertools.pairwise(cuts):
        view = store.view(low, high - low)
        assert view is not None
        found.append((Position(low), bytes(view)))
    return found


def follow(store: MessageStore, given: list[Chunk]) -> None:
    for position, data in given:
        assert store.append_raw(position, data) == position + len(data) == store.end_position


def shown(store: MessageStore) -> dict[tuple[str, int], tuple[int, bytes]]:
    return {
        (queue.topic, queue.queue_id): (queue.first, queue.read(queue.first, 2**20))
        for queue in store.queues
        if queue.end > queue.first
    }


def keys_found(store: MessageStore, count: int) -> list[list[Position]]:
    return [
        store.find(topic, f"key-{number}", count_max=9, begin_ms=0, end_ms=2**62)
        for number in range(count)
        for topic in TOPICS
    ]


def unchanged(store: MessageStore) -> tuple[object, ...]:
    return (
        store.end_position,
        store.written_position,
        store.confirmed_position,
        len(store._dispatcher.pending),
        [(queue.topic, queue.queue_id, queue.next_offset) for queue in store.queues],
        # Without the zeros behind them: the allocator makes files ahead of need.
        b"".join(
            path.read_bytes() for path in sorted(Path(store.segments.directory).glob("0*"))
        ).rstrip(b"\0"),
    )


def test_a_follower_has_the_leaders_bytes_queues_and_keys(opener: Opener, leader: Opener) -> None:
    source = leader()
    fill(source, 200)
    store = opener()
    given = chunks(source)
    assert len(given) > 2
    follow(store, given)
    assert not shown(store)
    assert not any(keys_found(store, 200))
    store.confirm(store.end_position)
    assert shown(store) == shown(source)
    assert keys_found(store, 200) == keys_found(source, 200)
    assert store.store_ms == source.store_ms
    source.close_blocking()
    store.close_blocking()
    for directory in ("commitlog", "consumequeue"):
        files = [path for path in (leader.root / directory).rglob("0*") if path.is_file()]
        assert files
        for path in files:
            assert path.read_bytes() == (opener.root / path.relative_to(leader.root)).read_bytes()


@pytest.mark.parametrize("rows", [3, 7, 16_384])
def test_key_index_files_are_the_leaders(
    opener: Opener, leader: Opener, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """Whatever the times of the messages, the chunks, and the room for rows."""
    monkeypatch.setattr(raw_append, "ROW_COUNT", rows)
    monkeypatch.setattr(raw_append, "KEY_COUNT", 2 * rows)
    rng = random.Random(rows)
    source = leader()
    for number in range(300):
        leader.clock.ms += rng.choice((0, 0, 1, 30, 999, 5000, 10**7, -(10**6)))
        words = " ".join(f"k{number}-{word}" for word in range(rng.choice((0, 1, 1, 2, 9))))
        keys = (f"u{number}", *filter(None, words.split(" ")))
        properties = encode_properties({"UNIQ_KEY": keys[0], "KEYS": words or "k", "TAGS": "a"})
        keys = keys if words else (*keys, "k")
        source.append(
            draft(bytes(9), queue_id=number % 3, properties=properties, keys=keys, tags_code=97)
        )
        source.confirm(source.commit())
    store = opener()
    for position, data in chunks(source):
        starts, _ = record_starts(data, 0, count_max=10**6, bytes_max=10**9)
        cuts = sorted({0, len(data), *rng.sample(starts, 4)})
        for low, high in itertools.pairwise(cuts):
            end = store.append_raw(Position(position + low), data[low:high])
            if rng.random() < 0.7:
                store.confirm(end)
    store.confirm(store.end_position)
    source.close_blocking()
    store.close_blocking()
    names = sorted(path.name for path in (leader.root / "index").iterdir())
    assert len(names) > 2
    assert names == sorted(path.name for path in (opener.root / "index").iterdir())
    for name in names:
        ours = (opener.root / "index" / name).read_bytes()
        assert ours == (leader.root / "index" / name).read_bytes(), name


def test_a_killed_follower_continues(opener: Opener, leader: Opener) -> None:
    source = leader()
    fill(source, 50)
    store = opener()
    follow(store, chunks(source))
    fill(source, 150)
    opener.crash(store)
    store = opener()
    follow(store, chunks(source, store.end_position))
    store.confirm(store.end_position)
    assert shown(store) == shown(source)


def test_a_follower_may_become_the_leader(opener: Opener, leader: Opener) -> None:
    """Its own messages follow, also where the last chunk ended with a segment."""
    source = leader()
    fill(source, 200)
    store = opener()
    segment_bytes = store.config.segment_bytes
    follow(store, [chunk for chunk in chunks(source) if len(chunk[1]) == segment_bytes])
    assert store.end_position % segment_bytes == 0
    fill(store, 30)
    fill(source, 1)
    assert store.confirmed_position == store.end_position
    queue = store.queue("TopicA", 0)
    assert queue is not None
    assert queue.next_offset == queue.end
    opener.crash(store)
    store = opener()
    assert not store.damage.all()


def test_a_log_may_begin_at_any_segment(opener: Opener, leader: Opener) -> None:
    source = leader()
    fill(source, 250)
    store = opener()
    with pytest.raises(StoreError, match="multiple of"):
        store.append_raw(Position(source.config.segment_bytes + 1), b"x")
    given = chunks(source)[1:]
    follow(store, given)
    assert store.first_position == given[0][0]
    assert store.durable_position == given[0][0]
    store.confirm(store.end_position)
    for place, (first, entries) in shown(store).items():
        queue = source.queue(*place)
        assert queue is not None
        assert entries == queue.read(first, 2**20)
        assert first > 0
    before = shown(store)
    store.flush_blocking()
    for stop in (opener.crash, MessageStore.close_blocking):
        stop(store)  # type: ignore[operator]
        store = opener()
        assert store.first_position == given[0][0]
        assert shown(store) == before
        assert not store.damage.all()


def test_a_chunk_belongs_at_the_end(opener: Opener, leader: Opener) -> None:
    source = leader()
    fill(source, 200)
    given = chunks(source)
    store = opener()
    follow(store, given[:1])
    before = unchanged(store)
    for position, data, why in (
        (given[0][0], given[0][1], "not the end"),
        (Position(given[1][0] + 8), given[1][1], "not the end"),
        (given[1][0], given[1][1] + given[2][1], "has only"),
        (given[1][0], b"", "empty"),
    ):
        with pytest.raises(StoreError, match=why):
            store.append_raw(position, data)
        assert unchanged(store) == before
    store.append(draft())
    with pytest.raises(StoreError, match="not committed"):
        store.append_raw(*given[1])


def test_a_chunk_cut_at_any_byte_is_refused(opener: Opener, leader: Opener) -> None:
    source = leader(segment_bytes=4096, message_bytes_max=1024)
    fill(source, 30)
    _, data = chunks(source)[0]
    store = opener(segment_bytes=4096, message_bytes_max=1024)
    starts, records_end = record_starts(data, 0, count_max=10**6, bytes_max=10**9)
    whole = {*starts, records_end, len(data)}
    before = unchanged(store)
    for size in range(len(data)):
        if size not in whole:
            with pytest.raises(CorruptRecord, match="refused"):
                store.append_raw(Position(0), data[:size])
            assert store.end_position == 0
    assert unchanged(store) == before
    for low, high in itertools.pairwise(sorted(whole)):
        store.append_raw(Position(low), data[low:high])
    assert bytes(store.view(0, len(data)) or b"") == data


def test_a_flipped_bit_is_refused(opener: Opener, leader: Opener) -> None:
    """With checksums, whatever the bit."""
    source = leader(append_checksum=True)
    fill(source, 3, size=8)
    [(_, data)] = chunks(source)
    store = opener(append_checksum=True, require_checksum=True)
    before = unchanged(store)
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptRecord, match="refused"):
            store.append_raw(Position(0), flipped)
    assert unchanged(store) == before
    store.append_raw(Position(0), data)


@pytest.mark.parametrize(
    ("at", "why"),
    [
        (0, "too small"),
        (1, "cut short"),
        (3, "lengths"),
        (4, "magic"),
        (8, "body"),
        (12, "no queue"),
        (27, "whose next offset is"),
        (35, "position"),
        (90, "body"),
    ],
)
def test_the_refusal_says_what_is_wrong(opener: Opener, leader: Opener, at: int, why: str) -> None:
    source = leader()
    for _ in range(3):
        source.append(draft(b"hello world"))
    source.commit()
    [(_, data)] = chunks(source)
    second = len(data) // 3
    store = opener()
    before = unchanged(store)
    damaged = bytearray(data)
    damaged[second + at] ^= 0xFF if at != 3 else 0x01
    with pytest.raises(CorruptRecord, match=f"record at {second} .*{why}"):
        store.append_raw(Position(0), bytes(damaged))
    assert unchanged(store) == before


def test_a_filler_must_end_its_segment(opener: Opener, leader: Opener) -> None:
    source = leader()
    fill(source, 200)
    _, data = chunks(source)[0]
    *_, end = record_starts(data, 0, count_max=10**6, bytes_max=10**9)
    wrong = data[:end] + (len(data) - end - 1).to_bytes(4, "big") + data[end + 4 :]
    store = opener()
    with pytest.raises(CorruptRecord, match="filler states"):
        store.append_raw(Position(0), wrong)
    wide = opener.__class__(opener.root.parent / "wide")
    other = wide(segment_bytes=2 * source.config.segment_bytes)
    with pytest.raises(CorruptRecord, match="filler states"):
        other.append_raw(Position(0), data)
    other.close_blocking()


def test_a_record_leaves_room_for_the_filler(opener: Opener, leader: Opener) -> None:
    source = leader()
    source.append(draft(bytes(8000)))
    source.commit()
    [(_, data)] = chunks(source)
    store = opener(segment_bytes=len(data) + 4, message_bytes_max=4096)
    with pytest.raises(CorruptRecord, match="no room for the filler"):
        store.append_raw(Position(0), data)


class Failing(Roomy):
    """Files whose writes to segments fail when they are told to."""

    code: int | None = None

    def pwrite(self, fd: int, data: Any, offset: int) -> int:
        if self.code is not None and len(data) > 200:
            raise OSError(self.code, "told to fail")
        return super().pwrite(fd, data, offset)


@pytest.mark.parametrize(("code", "kind"), [(28, StoreFull), (5, StoreBroken)])
def test_a_failed_write_changes_nothing(
    opener: Opener, leader: Opener, code: int, kind: type[StoreError]
) -> None:
    source = leader()
    fill(source, 20)
    files = Failing()
    store = opener(files=files)
    files.code = code
    with pytest.raises(kind):
        store.append_raw(*chunks(source)[0])
    files.code = None
    assert not store._dispatcher.pending
    assert not len(store.queues)
    assert store.end_position == 0
    assert store.broken == (kind is StoreBroken)
    if not store.broken:
        follow(store, chunks(source))


@pytest.mark.parametrize("name", ["store-clean", "store-killed"])
def test_apaches_log_gives_apaches_queues(opener: Opener, tmp_path: Path, name: str) -> None:
    apache = tmp_path / "apache"
    _golden().restore_store(name, apache)
    store = opener(**SIZES)
    for path in sorted((apache / "commitlog").glob("0*")):
        data = path.read_bytes()
        *_, end = record_starts(data, 0, count_max=10**6, bytes_max=10**9)
        is_last = data[end : end + 8] == bytes(8)
        if end:  # Apache makes the next file ahead
            store.append_raw(Position(int(path.name)), data[:end] if is_last else data)
    store.confirm(store.end_position)
    store.close_blocking()
    files = [path for path in (apache / "consumequeue").rglob("0*") if path.is_file()]
    assert len(files) > 5
    for path in files:
        ours = opener.root / path.relative_to(apache)
        assert ours.read_bytes() == path.read_bytes(), path
    for path in (opener.root / "commitlog").glob("0*"):
        assert (apache / "commitlog" / path.name).read_bytes() == path.read_bytes()


class Full(FaultyFiles):
    """A disk on which segments cannot be written, or not be removed either, for a while."""

    is_stuck = False

    def __init__(self) -> None:
        super().__init__()
        self.only = "commitlog"

    def unlink(self, path: str) -> None:  # type: ignore[override]
        if self.is_stuck:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        os.unlink(path)


@pytest.mark.parametrize("first", [0, 2])
def test_a_log_that_could_not_begin_may_begin_later(
    opener: Opener, leader: Opener, first: int
) -> None:
    """By the next try, the leader may have deleted the segment with which it was to begin."""
    master = leader()
    fill(master, 600)
    log = chunks(master)
    files = Full()
    store = opener(files=files)
    before = unchanged(store)
    files.failing = {"pwrite": errno.ENOSPC}
    for _ in range(2):
        with pytest.raises(StoreFull, match="No space"):
            store.append_raw(*log[first])
    assert unchanged(store) == before
    files.failing = {}
    opener.crash(store)
    store = opener(files=files)
    assert store.end_position == 0
    follow(store, log[4:])
    store.confirm(store.end_position)
    assert store.first_position == log[4][0]
    opener.crash(store)
    store = opener()
    assert (store.first_position, store.end_position) == (log[4][0], master.end_position)


def test_a_beginning_that_cannot_be_taken_back_breaks_the_store(
    opener: Opener, leader: Opener
) -> None:
    master = leader()
    fill(master, 600)
    files = Full()
    store = opener(files=files)
    files.failing, files.is_stuck = {"pwrite": errno.ENOSPC}, True
    with pytest.raises(StoreBroken, match="not be removed"):
        store.append_raw(*chunks(master)[2])
    assert store.broken
    files.failing, files.is_stuck = {}, False
