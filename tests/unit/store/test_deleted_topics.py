from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import msgspec
import pytest

from rocketpost.errors import StoreError
from rocketpost.store.deleted_topics import DeletedTopic, DeletedTopics
from rocketpost.store.files import RealFiles

from .conftest import Opener, Roomy, draft
from .test_message_store import bodies


def write(opener: Opener, store: object, *texts: bytes, topic: str = "TopicA") -> None:
    for text in texts:
        store.append(draft(text, topic=topic))  # type: ignore[attr-defined]
    store.confirm(store.commit())  # type: ignore[attr-defined]


def test_a_deleted_topic_is_gone_at_once_and_its_files_soon(opener: Opener) -> None:
    store = opener()
    write(opener, store, *[b"%d" % number for number in range(150)])
    write(opener, store, b"other", topic="TopicB")
    deletion = store.delete_queues("TopicA")
    assert store.queue("TopicA", 0) is None
    assert bodies(store, "TopicB") == [b"other"]
    assert not (opener.root / "consumequeue" / "TopicA").exists()
    assert list((opener.root / "dropped").iterdir())
    deletion.finish_blocking()
    assert not list((opener.root / "dropped").iterdir())


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("end", ["close", "crash"])
@pytest.mark.parametrize("gone", ["nothing", "consumequeue", "checkpoint"])
def test_a_topic_created_again_shows_only_its_new_messages(
    opener: Opener, finished: bool, end: str, gone: str
) -> None:
    store = opener()
    write(opener, store, *[b"old%d" % number for number in range(120)])
    deletion = store.delete_queues("TopicA")
    if finished:
        deletion.finish_blocking()
    again = store.append(draft(b"new"))
    assert again.queue_offset == 120
    store.confirm(store.commit())
    assert bodies(store) == [b"new"]
    if not finished:
        deletion.finish_blocking()
    store.close_blocking() if end == "close" else opener.crash(store)
    if gone == "consumequeue":
        shutil.rmtree(opener.root / "consumequeue")
    elif gone == "checkpoint":
        (opener.root / "checkpoint").unlink()
    store = opener()
    assert bodies(store) == [b"new"]
    assert store.append(draft(b"newer")).queue_offset == 121


def test_a_topic_not_made_again_stays_gone_after_a_crash(opener: Opener) -> None:
    store = opener()
    write(opener, store, b"old")
    store.delete_queues("TopicA").finish_blocking()
    opener.crash(store)
    shutil.rmtree(opener.root / "consumequeue", ignore_errors=True)
    store = opener()
    assert store.queue("TopicA", 0) is None
    assert store.append(draft(b"new")).queue_offset == 1


def test_a_checkpoint_does_not_outrun_a_deletion(opener: Opener) -> None:
    store = opener()
    write(opener, store, b"old")
    store.delete_queues("TopicA")  # its one entry is in no file, so there is nothing to move aside
    store.save_blocking()
    opener.crash(store)
    store = opener()
    assert store.queue("TopicA", 0) is None
    assert store.append(draft(b"new")).queue_offset == 1


def test_a_deletion_that_moved_nothing_yet_is_undone_by_a_crash(opener: Opener) -> None:
    store = opener()
    write(opener, store, b"old")
    store.delete_queues("TopicA")
    opener.crash(store)
    assert bodies(opener()) == [b"old"]


@pytest.mark.parametrize("saved", [1, 2])
def test_a_deletion_that_moved_the_files_is_finished_after_a_crash(
    opener: Opener, saved: int
) -> None:
    store = opener()
    for number in (1, 2):
        write(opener, store, b"old")
        if number == saved:
            store.save_blocking()
    store.delete_queues("TopicA")
    opener.crash(store)
    (opener.root / "dropped" / "not a deletion").mkdir()
    shutil.copytree(opener.root / "dropped", opener.root / "kept")
    store = opener()
    assert bodies(store) == []
    assert store.append(draft(b"new")).queue_offset == 2
    store.confirm(store.commit())
    opener.crash(store)
    (opener.root / "kept").rename(opener.root / "dropped")
    assert bodies(opener()) == [b"new"]


def test_a_topic_deleted_twice_continues_its_offsets(opener: Opener) -> None:
    store = opener()
    for round_ in range(3):
        write(opener, store, b"a", b"b")
        queue = store.queue("TopicA", 0)
        assert queue is not None
        assert (queue.first, queue.end) == (round_ * 2, round_ * 2 + 2)
        store.delete_queues("TopicA").finish_blocking()
    opener.crash(store)
    assert opener().append(draft()).queue_offset == 6


def test_messages_waiting_for_the_disk_are_deleted_too(opener: Opener) -> None:
    store = opener()
    store.append(draft(b"old"))
    store.commit()
    store.append(draft(b"old too"))
    store.delete_queues("TopicA").finish_blocking()
    store.append(draft(b"new"))
    end = store.commit()
    assert [arrival.first_offset for arrival in store.confirm(end)] == [2]
    assert bodies(store) == [b"new"]


def test_a_deletion_past_a_lost_tail_does_not_hide_what_comes_there(opener: Opener) -> None:
    store = opener()
    kept = store.append(draft(b"kept", topic="TopicB"))
    store.append(draft(b"lost"))
    store.confirm(store.commit())
    deletion = store.delete_queues("TopicA")
    # And a power cut before the checkpoint that makes the log durable.
    deletion._deleter.save_blocking()
    deletion._deleter.unlink_blocking()
    opener.crash(store)
    with (opener.root / "commitlog" / ("0" * 20)).open("r+b") as file:
        file.seek(kept.end)
        file.write(bytes(8))
    (opener.root / "extent").unlink()
    store = opener()
    assert store.end_position == kept.end
    store.append(draft(b"new"))
    store.confirm(store.commit())
    store.close_blocking()
    shutil.rmtree(opener.root / "consumequeue")
    assert bodies(opener()) == [b"new"]


def test_a_topic_without_queues_can_be_deleted(opener: Opener) -> None:
    store = opener()
    store.delete_queues("Nowhere").finish_blocking()
    store.close_blocking()
    opener()


@pytest.mark.parametrize("damage", ["?", "", None])
@pytest.mark.parametrize("name", ["droppedTopics.json", "droppedTopics.json.bak"])
def test_a_damaged_list_has_a_copy(opener: Opener, name: str, damage: str | None) -> None:
    store = opener()
    write(opener, store, b"old")
    store.delete_queues("TopicA").finish_blocking()
    store.close_blocking()
    path = opener.root / "config" / name
    whole = path.read_bytes()
    path.unlink() if damage is None else path.write_text(damage)
    store = opener()
    assert store.append(draft(b"new")).queue_offset == 1
    assert path.read_bytes() == whole


def test_a_lost_list_stops_the_start(opener: Opener) -> None:
    store = opener()
    write(opener, store, b"old")
    store.delete_queues("TopicA").finish_blocking()
    store.close_blocking()
    (opener.root / "config" / "droppedTopics.json").write_text("?")
    (opener.root / "config" / "droppedTopics.json.bak").unlink()
    with pytest.raises(StoreError, match=r"droppedTopics\.json.*remove both"):
        opener()


def test_of_deletions_that_hide_nothing_any_more_the_latest_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rocketpost.store.deleted_topics.COUNTED_MAX", 2)
    deleted_topics = DeletedTopics(RealFiles(), str(tmp_path / "config" / "droppedTopics.json"))
    for number in range(4):
        deleted_topics.add(f"topic{number}", 100 + number, {0: number}, serial=number)
    deleted_topics.add("topic0", 104, {1: 9}, serial=5)
    deleted_topics.settle(101, 1000)
    assert deleted_topics.next_offset("topic1", 0) == 1
    deleted_topics.settle(103, 1000)
    assert [deleted_topics.next_offset(f"topic{number}", 0) for number in range(4)] == [0, 0, 2, 3]
    assert deleted_topics.next_offset("topic0", 1) == 9
    deleted_topics.settle(0, 102)
    assert deleted_topics.is_changed
    assert deleted_topics.deleted_before("topic3") == deleted_topics.deleted_before("topic0") == 102
    deleted_topics.save_blocking()
    assert not deleted_topics.is_changed
    again = DeletedTopics(RealFiles(), str(tmp_path / "config" / "droppedTopics.json"))
    again.load_blocking()
    assert again.encode() == deleted_topics.encode()
    assert again.serial == 5


def test_queue_files_that_a_crash_brings_back_do_not_turn_the_count_back(opener: Opener) -> None:
    store = opener()
    write(opener, store, b"one")
    store.save_blocking()
    shutil.copytree(opener.root / "consumequeue", opener.root / "kept")
    write(opener, store, b"two")
    store.delete_queues("TopicA").finish_blocking()
    opener.crash(store)
    shutil.rmtree(opener.root / "consumequeue")
    (opener.root / "kept").rename(opener.root / "consumequeue")
    store = opener()
    assert bodies(store) == []
    assert store.append(draft(b"three")).queue_offset == 2


def test_files_stay_until_their_own_deletion_is_durable(opener: Opener) -> None:
    """Another deletion, which just ends, would unlink them; then nothing knew their offsets."""

    class Meeting(Roomy):
        meet: Callable[[], object] | None = None

        def listdir(self, path: str) -> list[str]:
            if self.meet is not None and path.endswith("/dropped"):
                meet, self.meet = self.meet, None
                meet()
            return super().listdir(path)

    files = Meeting()
    store = opener(files=files)
    write(opener, store, *[b"%d" % number for number in range(200)], topic="TopicB")
    write(opener, store, *[b"x" * 1000 for _ in range(20)])
    store.save_blocking()
    for path in (opener.root / "commitlog").glob("0*"):
        os.utime(path, (0, 0))
    plan = store.cleaning.plan_blocking(now_ms=opener.clock.ms, hour=4)
    store.cleaning.apply(plan)
    store.cleaning.trim_queues()
    store.cleaning.unlink_blocking()
    assert bodies(store, "TopicB") == []  # all of them have expired
    store._checkpointer.save_blocking = _fail  # type: ignore[method-assign]
    deletion = store.delete_queues("TopicA")
    files.meet = lambda: store.delete_queues("TopicB")
    deletion.finish_blocking()
    assert [path.name.rpartition("-")[2] for path in (opener.root / "dropped").iterdir()] == [
        "TopicB"
    ]
    opener.crash(store)
    store = opener()
    assert not list((opener.root / "dropped").iterdir())
    assert store.append(draft(topic="TopicB")).queue_offset == 200


def _fail() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_directory_without_queues_is_removed_too(opener: Opener) -> None:
    store = opener()
    (opener.root / "consumequeue" / "TopicA" / "0").mkdir(parents=True)
    for _ in range(2):
        store.delete_queues("TopicA").finish_blocking()
    assert not (opener.root / "consumequeue" / "TopicA").exists()
    assert not list((opener.root / "dropped").iterdir())


def test_a_snapshot_has_each_deletion_whole_or_not_at_all(tmp_path: Path) -> None:
    """Whatever the thread that saves interrupts: a start knows deletions by their number alone."""
    topics = DeletedTopics(RealFiles(), str(tmp_path / "topics"))
    wanted: dict[int, object] = {
        1: {"position": 100, "next": {"0": 10, "1": 11}},
        2: {"position": 200, "next": {"0": 10, "1": 21, "2": 22}},
    }
    seen: set[int] = set()

    def look(frame: FrameType, event: str, argument: object) -> object:
        if event == "line":
            stored = msgspec.json.decode(topics.encode())
            serial = stored.get("serial", 0)
            seen.add(serial)
            if serial:
                assert stored.get("topics", {}).get("T") in (wanted[serial], wanted[2])
        return look

    def trace(frame: FrameType, event: str, argument: object) -> object:
        return look if frame.f_code is DeletedTopics.add.__code__ else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        topics.add("T", 100, {0: 10, 1: 11}, serial=1)
        topics.add("T", 200, {1: 21, 2: 22}, serial=2)
    finally:
        sys.settrace(before)
    assert seen == {0, 1, 2}
    assert topics.snapshot()["T"] == DeletedTopic(200, {0: 10, 1: 21, 2: 22})
