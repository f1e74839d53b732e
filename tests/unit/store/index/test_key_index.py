from __future__ import annotations

import errno
import os
import random
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketpost.errors import StoreBroken, StoreError, StoreFull
from rocketpost.kernel.hashing import index_hash
from rocketpost.model.ids import Position
from rocketpost.store.config import StoreConfig
from rocketpost.store.files import RealFiles
from rocketpost.store.index import key_hashes, key_index
from rocketpost.store.index.index_file import file_bytes
from rocketpost.store.index.key_index import KeyIndex

NOW = 1_700_000_000_000
SLOTS = 16
ENTRIES = 11  # ten of them usable
FOREVER = 2**62


def config(slots: int = SLOTS, entries: int = ENTRIES) -> StoreConfig:
    return StoreConfig(index_slot_count=slots, index_entry_count=entries)


def opened(
    tmp_path: Path,
    *,
    slots: int = SLOTS,
    entries: int = ENTRIES,
    safe_until_ms: int | None = None,
    files: RealFiles | None = None,
) -> KeyIndex:
    index = KeyIndex(str(tmp_path / "index"), config(slots, entries), files or RealFiles())
    index.load(safe_until_ms)
    return index


@pytest.fixture
def index(tmp_path: Path) -> Iterator[KeyIndex]:
    made = opened(tmp_path)
    yield made
    made.close_blocking()


def put(index: KeyIndex, position: int, *keys: str, ms: int = NOW, topic: str = "T") -> None:
    index.put(topic, keys, Position(position), ms)


def find(
    index: KeyIndex,
    key: str,
    *,
    topic: str = "T",
    count: int = 64,
    begin: int = 0,
    end: int = FOREVER,
) -> list[int]:
    return list(index.find(topic, key, count, begin, end))


def names(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "index").iterdir())


def test_messages_are_found_newest_first(index: KeyIndex) -> None:
    put(index, 0, "a", "b")
    put(index, 100, "b")
    put(index, 200, "a", "b", "c")
    assert find(index, "a") == [200, 0]
    assert find(index, "b") == [200, 100, 0]
    assert find(index, "b", count=2) == [200, 100]
    assert find(index, "missing") == []
    assert find(index, "a", topic="U") == []
    assert index.end_position == 200


def test_the_bytes_are_rocketmqs(index: KeyIndex, tmp_path: Path) -> None:
    put(index, 5, "a", ms=NOW)
    put(index, 105, "a", ms=NOW + 2999)
    (name,) = names(tmp_path)
    data = (tmp_path / "index" / name).read_bytes()
    assert len(data) == 40 + SLOTS * 4 + ENTRIES * 20
    assert struct.unpack(">qqqqii", data[:40]) == (NOW, NOW + 2999, 5, 105, 1, 3)
    key_hash = index_hash("T#a")
    slots = struct.unpack(f">{SLOTS}i", data[40 : 40 + SLOTS * 4])
    assert slots == tuple(2 if slot == key_hash % SLOTS else 0 for slot in range(SLOTS))
    entries = list(struct.iter_unpack(">iqii", data[40 + SLOTS * 4 :]))
    assert entries[:4] == [
        (0, 0, 0, 0),
        (key_hash, 5, 0, 0),
        (key_hash, 105, 2, 1),
        (0, 0, 0, 0),
    ]


def test_names_tell_local_time_and_always_grow(index: KeyIndex, tmp_path: Path) -> None:
    for position in range(31):
        put(index, position, "k", ms=NOW - position)  # the clock goes back
    found = names(tmp_path)
    assert len(found) == 4
    assert all(len(name) == 17 and name.isdecimal() for name in found)
    assert [int(name) - int(found[0]) for name in found] == [0, 1, 2, 3]
    assert find(index, "k", begin=0) == list(range(30, -1, -1))


def test_a_full_file_is_followed_by_another_that_knows_where_it_begins(
    index: KeyIndex, tmp_path: Path
) -> None:
    for position in range(9):
        put(index, position, "k", ms=NOW + position)
    put(index, 50, "k", "l", ms=NOW + 5000)  # nine are in, two do not fit
    first, second = names(tmp_path)
    header = struct.unpack(">qqqqii", (tmp_path / "index" / first).read_bytes()[:40])
    assert header == (NOW, NOW + 8, 0, 8, 1, 10)
    header = struct.unpack(">qqqqii", (tmp_path / "index" / second).read_bytes()[:40])
    assert header[:4] == (NOW + 5000, NOW + 5000, 50, 50)
    assert find(index, "l") == [50]
    assert find(index, "k", count=3) == [50, 8, 7]


def test_a_message_with_more_keys_than_a_file_holds_is_refused(index: KeyIndex) -> None:
    put(index, 0, "k")
    with pytest.raises(StoreError, match="maxIndexNum"):
        put(index, 1, *(str(n) for n in range(11)))
    put(index, 1, "k")
    assert find(index, "k") == [1, 0]


def test_records_that_are_indexed_already_are_skipped(index: KeyIndex) -> None:
    put(index, 0, "a")
    put(index, 7, "a")
    put(index, 0, "a")
    put(index, 7, "a")
    put(index, 9)
    assert find(index, "a") == [7, 0]
    assert index.end_position == 7


def test_times_are_whole_seconds_and_no_match_is_missed(index: KeyIndex) -> None:
    for position, ms in enumerate([0, 900, 1000, 1999, 5000]):
        put(index, position, "k", ms=NOW + ms)
    assert find(index, "k", begin=NOW + 1999) == [4, 3, 2]
    assert find(index, "k", end=NOW + 999) == [1, 0]
    assert find(index, "k", begin=NOW + 2000, end=NOW + 4999) == []
    assert find(index, "k", begin=NOW + 5001) == []
    assert find(index, "k", end=NOW - 1) == []


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_finds_what_a_list_would(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    rng = random.Random(seed)
    index = opened(tmp_path_factory.mktemp("index"), slots=rng.randint(1, 8))
    put_in: list[tuple[str, int, int]] = []
    ms = NOW
    for position in range(60):
        ms += rng.choice([0, 1, 400, 3000])
        words = [rng.choice("abcdef") for _ in range(rng.randint(0, 3))]
        put(index, position, *words, ms=ms)
        put_in += [(word, position, ms) for word in words]
    for word in "abcdef":
        begin = NOW + rng.randint(-1000, 40_000)
        end = begin + rng.randint(0, 40_000)
        exact = {p for w, p, at in put_in if w == word and begin <= at <= end}
        near = {p for w, p, at in put_in if w == word and begin - 1000 <= at <= end + 1000}
        found = find(index, word, begin=begin, end=end)
        assert found == sorted(found, reverse=True)
        assert exact <= set(found) <= near
    index.close_blocking()


def test_a_clean_stop_keeps_everything(tmp_path: Path) -> None:
    index = opened(tmp_path)
    for position in range(25):
        put(index, position, "k", ms=NOW + position)
    index.close_blocking()
    again = opened(tmp_path)
    assert find(again, "k") == list(range(24, -1, -1))
    assert again.end_position == 24
    assert again.end_ms == NOW + 24
    assert again.completed_ms == NOW + 19
    put(again, 24, "k")
    put(again, 25, "k")
    assert find(again, "k", count=2) == [25, 24]
    assert len(names(tmp_path)) == 3
    again.close_blocking()


def test_after_an_unclean_stop_files_that_end_later_are_deleted(tmp_path: Path) -> None:
    """This is RocketMQ's rule, for a directory that it left."""
    index = opened(tmp_path)
    for position in range(25):
        put(index, position, "k", ms=NOW + position)
    index.flush_blocking()
    safe = index.completed_ms
    assert safe == NOW + 19
    (tmp_path / "index-progress").unlink()
    again = opened(tmp_path, safe_until_ms=safe)
    assert not again.is_whole
    assert again.end_position == 19
    for position in range(25):
        put(again, position, "k", ms=NOW + position)
    assert find(again, "k") == list(range(24, -1, -1))
    again.close_blocking()
    index.close_blocking()


@pytest.mark.parametrize("flushed", [1, 4, 5, 6, 13, 19, 20, 22, 24, 25])
def test_after_an_unclean_stop_what_was_not_flushed_is_cut_off(
    tmp_path: Path, flushed: int
) -> None:
    index = opened(tmp_path)
    for position in range(25):
        put(index, position, "k", f"k{position % 3}", ms=NOW + position)
        if position + 1 == flushed:
            index.flush_blocking()
    again = opened(tmp_path, safe_until_ms=0)
    assert again.is_whole
    assert again.end_position == flushed - 1
    assert find(again, "k") == list(range(flushed - 1, -1, -1))
    for position in range(25):
        put(again, position, "k", f"k{position % 3}", ms=NOW + position)
    assert find(again, "k") == list(range(24, -1, -1))
    assert find(again, "k1") == list(range(22, -1, -3))
    again.close_blocking()
    index.close_blocking()


def test_a_put_that_was_killed_half_way_does_not_cut_its_chain(tmp_path: Path) -> None:
    index = opened(tmp_path, slots=1)
    put(index, 0, "a")
    put(index, 1, "b")
    index.flush_blocking()
    (name,) = names(tmp_path)
    with (tmp_path / "index" / name).open("r+b") as file:
        file.seek(40)
        file.write(struct.pack(">i", 3))  # the slot leads to an entry that the header lacks
    again = opened(tmp_path, slots=1, safe_until_ms=0)
    put(again, 2, "c")
    assert find(again, "a") == [0]
    again.close_blocking()
    index.close_blocking()


def test_a_deleted_directory_is_noticed(tmp_path: Path) -> None:
    index = opened(tmp_path)
    assert not index.is_whole  # a store that never had an index
    put(index, 0, "k")
    index.close_blocking()
    again = opened(tmp_path)
    assert again.is_whole
    again.close_blocking()
    for path in (tmp_path / "index").iterdir():
        path.unlink()
    again = opened(tmp_path)
    assert not again.is_whole
    assert again.end_position == 0
    again.close_blocking()


def test_progress_that_cannot_be_read_is_not_trusted(tmp_path: Path) -> None:
    index = opened(tmp_path)
    put(index, 0, "k")
    index.close_blocking()
    progress = tmp_path / "index-progress"
    whole = progress.read_bytes()
    assert len(whole) == 28
    for broken in (b"", whole[:-1], whole[:-1] + b"\0", b"x" + whole[1:]):
        progress.write_bytes(broken)
        again = KeyIndex(str(tmp_path / "index"), config(), RealFiles())
        again.load(NOW)
        assert not again.is_whole
        again.close_blocking()


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_pages_lost_after_the_last_flush_lose_nothing_before_it(
    seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Small pages stand for the machine's: any of them may hold what it held at the flush."""
    rng = random.Random(seed)
    tmp_path = tmp_path_factory.mktemp("index")
    index = opened(tmp_path, entries=41)
    flushed = rng.randint(1, 15)
    for position in range(flushed):
        put(index, position * 100, "k", f"k{position % 4}", ms=NOW + position * 700)
    index.flush_blocking()
    paths = {name: (tmp_path / "index" / name) for name in names(tmp_path)}
    before = {name: path.read_bytes() for name, path in paths.items()}
    for position in range(flushed, flushed + rng.randint(0, 4)):
        put(index, position * 100, "k", f"k{position % 4}", ms=NOW + position * 700)
    for name, path in paths.items():
        after = bytearray(path.read_bytes())
        page = rng.choice([64, 128, 512])
        for at in range(0, len(after), page):
            if rng.random() < 0.5:
                after[at : at + page] = before[name][at : at + page]
        path.write_bytes(after)
    again = opened(tmp_path, entries=41, safe_until_ms=0)
    known = [position * 100 for position in range(flushed - 1, -1, -1)]
    assert find(again, "k") == known
    for position in range(20):
        put(again, position * 100, "k", f"k{position % 4}", ms=NOW + position * 700)
    assert find(again, "k") == [position * 100 for position in range(19, -1, -1)]
    for tail in range(4):
        wanted = [position * 100 for position in range(19, -1, -1) if position % 4 == tail]
        assert find(again, f"k{tail}") == wanted
    again.close_blocking()
    index.close_blocking()


def test_damaged_chains_end(index: KeyIndex, tmp_path: Path) -> None:
    for position in range(9):
        put(index, position, "k")
    (name,) = names(tmp_path)
    path = tmp_path / "index" / name
    entries_at = 40 + SLOTS * 4
    for previous in (9, 5, 2**31 - 1, -1, 8):
        with path.open("r+b") as file:
            for number in range(1, 10):
                file.seek(entries_at + number * 20 + 16)
                file.write(struct.pack(">i", previous))
        assert find(index, "k")[0] == 8
    for slot in range(SLOTS):
        with path.open("r+b") as file:
            file.seek(40 + slot * 4)
            file.write(struct.pack(">i", -7 if slot % 2 else 10_000))
    assert find(index, "k") == []
    put(index, 20, "k")
    assert find(index, "k") == [20]


def test_a_query_is_bounded(index: KeyIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    for position in range(25):
        put(index, position, "k")
    monkeypatch.setattr(key_index, "STEP_COUNT_MAX", 13)
    assert find(index, "k") == list(range(24, 11, -1))


def test_expiry_keeps_what_still_tells_of_messages(index: KeyIndex, tmp_path: Path) -> None:
    for position in range(35):
        put(index, position, "k")
    assert len(names(tmp_path)) == 4
    assert index.expire_blocking(Position(19)) == 1
    assert find(index, "k")[-1] == 10
    assert index.expire_blocking(Position(10**9)) == 2
    assert len(names(tmp_path)) == 1
    assert find(index, "k") == [34, 33, 32, 31, 30]
    assert index.expire_blocking(Position(10**9)) == 0


def test_files_that_could_not_be_unlinked_are_unlinked_later(tmp_path: Path) -> None:
    class Failing(RealFiles):
        is_failing = True

        def unlink(self, path: str) -> None:  # type: ignore[override]
            if self.is_failing:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            os.unlink(path)

    files = Failing()
    index = opened(tmp_path, files=files)
    for position in range(35):
        put(index, position, "a")
    made = names(tmp_path)
    assert len(made) == 4
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output"):
            index.expire_blocking(Position(10**9))
    files.is_failing = False
    assert index.expire_blocking(Position(10**9)) == 3
    assert names(tmp_path) == made[3:]
    assert find(index, "a") == [34, 33, 32, 31, 30]
    index.close_blocking()


def test_a_full_disk_is_an_error_and_passes(tmp_path: Path) -> None:
    class FullDisk(RealFiles):
        code = errno.ENOSPC
        is_full = False

        def fallocate(self, fd: int, size: int) -> None:
            if self.is_full:
                raise OSError(self.code, "planted")
            super().fallocate(fd, size)

    files = FullDisk()
    index = opened(tmp_path, files=files)
    for position in range(10):
        put(index, position, "k")
    files.is_full = True
    index.flush_blocking()  # cannot make the spare file; that alone is no error
    with pytest.raises(StoreFull, match="key index"):
        put(index, 10, "k")
    files.code = errno.EIO
    with pytest.raises(StoreBroken):
        put(index, 10, "k")
    assert find(index, "k", count=1) == [9]
    files.is_full = False
    put(index, 10, "k")
    assert find(index, "k", count=2) == [10, 9]
    index.close_blocking()
    assert not (tmp_path / "index-allocating").exists()


def test_the_next_file_is_made_ahead_by_the_flush(tmp_path: Path) -> None:
    class Counting(RealFiles):
        allocations = 0

        def fallocate(self, fd: int, size: int) -> None:
            self.allocations += 1
            super().fallocate(fd, size)

    files = Counting()
    index = opened(tmp_path, files=files)
    for position in range(9):
        put(index, position, "k")
    assert files.allocations == 1
    index.flush_blocking()
    index.flush_blocking()
    assert files.allocations == 2
    put(index, 9, "k")
    put(index, 10, "k")
    assert files.allocations == 2
    assert len(names(tmp_path)) == 2
    index.close_blocking()


def test_a_failed_sync_is_reported(tmp_path: Path) -> None:
    class Failing(RealFiles):
        fails = True

        def fdatasync(self, fd: int) -> None:
            if self.fails:
                raise OSError(errno.EIO, "planted")
            super().fdatasync(fd)

    files = Failing()
    index = opened(tmp_path, files=files)
    index.flush_blocking()  # nothing to sync
    put(index, 0, "k")
    with pytest.raises(OSError, match="planted"):
        index.flush_blocking()
    with pytest.raises(OSError, match="planted"):
        index.flush_blocking()
    files.fails = False
    index.close_blocking()


def test_entries_that_a_failed_sync_may_have_lost_are_rebuilt(tmp_path: Path) -> None:
    """A sync that succeeds later says nothing about the pages that an earlier one dropped."""

    class Failing(RealFiles):
        fails = False

        def fdatasync(self, fd: int) -> None:
            if self.fails:
                raise OSError(errno.EIO, "planted")
            super().fdatasync(fd)

    files = Failing()
    index = opened(tmp_path, files=files)
    put(index, 0, "k")
    index.flush_blocking()
    put(index, 1, "k")
    files.fails = True
    with pytest.raises(OSError, match="planted"):
        index.flush_blocking()
    files.fails = False
    put(index, 2, "k")
    index.flush_blocking()
    index.close_blocking()
    again = opened(tmp_path)
    assert again.is_whole
    assert again.end_position == 0
    assert find(again, "k") == [0]
    again.close_blocking()


def test_sizes_must_be_those_of_the_settings(tmp_path: Path) -> None:
    index = opened(tmp_path)
    for position in range(2 * ENTRIES):
        put(index, position, "k")
    index.close_blocking()
    assert len(names(tmp_path)) > 1
    with pytest.raises(StoreError, match="maxHashSlotNum and maxIndexNum"):
        opened(tmp_path, slots=SLOTS + 1)


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("damage", ["counts", "zeroed", "short", "random", "backwards"])
def test_a_damaged_file_is_set_aside_and_later_ones_are_rebuilt(
    tmp_path: Path, number: int, damage: str
) -> None:
    index = opened(tmp_path)
    for position in range(3 * ENTRIES - 10):
        put(index, position, f"k{position}")
    end = index.end_position
    index.close_blocking()
    assert len(names(tmp_path)) == 3
    name = names(tmp_path)[number]
    path = tmp_path / "index" / name
    data = bytearray(path.read_bytes())
    match damage:
        case "counts":
            struct.pack_into(">i", data, 36, 500)
        case "zeroed":
            data[:] = bytes(len(data))
        case "short":
            del data[100:]
        case "random":
            data[:] = random.Random(number).randbytes(len(data))
        case "backwards":
            struct.pack_into(">q", data, 24, 0)
            struct.pack_into(">q", data, 16, 1)
    path.write_bytes(data)
    again = opened(tmp_path)
    assert not again.is_whole
    assert again.end_position < end
    for position in range(3 * ENTRIES - 10):
        put(again, position, f"k{position}")  # as recovery does
    assert all(find(again, f"k{position}") == [position] for position in range(3 * ENTRIES - 10))
    again.close_blocking()
    aside = tmp_path / "index-damaged" / name
    assert aside.exists() == ((number, damage) != (2, "zeroed"))


def test_a_file_that_was_being_made_is_removed(tmp_path: Path) -> None:
    index = opened(tmp_path)
    put(index, 0, "k")
    index.close_blocking()
    folder = tmp_path / "index"
    (folder / "29990101000000000").touch()
    (folder / "notes.txt").write_text("left alone")
    again = opened(tmp_path)
    assert len(names(tmp_path)) == 2
    again.close_blocking()
    (folder / "29990101000000000").write_bytes(bytes(100))
    again = opened(tmp_path, safe_until_ms=FOREVER)
    assert find(again, "k") == [0]
    again.close_blocking()


def test_default_size_is_rocketmqs() -> None:
    assert file_bytes(5_000_000, 20_000_000) == 420_000_040


def test_many_topics_are_remembered_within_bounds(
    index: KeyIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_hashes, "_TOPIC_COUNT_MAX", 2)
    for position, topic in enumerate("abcabc"):
        put(index, position, "k", topic=topic)
    assert find(index, "k", topic="a") == [3, 0]


@pytest.mark.parametrize("position", [0, 1, 100, 101, 900, 1000, 1001, 1400, 2499, 2500, 9999])
@pytest.mark.parametrize("is_reopened", [False, True])
def test_a_cut_index_is_one_that_never_had_more(
    tmp_path: Path, position: int, is_reopened: bool
) -> None:
    """Record n lies at 100 n and has the key that n % 7 says; a file takes ten."""
    cut, fresh = opened(tmp_path / "cut"), opened(tmp_path / "fresh")
    for number in range(1, 26):
        message = ("T", [f"k{number % 7}"], Position(100 * number), NOW + number)
        cut.put(*message)
        if 100 * number < position:
            fresh.put(*message)
    cut.flush_blocking()
    assert cut.newest_before(position) == fresh.end_position
    for _ in range(2):  # it may be done again
        cut.cut_blocking(position)
    if is_reopened:
        cut.close_blocking()
        cut = opened(tmp_path / "cut")
        assert cut.is_whole or not fresh.end_position
    assert cut.end_position == fresh.end_position
    for number in range(30, 45):
        for index in (cut, fresh):
            index.put("T", [f"k{number % 7}"], Position(100 * number), NOW + number)
    for key in range(7):
        found = [index.find("T", f"k{key}", 99, 0, FOREVER) for index in (cut, fresh)]
        assert found[0] == found[1]
        assert found[0]
    for index in (cut, fresh):
        index.close_blocking()


def test_a_query_may_be_bounded(index: KeyIndex) -> None:
    for number in range(1, 6):
        index.put("T", ["k"], Position(100 * number), NOW)
    assert index.find("T", "k", 2, 0, FOREVER, before=300) == [200, 100]
