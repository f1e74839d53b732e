"""Records behind the ceiling are in the log, and nobody sees them."""

from __future__ import annotations

import itertools
import logging
import shutil

import pytest

from rocketpost.errors import StoreError
from rocketpost.kernel.record_scan import record_starts
from rocketpost.model.ids import Position
from rocketpost.store.message_store import MessageStore

from ..conftest import Opener, draft
from .test_raw_append import chunks, fill, keys_found, shown

COUNT = 60
SMALL = {"segment_bytes": 4096, "message_bytes_max": 1024, "queue_file_bytes": 60}


def borders(store: MessageStore) -> list[int]:
    """Return the ends of all records."""
    found = []
    for position, data in chunks(store):
        starts, end = record_starts(data, 0, count_max=10**6, bytes_max=10**9)
        found += [position + at for at in [*starts[1:], end]]
    return found


def visible_before(store: MessageStore, ceiling: int) -> dict[tuple[str, int], list[int]]:
    """Return the positions that queues of a store without ceiling have before one."""
    found = {}
    for queue in store.queues:
        entries = [queue.entry(offset) for offset in range(queue.first, queue.end)]
        kept = [entry[0] for entry in entries if entry and entry[0] + entry[1] <= ceiling]
        if kept:
            found[queue.topic, queue.queue_id] = kept
    return found


def check_hidden(store: MessageStore, wanted: dict[tuple[str, int], list[int]]) -> None:
    assert visible_before(store, store.end_position) == wanted
    positions = sorted(itertools.chain(*wanted.values()))
    found = sorted(itertools.chain(*keys_found(store, COUNT)))
    assert not [position for position in found if position >= store.confirmed_position]
    assert set(positions) <= set(found)
    assert store.record_at(store.confirmed_position) is None


@pytest.mark.parametrize("stop", ["crash", "close"])
def test_a_store_shows_nothing_after_its_ceiling_until_it_is_raised(
    opener: Opener, stop: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = opener(**SMALL)
    fill(store, COUNT)
    ends, full, keys = borders(store), shown(store), keys_found(store, COUNT)
    cuts = [0, *ends[::23], *(end - 5 for end in ends[::25]), ends[-1], ends[-1] + 999]
    wanted = {ceiling: visible_before(store, ceiling) for ceiling in cuts}
    store.close_blocking()
    caplog.set_level(logging.WARNING)
    for ceiling in cuts:
        store = opener(**SMALL, ceiling=Position(ceiling))
        assert store.end_position == ends[-1]
        check_hidden(store, wanted[ceiling])
        store.confirm(store.end_position)
        check_hidden(store, wanted[ceiling])
        if stop == "crash":
            opener.crash(store)
        else:
            store.close_blocking()
        store = opener(**SMALL, ceiling=Position(ceiling))
        check_hidden(store, wanted[ceiling])
        store.set_ceiling(None)
        arrivals = store.confirm(store.end_position)
        shown_before = sum(map(len, wanted[ceiling].values()))
        assert len(arrivals) == sum(map(len, wanted[ends[-1]].values())) - shown_before
        assert shown(store) == full
        assert keys_found(store, COUNT) == keys
        assert store.queues.count() == store._dispatcher.mark[4:]
        store.close_blocking()
    assert not caplog.records


def test_hidden_records_become_visible_step_by_step(opener: Opener) -> None:
    store = opener(**SMALL)
    fill(store, COUNT)
    ends = borders(store)
    wanted = {end: visible_before(store, end) for end in ends}
    full = shown(store)
    store.close_blocking()
    store = opener(**SMALL, ceiling=Position(0))
    for end in ends[:-1]:
        store.set_ceiling(Position(end + 3))
        store.confirm(store.end_position)
        assert store.confirmed_position == end
        check_hidden(store, wanted[end])
        if end == ends[20]:
            opener.crash(store)
            store = opener(**SMALL, ceiling=Position(end))
    opener.crash(store)
    assert shown(opener(**SMALL)) == full


def test_the_ceiling_holds_back_what_is_appended(opener: Opener) -> None:
    store = opener()
    first = store.append(draft(b"one"))
    second = store.append(draft(b"two"))
    end = store.commit()
    store.set_ceiling(Position(second.end - 1))
    assert [arrival.positions for arrival in store.confirm(end)] == [[first.position]]
    assert store.confirmed_position == first.end
    assert not store.confirm(end)
    with pytest.raises(StoreError, match="visible"):
        store.set_ceiling(Position(first.end - 1))
    assert store.ceiling == second.end - 1
    store.set_ceiling(end)
    assert [arrival.positions for arrival in store.confirm(end)] == [[second.position]]


def test_new_messages_follow_hidden_ones(opener: Opener) -> None:
    store = opener()
    for _ in range(5):
        store.append(draft())
    store.confirm(store.commit())
    store.close_blocking()
    store = opener(ceiling=Position(0))
    assert store.append(draft()).queue_offset == 5
    store.commit()
    store.set_ceiling(None)
    assert len(store.confirm(store.end_position)) == 6
    queue = store.queue("TopicA", 0)
    assert queue is not None
    assert queue.end == queue.next_offset == 6


def test_damage_behind_the_ceiling_keeps_its_offsets(opener: Opener) -> None:
    store = opener()
    places = [store.append(draft(bytes([1 + number]) * 50)) for number in range(6)]
    store.confirm(store.commit())
    opener.crash(store)
    log = opener.root / "commitlog" / f"{0:020d}"
    data = bytearray(log.read_bytes())
    for number in (2, 5):
        data[places[number].position + 95] ^= 0xFF
    log.write_bytes(data)
    shutil.rmtree(opener.root / "consumequeue")
    (opener.root / "checkpoint").unlink()
    copy = opener.root.parent / "copy"
    shutil.copytree(opener.root, copy)
    plain = Opener(copy)()
    wanted = shown(plain)
    plain.close_blocking()
    store = opener(ceiling=places[0].end)
    queue = store.queue("TopicA", 0)
    assert queue is not None
    assert queue.end == 1
    store.set_ceiling(None)
    store.confirm(store.end_position)
    assert shown(store) == wanted
    assert queue.end == queue.next_offset
    assert store.queues.count() == store._dispatcher.mark[4:]
