from __future__ import annotations

import queue
from collections.abc import Callable
from pathlib import Path

import pytest

from rocketpost.codec.record import decode_record
from rocketpost.errors import StoreFull, StoreLocked
from rocketpost.model import sysflag
from rocketpost.model.ids import Position
from rocketpost.store.draft import Draft
from rocketpost.store.message_store import MessageStore
from rocketpost.store.queue.files import ENTRY

from .conftest import Opener, draft


def bodies(store: MessageStore, topic: str = "TopicA", queue_id: int = 0) -> list[bytes]:
    queue = store.queue(topic, queue_id)
    if queue is None:
        return []
    units = queue.read(queue.first, queue.end - queue.first)
    found = []
    for position, size, _ in ENTRY.iter_unpack(units):
        view = store.view(position, size)
        assert view is not None
        record = decode_record(view)
        assert (record.topic, record.queue_id, record.position) == (topic, queue_id, position)
        assert record.queue_offset == queue.first + len(found)
        found.append(bytes(record.body))
    return found


def test_committed_messages_are_read_back(opener: Opener) -> None:
    store = opener()
    first = store.append(draft(b"one"))
    second = store.append(draft(b"two", queue_id=1))
    third = store.append(draft(b"three"))
    assert (first.position, first.queue_offset) == (0, 0)
    assert (second.position, second.queue_offset) == (first.size, 0)
    assert third.queue_offset == 1
    assert bodies(store) == []
    assert store.commit() == third.end
    assert bodies(store) == []
    store.confirm(third.end)
    assert store.confirmed_position == third.end
    assert bodies(store) == [b"one", b"three"]
    assert bodies(store, queue_id=1) == [b"two"]
    record = store.record_at(second.position)
    assert record is not None
    assert (record.topic, bytes(record.body), record.store_ms) == (
        "TopicA", b"two", opener.clock.ms,
    )  # fmt: skip


def test_positions_that_hold_nothing_give_nothing(opener: Opener) -> None:
    store = opener()
    appended = store.append(draft())
    assert store.view(appended.position, appended.size) is None
    store.confirm(store.commit())
    assert store.record_at(appended.end) is None
    assert store.record_at(appended.position + 1) is None
    assert store.record_at(-1) is None
    assert store.view(10**9, 4) is None
    assert store.queue("TopicA", 9) is None


def test_arrivals_are_reported_once_visible(opener: Opener) -> None:
    store = opener()
    store.append(draft(tags_code=7))
    store.append(draft(sys_flag=sysflag.TRANSACTION_PREPARED))
    seen = store.confirm(store.commit())
    assert [(a.topic, a.queue_id, a.first_offset) for a in seen] == [("TopicA", 0, 0)]
    assert [tags_code for _, _, tags_code in seen[0].messages()] == [7]
    assert store.confirm(store.end_position) == []


def test_each_queue_gets_one_notice_of_all_its_messages(opener: Opener) -> None:
    store = opener()
    places = [(queue_id, store.append(draft(queue_id=queue_id))) for queue_id in (1, 0, 1) * 100]
    arrivals = store.confirm(store.commit())
    assert [arrival.queue_id for arrival in arrivals] == [1, 0]
    for arrival in arrivals:
        mine = [appended for queue_id, appended in places if queue_id == arrival.queue_id]
        queue = store.queue("TopicA", arrival.queue_id)
        assert queue is not None
        assert arrival.positions == [appended.position for appended in mine]
        assert arrival.entries == queue.read(0, 1000)
        assert (arrival.first_offset, arrival.message_count) == (0, len(mine))
        assert arrival.record_bytes == sum(appended.size for appended in mine)
    store.append(draft(queue_id=1))
    (again,) = store.confirm(store.commit())
    assert (again.first_offset, again.message_count) == (200, 1)


def test_nothing_shows_before_it_is_confirmed(opener: Opener) -> None:
    store = opener()
    first = store.append(draft(b"one"))
    store.commit()
    second = store.append(draft(b"two"))
    end = store.commit()
    assert bodies(store) == []
    assert store.record_at(first.position) is None
    assert [a.first_offset for a in store.confirm(second.position)] == [0]
    assert bodies(store) == [b"one"]
    store._flusher.flush_blocking()
    assert opener.durable == [end] == [store.durable_position]
    store.confirm(end)
    assert bodies(store) == [b"one", b"two"]


def test_a_request_wakes_the_flusher(opener: Opener) -> None:
    import threading

    done = threading.Event()
    opener.durable = type("", (list,), {"append": lambda self, p: done.set()})()
    store = opener()
    store.append(draft())
    store.commit()
    store.request_flush()
    assert done.wait(5)


def test_a_batch_stays_in_one_file_with_consecutive_offsets(opener: Opener) -> None:
    store = opener()
    store.append(draft(b"x" * 8000))
    store.append(draft(b"y" * 5000))
    batch = [draft(b"z" * 1000, queue_id=3) for _ in range(4)]
    appended = store.append_batch(batch)
    assert appended[0].position == 16384
    assert [a.queue_offset for a in appended] == [0, 1, 2, 3]
    assert len({a.store_ms for a in appended}) == 1
    store.confirm(store.commit())
    assert bodies(store, queue_id=3) == [b"z" * 1000] * 4


def test_the_end_of_a_file_is_a_blank(opener: Opener) -> None:
    store = opener()
    a = store.append(draft(b"x" * 8000))
    b = store.append(draft(b"y" * 8000))
    c = store.append(draft(b"z" * 8000))
    store.confirm(store.commit())
    assert c.position == 16384
    left = 16384 - b.end
    view = store.view(b.end, 8)
    assert view is not None
    assert view.hex() == f"{left:08x}cbd43194"
    assert a.end == b.position
    assert bodies(store) == [b"x" * 8000, b"y" * 8000, b"z" * 8000]


def test_a_prepared_message_is_in_no_queue(opener: Opener) -> None:
    store = opener()
    prepared = store.append(draft(sys_flag=sysflag.TRANSACTION_PREPARED, keys=("k",)))
    rolled = store.append(draft(sys_flag=sysflag.TRANSACTION_ROLLBACK, keys=("r",)))
    store.confirm(store.commit())
    assert bodies(store) == []
    assert prepared.queue_offset == rolled.queue_offset == 0
    assert store.record_at(prepared.position) is not None
    found = store.find("TopicA", "k", count_max=5, begin_ms=0, end_ms=2**62)
    assert found == [prepared.position]
    assert store.find("TopicA", "r", count_max=5, begin_ms=0, end_ms=2**62) == []


def test_keys_are_found(opener: Opener) -> None:
    store = opener()
    one = store.append(draft(keys=("k1", "k2")))
    two = store.append(draft(keys=("k2",)))
    store.confirm(store.commit())
    assert store.find("TopicA", "k2", count_max=5, begin_ms=0, end_ms=2**62) == [
        two.position, one.position,
    ]  # fmt: skip
    assert store.find("TopicB", "k2", count_max=5, begin_ms=0, end_ms=2**62) == []


def test_without_an_index_nothing_is_found(opener: Opener) -> None:
    store = opener(index_enabled=False)
    store.append(draft(keys=("k",)))
    store.confirm(store.commit())
    assert store.find("TopicA", "k", count_max=5, begin_ms=0, end_ms=2**62) == []


def test_a_store_has_one_owner(opener: Opener) -> None:
    store = opener()
    with pytest.raises(StoreLocked):
        opener()
    store.close_blocking()
    store.close_blocking()
    with pytest.raises(StoreFull, match="closed"):
        store.append(draft())
    opener()


def test_store_times_do_not_fall_with_a_small_step_of_the_clock(opener: Opener) -> None:
    store = opener()
    start = opener.clock.ms
    store.append(draft())
    store.confirm(store.commit())
    opener.clock.ms = start - 1000
    assert store.append(draft()).store_ms == start
    store.confirm(store.commit())
    opener.clock.ms = start - 3_600_000
    assert store.append(draft()).store_ms == start - 3_600_000


def test_a_delay_does_not_begin_before_its_message_was_sent(opener: Opener) -> None:
    store = opener()
    start = opener.clock.ms
    delayed = draft(topic="SCHEDULE_TOPIC_XXXX", properties=b"DELAY\x011\x02")
    store.append(draft())
    opener.clock.ms = start + 27  # the same wake-up takes its time
    assert store.append(draft()).store_ms == start
    appended = store.append(delayed)
    assert appended.store_ms == start + 27
    assert appended.tags_code == start + 27 + 1000  # when it is due
    assert store.append(draft()).store_ms == start + 27


def test_a_disk_nearly_full_takes_no_new_messages_and_delivers_old_ones(opener: Opener) -> None:
    store = opener()
    store.set_disk_full("95 % of the disk is used")
    assert not store.writable
    assert store.why_not_writable == "95 % of the disk is used"
    with pytest.raises(StoreFull, match="95 %"):
        store.check_writable()
    store.append(draft())
    store.set_disk_full(None)
    store.check_writable()
    assert store.writable
    assert store.why_not_writable is None


def test_hosts_of_either_family_are_stored(
    opener: Opener, make_draft: Callable[..., Draft]
) -> None:
    from rocketpost.codec.record import pack_host

    store = opener()
    message = make_draft(b"six")
    message.born_host = pack_host("2001:db8::1", 40000)
    appended = store.append(message)
    store.confirm(store.commit())
    record = store.record_at(appended.position)
    assert record is not None
    assert record.sys_flag == sysflag.BORN_HOST_V6
    assert record.born_host == ("2001:db8::1", 40000)
    assert store.store_time_at(appended.position) == opener.clock.ms


def test_intervals_can_change_while_the_store_is_open(opener: Opener) -> None:
    store = opener(flush_interval_ms=3_600_000)
    arrived: queue.SimpleQueue[Position] = queue.SimpleQueue()
    store.report_to(on_durable=arrived.put)
    store.append(draft())
    end = store.commit()
    store.confirm(end)
    store.configure(opener.config(flush_interval_ms=1))
    store.request_flush()  # ends the long sleep; the next ones are short
    assert arrived.get(timeout=10) == end
    store.append(draft())
    end = store.commit()
    store.confirm(end)
    assert arrived.get(timeout=10) == end


def test_a_crash_after_a_deletion_does_not_read_the_whole_log(
    opener: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    store = opener()
    for topic in ("Gone", "Stays"):
        for _ in range(20):
            store.append(draft(topic=topic))
    end = store.commit()
    store.confirm(end)
    store.delete_queues("Gone").finish_blocking()
    opener.crash(store)
    with caplog.at_level("INFO"):
        again = opener()
    assert f"from={end}" in caplog.text
    assert bodies(again, "Stays") == [b"hello"] * 20
    assert bodies(again, "Gone") == []


def test_two_stores_cannot_share_a_commit_log(opener: Opener, tmp_path: Path) -> None:
    shared = str(tmp_path / "fast" / "log")
    opener(commit_log_path=shared)
    other = Opener(tmp_path / "other")
    with pytest.raises(
        StoreLocked, match=rf"{shared} is in use by .*storePathRootDir={opener.root}"
    ):
        other(commit_log_path=shared)
    opener.stores.pop().close_blocking()
    store = other(commit_log_path=shared)
    with pytest.raises(StoreLocked, match="is in use by"):
        opener(commit_log_path=shared)
    store.close_blocking()
    # RocketMQ takes every file beside the segments for one.
    assert all(path.is_dir() or len(path.name) == 20 for path in Path(shared).iterdir())


def test_a_store_that_is_refused_for_its_log_can_be_opened_later(
    opener: Opener, tmp_path: Path
) -> None:
    shared = str(tmp_path / "log")
    first = opener(commit_log_path=shared)
    other = Opener(tmp_path / "other")
    for _ in range(2):
        with pytest.raises(StoreLocked):
            other(commit_log_path=shared)
    first.close_blocking()
    other(commit_log_path=shared).close_blocking()
