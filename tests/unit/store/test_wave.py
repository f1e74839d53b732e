"""Waves of packed messages: the same store as with ordinary appends, byte for byte."""

from __future__ import annotations

import errno
import shutil
import tempfile
from array import array
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketpost.errors import StoreBroken, StoreError, StoreFull
from rocketpost.model import sysflag
from rocketpost.model.ids import Position
from rocketpost.model.names import SCHEDULE_TOPIC
from rocketpost.store.dispatch.arrival import Arrival
from rocketpost.store.dispatch.row_span import RowSpan
from rocketpost.store.draft import Draft
from rocketpost.store.files import DiskUsage
from rocketpost.store.message_store import MessageStore
from rocketpost.store.queue import slots

from .conftest import Opener, draft
from .packing import append_packed, pack, packer_of
from .test_faults import FaultyFiles
from .test_message_store import bodies

FIELDS = ("topic", "queue_id", "first_offset", "record_bytes", "message_count", "entries")


class RoomyFaultyFiles(FaultyFiles):
    def usage(self, path: str) -> DiskUsage:
        return DiskUsage(100, 50, 50)


def fields_of(arrivals: list[Arrival]) -> list[tuple[object, ...]]:
    return [tuple(getattr(arrival, name) for name in FIELDS) for arrival in arrivals]


def next_offsets(store: MessageStore) -> dict[tuple[str, int], int]:
    return {(queue.topic, queue.queue_id): queue.next_offset for queue in store.queues}


# -- one at a time


def test_a_wave_is_written_and_shown_like_appended_messages(opener: Opener) -> None:
    store = opener()
    store.append(draft(b"first"))
    assert pack(store, [draft(b"two", tags_code=7), draft(b"three")]) == 2
    store.append(draft(b"four"))
    assert pack(store, [draft(b"five")]) == 1
    end = store.commit()
    assert end == store.end_position == store.written_position
    assert bodies(store) == []
    (arrival,) = store.confirm(end)
    assert (arrival.first_offset, arrival.message_count) == (0, 5)
    assert [tags_code for _, _, tags_code in arrival.messages()] == [0, 7, 0, 0, 0]
    assert bodies(store) == [b"first", b"two", b"three", b"four", b"five"]
    assert store.append(draft()).queue_offset == 5


def test_a_wave_without_messages_does_not_stop_the_clock(opener: Opener) -> None:
    store = opener()
    store.append(draft())
    store.commit()
    packer = packer_of(store)
    assert store.wave.begin(packer)
    store.wave.take(packer)
    opener.clock.ms += 5000
    assert store.append(draft()).store_ms == opener.clock.ms


def test_messages_of_one_batch_share_a_store_time(opener: Opener) -> None:
    store = opener()
    appended = store.append(draft())
    opener.clock.ms += 1000
    pack(store, [draft()])
    assert store.store_ms == appended.store_ms
    store.commit()
    pack(store, [draft()])
    assert store.store_ms == opener.clock.ms == store.append(draft()).store_ms


def test_no_wave_while_the_store_refuses_new_messages(opener: Opener) -> None:
    store = opener()
    store.append(draft())
    store.set_disk_full("nearly")
    assert not store.wave.begin(packer_of(store))
    store.set_disk_full(None)
    assert store.wave.begin(packer_of(store))


def test_no_wave_if_each_record_gets_a_checksum(opener: Opener) -> None:
    store = opener(append_checksum=True)
    assert not store.wave.begin(packer_of(store))


def test_nothing_may_be_appended_while_a_wave_is_packed(opener: Opener) -> None:
    store = opener()
    store.append(draft())
    packer = packer_of(store)
    assert store.wave.begin(packer)
    store.wave.rows[:2] = array("q", (packer.position, 10))
    packer.row_at, packer.position = 1, packer.position + 10
    store.append(draft())
    with pytest.raises(AssertionError):
        store.wave.take(packer)


def test_nothing_may_be_appended_while_a_packer_goes_on(opener: Opener) -> None:
    store = opener()
    store.append(draft())
    assert pack(store, [draft()]) == 1
    packer = packer_of(store)
    assert store.wave.begin(packer)
    store.append(draft())
    with pytest.raises(AssertionError):
        store.wave.take(packer)


def test_a_packer_goes_on_until_something_else_is_appended_or_committed(opener: Opener) -> None:
    store = opener()
    store.append(draft(b"first"))
    packer = packer_of(store)
    for number in range(3):
        pack(store, [draft(b"wave %d" % number, keys=(f"k{number}",))])
        assert store.end_position == packer.position
    assert packer.begun == 1
    store.append(draft(b"between"))
    for number in range(2):
        pack(store, [draft(b"again %d" % number)])
    assert packer.begun == 2
    store.confirm(store.commit())
    pack(store, [draft(b"last")])
    assert packer.begun == 3
    store.confirm(store.commit())
    wanted = b"first, wave 0, wave 1, wave 2, between, again 0, again 1, last"
    assert bodies(store) == wanted.split(b", ")
    for number in range(3):
        assert len(store.find("TopicA", f"k{number}", count_max=9, begin_ms=0, end_ms=2**60)) == 1


def test_what_a_commit_has_written_can_be_read_from_memory(opener: Opener) -> None:
    store = opener()
    view_written = store.wave.view_written
    store.append(draft(b"in front"))
    begin = store.end_position
    pack(store, [draft(b"one"), draft(b"two")])
    pack(store, [draft(b"three")])
    end = store.end_position
    assert view_written(begin, 1) is None
    store.append(draft(b"behind"))
    store.confirm(store.commit())
    for at, size in ((begin, end - begin), (begin + 5, 10), (end - 1, 1)):
        assert view_written(at, size) == store.view(Position(at), size)
    for at, size in ((begin - 1, 2), (end - 1, 2), (end, 1), (0, 1)):
        assert view_written(at, size) is None
    pack(store, [draft(b"four")])
    assert view_written(begin, end - begin) is None


def test_parts_of_a_wave_that_do_not_follow_each_other_are_read_from_the_log(
    opener: Opener,
) -> None:
    store = opener()
    store.append(draft(b"in front"))
    begin = store.end_position
    assert pack(store, [draft(b"one")]) == 1
    store.append(draft(b"between"))
    assert pack(store, [draft(b"two")]) == 1
    store.confirm(store.commit())
    assert store.wave.view_written(begin, 10) is None


def test_nothing_is_read_from_memory_when_the_log_may_have_other_bytes(opener: Opener) -> None:
    files = RoomyFaultyFiles()
    store = opener(files=files)
    store.append(draft(b"in front"))
    begin = store.end_position
    pack(store, [draft(b"one")])
    store.confirm(store.commit())
    end = store.end_position
    data = store.wave.view_written(begin, end - begin)
    assert data is not None
    store.truncate_to_blocking(begin, below_confirmed=True)
    store.append_raw(begin, bytes(data))
    assert store.wave.view_written(begin, end - begin) is None
    pack(store, [draft(b"two")])
    store.confirm(store.commit())
    assert store.wave.view_written(end, 10) is not None
    store.truncate_to_blocking(end, below_confirmed=True)
    store.append(draft(b"of another term"))
    store.confirm(store.commit())
    assert store.wave.view_written(end, 10) is None
    end = store.end_position
    pack(store, [draft(b"lost")])
    files.failing, files.only = {"pwrite": errno.ENOSPC}, "commitlog"
    with pytest.raises(StoreFull):
        store.commit()
    assert store.wave.view_written(end, 10) is None


def test_a_wave_ends_where_its_segment_does(opener: Opener) -> None:
    store = opener()
    store.append(draft())
    many = [draft(bytes(1000))] * 30
    count = pack(store, many)
    assert 0 < count < 30
    append_packed(store, many[count:])
    store.confirm(store.commit())
    assert len(bodies(store)) == 31
    assert len(store.segments) == 3


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_failed_write_takes_everything_back(opener: Opener, code: int) -> None:
    files = RoomyFaultyFiles()
    store = opener(files=files)
    store.append(draft(b"kept"))
    store.append(draft(b"kept", queue_id=1))
    pack(store, [draft(b"kept", keys=("a",))])
    store.confirm(store.commit())
    before = next_offsets(store), store.end_position
    pack(store, [draft(b"lost", keys=("b", "c")), draft(b"lost", queue_id=1)])
    store.append(draft(b"lost"))
    pack(store, [draft(b"lost")])
    files.failing, files.only = {"pwrite": code}, "commitlog"
    with pytest.raises(StoreFull if code == errno.ENOSPC else StoreBroken):
        store.commit()
    assert (next_offsets(store), store.end_position) == before
    assert (store.wave.record_end, store.wave.row_end, store.wave.key_end) == (0, 0, 0)
    files.failing = {}
    if code == errno.EIO:
        assert not store.wave.begin(packer_of(store))
        return
    pack(store, [draft(b"new", keys=("b",))])
    store.confirm(store.commit())
    assert bodies(store) == [b"kept", b"kept", b"new"]
    found = store.find("TopicA", "b", count_max=9, begin_ms=0, end_ms=2**60)
    assert len(found) == 1


def test_rows_of_several_waves_wait_until_they_are_confirmed(opener: Opener) -> None:
    store = opener()
    store.append(draft(b"0"))
    ends = [store.commit()]
    for number in range(1, 6):
        pack(store, [draft(b"%d" % number, keys=(f"k{number}",))] * 2)
        ends.append(store.commit())
    for shown, end in enumerate(ends):
        store.confirm(end)
        assert len(bodies(store)) == 1 + 2 * shown
    assert all(
        len(store.find("TopicA", f"k{n}", count_max=9, begin_ms=0, end_ms=2**60)) == 2
        for n in range(1, 6)
    )


def test_a_killed_store_recovers_its_waves(opener: Opener) -> None:
    store = opener()
    store.append(draft(b"0"))
    drafts = [
        draft(b"%d" % n, queue_id=n % 3, properties=b"KEYS\x01k%d\x02" % n, keys=(f"k{n}",))
        for n in range(200)
    ]
    for queue_id in range(3):
        store.append(draft(queue_id=queue_id))
    append_packed(store, drafts)
    store.commit()
    opener.crash(store)
    store = opener()
    assert sum(len(bodies(store, queue_id=n)) for n in range(3)) == 204
    for number in range(200):
        key = f"k{number}"
        assert len(store.find("TopicA", key, count_max=9, begin_ms=0, end_ms=2**60)) == 1
    assert pack(store, drafts[:3]) == 3
    store.confirm(store.commit())
    assert sum(len(bodies(store, queue_id=n)) for n in range(3)) == 207


def test_the_log_is_cut_inside_a_wave(opener: Opener) -> None:
    store = opener()
    first = store.append(draft(b"0"))
    pack(store, [draft(b"%d" % n, keys=(f"k{n}",)) for n in range(1, 5)])
    store.commit()
    size = (store.end_position - first.end) // 4
    store.truncate_to_blocking(Position(first.end + 2 * size))
    assert next_offsets(store) == {("TopicA", 0): 3}
    pack(store, [draft(b"new")])
    store.confirm(store.commit())
    assert bodies(store) == [b"0", b"1", b"2", b"new"]


# -- slots


def test_offsets_follow_when_the_array_of_slots_grows(opener: Opener) -> None:
    store = opener()
    changes: list[int] = []
    store.append(draft())
    store.wave.watch_slots(lambda: changes.append(len(store.wave.next_offsets)))
    for queue_id in range(1, 2 * slots.COUNT_MIN + 1):
        store.append(draft(queue_id=queue_id))
    assert changes == [2 * slots.COUNT_MIN, 4 * slots.COUNT_MIN]
    append_packed(store, [draft(queue_id=n) for n in range(2 * slots.COUNT_MIN + 1)])
    store.confirm(store.commit())
    assert set(next_offsets(store).values()) == {2}


def test_the_slot_of_a_deleted_queue_is_not_used_while_rows_name_it(opener: Opener) -> None:
    store = opener()
    changes: list[None] = []
    store.wave.watch_slots(lambda: changes.append(None))
    store.append(draft(b"old"))
    pack(store, [draft(b"old too")])
    store.commit()
    old = store.queue("TopicA", 0)
    assert old is not None
    slot = old.slot
    store.delete_queues("TopicA").finish_blocking()
    assert changes
    store.append(draft(b"new"))
    queue = store.queue("TopicA", 0)
    assert queue is not None
    assert queue.slot != slot
    pack(store, [draft(b"newer")])
    (arrival,) = store.confirm(store.commit())
    assert (arrival.first_offset, arrival.message_count) == (2, 2)
    assert bodies(store) == [b"new", b"newer"]
    store.append(draft(topic="TopicB"))
    other = store.queue("TopicB", 0)
    assert other is not None
    assert other.slot == slot
    store.append(draft(topic="TopicC"))
    store.confirm(store.commit())
    assert next_offsets(store) == {("TopicA", 0): 4, ("TopicB", 0): 1, ("TopicC", 0): 1}


# -- the same as with ordinary appends, whatever happens


class Twins:
    """Two stores that are told the same; one gets its messages as waves where it can."""

    def __init__(self, root: Path) -> None:
        self.openers = [Opener(root / "ordinary"), Opener(root / "waves")]
        self.openers[1].clock = self.openers[0].clock
        self.files = [RoomyFaultyFiles(), RoomyFaultyFiles()]
        self.is_broken = False
        self.stores = [self._open(0), self._open(1)]

    def _open(self, which: int) -> MessageStore:
        return self.openers[which](
            files=self.files[which],
            index_slot_count=8,
            index_entry_count=24,
            queue_file_bytes=400,
        )

    def each(self, act: Callable[[MessageStore], object]) -> list[object]:
        """Do something with both stores; both must return or raise the same."""
        outcomes: list[object] = []
        for store in self.stores:
            try:
                outcomes.append(act(store))
            except StoreError as error:
                outcomes.append((type(error), str(error).replace(str(self.openers[1].root), "")))
        first, second = outcomes
        if isinstance(first, tuple) and isinstance(second, tuple):
            assert first[0] == second[0]
        else:
            assert first == second
        return outcomes

    def send(self, drafts: list[Draft]) -> None:
        def ordinary(store: MessageStore) -> None:
            for each in drafts:
                store.append(each)

        ways = dict(zip(map(id, self.stores), (ordinary, None), strict=True))

        def act(store: MessageStore) -> None:
            way = ways[id(store)]
            if way is not None:
                way(store)
            else:
                append_packed(store, drafts)

        self.each(act)

    def commit(self, fault: int) -> None:
        for files in self.files:
            files.only = "commitlog"
            files.failing = {"pwrite": fault, "pwritev": fault} if fault else {}
        self.each(MessageStore.commit)
        for files in self.files:
            files.failing = {}

    def confirm(self, share: float, *, is_full: bool) -> None:
        for files in self.files:
            files.only = "index"
            files.failing = {"fallocate": errno.ENOSPC} if is_full else {}
        first, end = self.stores[0].confirmed_position, self.stores[0].written_position
        position = Position(first + round((end - first) * share))
        self.each(lambda store: fields_of(store.confirm(position)))
        for files in self.files:
            files.failing = {}

    def set_ceiling(self, share: float | None) -> None:
        first, end = self.stores[0].confirmed_position, self.stores[0].end_position
        ceiling = None if share is None else Position(first + round((end - first) * share))
        self.each(lambda store: store.set_ceiling(ceiling))

    def delete(self, topic: str) -> None:
        def act(store: MessageStore) -> None:
            store.delete_queues(topic).finish_blocking()

        self.each(act)

    def check(self) -> None:
        one, other = self.stores
        assert one._dispatcher.mark == other._dispatcher.mark
        assert next_offsets(one) == next_offsets(other)
        for name in ("end", "written", "confirmed"):
            assert getattr(one, f"{name}_position") == getattr(other, f"{name}_position")
        assert one.store_ms == other.store_ms
        assert one.writable == other.writable
        for queue in one.queues:
            twin = other.queue(queue.topic, queue.queue_id)
            assert twin is not None
            assert (queue.first, queue.end) == (twin.first, twin.end)
            count = queue.end - queue.first
            assert queue.read(queue.first, count) == twin.read(twin.first, count)

    def reopen(self, *, clean: bool) -> None:
        for which, opener in enumerate(self.openers):
            if clean:
                self.stores[which].close_blocking()
                opener.stores.clear()
            else:
                opener.crash(self.stores[which])
        if clean:
            self.compare_files()
        self.stores = [self._open(0), self._open(1)]

    def compare_files(self) -> None:
        found = [files_below(opener.root) for opener in self.openers]
        assert sorted(found[0]) == sorted(found[1])
        for name, content in found[0].items():
            assert content == found[1][name], name

    def close(self) -> None:
        for opener in self.openers:
            for store in opener.stores:
                store.close_blocking()


def files_below(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and path.name not in ("lock", "extent")
    }


DRAFTS = st.builds(
    draft,
    st.binary(max_size=40) | st.sampled_from([bytes(1500), bytes(5000)]),
    topic=st.sampled_from(["TopicA", "TopicB", SCHEDULE_TOPIC]),
    queue_id=st.integers(0, 2),
    keys=st.lists(st.sampled_from(["k", "l", "m"]), max_size=3).map(tuple),
    tags_code=st.integers(-(2**63), 2**63 - 1),
    sys_flag=st.sampled_from([0, 0, 0, sysflag.TRANSACTION_PREPARED]),
)
SHARES = st.sampled_from([1.0, 1.0, 0.5]) | st.floats(0, 1)
STEPS = st.one_of(
    st.tuples(st.just("send"), st.lists(DRAFTS, min_size=1, max_size=12)),
    st.tuples(st.just("send"), st.lists(DRAFTS, min_size=1, max_size=12)),
    st.tuples(st.just("commit"), st.sampled_from([0, 0, 0, errno.ENOSPC])),
    st.tuples(st.just("confirm"), SHARES),
    st.tuples(st.just("confirm without room"), SHARES),
    st.tuples(st.just("ceiling"), st.none() | st.floats(0, 1)),
    st.tuples(st.just("delete"), st.sampled_from(["TopicA", "TopicB"])),
    st.tuples(st.just("pass"), st.sampled_from([1, 999, 5000, -2000])),
    st.tuples(st.just("reopen"), st.booleans()),
)


def run(twins: Twins, steps: list[tuple[str, object]]) -> None:
    for name, argument in steps:
        match name:
            case "send":
                twins.send(argument)  # type: ignore[arg-type]
            case "commit":
                twins.commit(argument)  # type: ignore[arg-type]
            case "confirm":
                twins.confirm(argument, is_full=False)  # type: ignore[arg-type]
            case "confirm without room":
                twins.confirm(argument, is_full=True)  # type: ignore[arg-type]
            case "ceiling":
                twins.set_ceiling(argument)  # type: ignore[arg-type]
            case "delete":
                twins.delete(argument)  # type: ignore[arg-type]
            case "pass":
                twins.openers[0].clock.ms += argument  # type: ignore[operator]
            case "reopen":
                twins.commit(0)
                twins.reopen(clean=bool(argument))
        twins.check()
    twins.set_ceiling(None)
    twins.commit(0)
    twins.confirm(1.0, is_full=False)
    twins.check()
    twins.reopen(clean=True)
    twins.check()


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(STEPS, max_size=25))
def test_waves_leave_the_same_store_as_ordinary_appends(steps: list[tuple[str, object]]) -> None:
    root = Path(tempfile.mkdtemp(prefix="twins-"))
    twins = Twins(root)
    try:
        run(twins, steps)
    finally:
        twins.close()
        shutil.rmtree(root)


def test_waiting_rows_are_kept_although_other_rows_stand_behind_them(opener: Opener) -> None:
    """A member of a group may have led, followed another leader, and lead again."""
    store = opener()
    store.append(draft(b"first"))
    pack(store, [draft(b"waits", keys=("k",))])
    end = store.commit()
    pending = store._dispatcher.pending
    span = pending[-1]
    assert isinstance(span, RowSpan)
    assert span.rows is store.wave.rows
    pending.append(RowSpan(array("q", (end, 10, 0, 0, 9)), 0, 1, array("q"), 0, 0, span.store_ms))
    before = span.position, span.end
    assert store.wave.begin(packer_of(store))
    assert span.rows is not store.wave.rows
    assert (span.position, span.end) == before
