"""A log that was cut: as if the records behind the cut had never been."""

from __future__ import annotations

import errno
import logging
import shutil
from pathlib import Path

import pytest

from rocketpost.errors import StoreBroken, StoreError, StoreFull
from rocketpost.model.ids import Position
from rocketpost.store.message_store import MessageStore
from rocketpost.store.replica.truncation import TruncationFile

from ..conftest import Opener, Roomy, draft
from .test_raw_append import chunks, fill, follow, keys_found, shown
from .test_visibility import SMALL, borders, check_hidden, visible_before

COUNT = 60


def filled(opener: Opener) -> MessageStore:
    store = opener(**SMALL)
    fill(store, COUNT)
    return store


def cuts(store: MessageStore) -> list[int]:
    """Return some borders, the starts of all segments among them."""
    ends = borders(store)
    return [0, *range(4096, store.end_position, 4096), *ends[::9], ends[-1]]


def check_cut(store: MessageStore, position: int, wanted: dict[tuple[str, int], list[int]]) -> None:
    assert store.end_position == store.written_position == store.durable_position == position
    assert store.confirmed_position == position
    check_hidden(store, wanted)
    assert all(queue.next_offset == queue.end for queue in store.queues)
    assert store.queues.count() == store._dispatcher.mark[4:]
    assert not (Path(store.config.root) / "truncating").exists()


def test_everything_derived_is_cut_with_the_log(
    tmp_path: Path, opener: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    store = filled(opener)
    places, log = cuts(store), chunks(store)
    wanted = {position: visible_before(store, position) for position in places}
    full, keys = shown(store), keys_found(store, COUNT)
    store.close_blocking()
    caplog.set_level(logging.WARNING)
    for number, position in enumerate(places):
        copy = Opener(tmp_path / f"copy{number}")
        shutil.copytree(opener.root, copy.root)
        store = copy(**SMALL)
        store.truncate_to_blocking(Position(position), below_confirmed=True)
        check_cut(store, position, wanted[position])
        if number % 2:
            copy.crash(store)
            store = copy(**SMALL)
            check_cut(store, position, wanted[position])
        # The same records once more: the leader's log is as it was.
        begin = store.end_position
        rest = [(low, data) for low, data in log if low + len(data) > begin]
        if rest:
            low, data = rest[0]
            at = max(0, begin - low)
            follow(store, [(Position(low + at), data[at:]), *rest[1:]])
        store.confirm(store.end_position)
        assert shown(store) == full
        assert keys_found(store, COUNT) == keys
        store.close_blocking()
        assert [path.read_bytes() for path in sorted((opener.root / "commitlog").glob("0*"))] == [
            path.read_bytes() for path in sorted((copy.root / "commitlog").glob("0*"))
        ]
    noted = {record.getMessage().partition(" position")[0] for record in caplog.records}
    assert noted == {"commit log cut off"}


@pytest.mark.parametrize("is_killed", [True, False])
def test_other_records_may_follow(opener: Opener, is_killed: bool) -> None:
    store = filled(opener)
    position = borders(store)[25]
    store.truncate_to_blocking(Position(position), below_confirmed=True)
    wanted = visible_before(store, position)
    for number in range(40):
        store.append(draft(b"other", topic="TopicB", keys=(f"other-{number}",)))
    store.confirm(store.commit())
    before = shown(store)
    other = [place.position for place in _find(store)]
    assert len(other) == 40
    if is_killed:
        opener.crash(store)
    else:
        store.close_blocking()
    store = opener(**SMALL)
    assert shown(store) == before
    assert not store.damage.all()
    assert [place.position for place in _find(store)] == other
    for place, positions in visible_before(store, position).items():
        assert positions == wanted[place]


def _find(store: MessageStore) -> list[object]:
    found = []
    for number in range(40):
        positions = store.find("TopicB", f"other-{number}", count_max=9, begin_ms=0, end_ms=2**62)
        found += [store.record_at(position) for position in positions]
    assert all(record is not None for record in found)
    return found


def test_only_what_nobody_saw_is_cut_unless_asked(opener: Opener) -> None:
    store = opener()
    seen = store.append(draft())
    store.confirm(store.commit())
    unseen = store.append(draft())
    store.commit()
    with pytest.raises(StoreError, match="visible"):
        store.truncate_to_blocking(seen.position)
    store.truncate_to_blocking(seen.end)
    assert store.end_position == seen.end
    assert store.append(draft()).queue_offset == unseen.queue_offset
    assert len(store.confirm(store.commit())) == 1


def test_where_a_log_can_be_cut(opener: Opener) -> None:
    store = filled(opener)
    end = store.end_position
    for position, why in ((-1, "has the bytes"), (end + 1, "has the bytes"), (end - 7, "begins")):
        with pytest.raises(StoreError, match=why):
            store.truncate_to_blocking(Position(position), below_confirmed=True)
    store.truncate_to_blocking(end)
    store.append(draft())
    with pytest.raises(StoreError, match="not committed"):
        store.truncate_to_blocking(end)
    store.commit()
    assert store.end_position > end


def test_records_behind_a_ceiling_may_be_cut(opener: Opener) -> None:
    store = filled(opener)
    ends = borders(store)
    wanted = {end: visible_before(store, end) for end in ends}
    store.close_blocking()
    store = opener(**SMALL, ceiling=Position(ends[10]))
    store.truncate_to_blocking(Position(ends[30]))
    check_hidden(store, wanted[ends[10]])
    store.set_ceiling(None)
    store.confirm(store.end_position)
    check_cut(store, ends[30], wanted[ends[30]])
    opener.crash(store)
    check_cut(opener(**SMALL), ends[30], wanted[ends[30]])


def test_the_owner_is_notified_before_the_cut_is_finished(opener: Opener) -> None:
    told: list[int] = []
    path = opener.root / "truncating"

    def forget(position: Position) -> None:
        assert path.exists()
        told.append(position)

    def open_store() -> MessageStore:
        store = MessageStore.open_blocking(
            opener.config(),
            clock=opener.clock,
            files=Roomy(),
            on_durable=lambda position: None,
            on_truncated=forget,
        )
        opener.stores.append(store)
        return store

    store = open_store()
    place = store.append(draft())
    store.append(draft())
    store.commit()
    store.truncate_to_blocking(place.end)
    assert told == [place.end]
    store.append(draft())
    store.commit()
    opener.crash(store)
    TruncationFile(Roomy(), str(path)).save_blocking(place.end)
    store = open_store()
    assert told == [place.end] * 2
    assert store.end_position == place.end
    assert not path.exists()


def test_a_damaged_decision_is_none(tmp_path: Path) -> None:
    file = TruncationFile(Roomy(), str(tmp_path / "truncating"))
    assert file.load_blocking() is None
    file.save_blocking(4711)
    assert file.load_blocking() == 4711
    data = (tmp_path / "truncating").read_bytes()
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        (tmp_path / "truncating").write_bytes(flipped)
        assert file.load_blocking() is None
    for size in range(len(data)):
        (tmp_path / "truncating").write_bytes(data[:size])
        assert file.load_blocking() is None
    file.remove_blocking()
    file.remove_blocking()
    assert file.load_blocking() is None


class Failing(Roomy):
    """Files of which one cannot be removed."""

    name = ""
    removed_before = 0

    def unlink(self, path: str) -> None:
        if self.name and self.name in path:
            if not self.removed_before:
                raise OSError(5, "told to fail")
            self.removed_before -= 1
        super().unlink(path)


def test_a_cut_that_fails_breaks_the_store_and_is_finished_by_the_next_start(
    opener: Opener,
) -> None:
    files = Failing()
    store = opener(files=files, **SMALL)
    fill(store, COUNT)
    position = borders(store)[5]
    wanted = visible_before(store, position)
    files.name = "commitlog"
    with pytest.raises(StoreBroken, match="Restart"):
        store.truncate_to_blocking(Position(position), below_confirmed=True)
    with pytest.raises(StoreBroken):
        store.append(draft())
    opener.stores.remove(store)
    files.name = ""
    store.close_blocking()
    check_cut(opener(**SMALL), position, wanted)


@pytest.mark.parametrize("count", [0, 1, 2, 3])
@pytest.mark.parametrize("is_power_cut", [True, False])
def test_a_cut_that_has_removed_some_files_of_a_queue_is_finished(
    opener: Opener, count: int, is_power_cut: bool
) -> None:
    """The first offset behind a gap was taken for one that was assigned."""
    files = Failing()
    store = opener(files=files, queue_file_bytes=200)
    places = [store.append(draft(b"%d" % number)) for number in range(50)]
    store.confirm(store.commit())
    position = places[5].position
    wanted = visible_before(store, position)
    store.save_blocking()
    files.name, files.removed_before = "consumequeue", count
    with pytest.raises(StoreBroken, match="Restart"):
        store.truncate_to_blocking(position, below_confirmed=True)
    files.name = ""
    opener.crash(store)
    if is_power_cut:  # of the names that were removed, any may be back
        path = opener.root / "consumequeue" / "TopicA" / "0" / f"{400:020d}"
        path.unlink(missing_ok=True)
    store = opener(queue_file_bytes=200)
    assert store.end_position == position
    assert visible_before(store, position) == wanted
    assert store.append(draft()).queue_offset == 5


@pytest.mark.parametrize("call", ["open", "fdatasync"])
def test_a_cut_without_room_for_its_decision_changes_nothing(opener: Opener, call: str) -> None:
    class Full(Roomy):
        is_full = False
        name = ""

        def open(self, path: str, *, write: bool = False, create: bool = False) -> int:
            self.name = path
            self._check("open")
            return super().open(path, write=write, create=create)

        def fdatasync(self, fd: int) -> None:
            self._check("fdatasync")
            super().fdatasync(fd)

        def _check(self, name: str) -> None:
            if self.is_full and name == call and self.name.endswith("truncating"):
                raise OSError(errno.ENOSPC, "no space")

    files = Full()
    store = opener(files=files, **SMALL)
    fill(store, COUNT)
    end, position = store.end_position, borders(store)[5]
    wanted = visible_before(store, end), visible_before(store, position)
    files.is_full = True
    with pytest.raises(StoreFull, match="no space"):
        store.truncate_to_blocking(Position(position), below_confirmed=True)
    files.is_full = False
    assert store.writable
    check_cut(store, end, wanted[0])
    opener.crash(store)
    store = opener(**SMALL)
    check_cut(store, end, wanted[0])
    store.truncate_to_blocking(Position(position), below_confirmed=True)
    check_cut(store, position, wanted[1])
