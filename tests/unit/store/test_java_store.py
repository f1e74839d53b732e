"""Stores that Apache's broker wrote, opened by ours."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rocketpost.codec.record import decode_record
from rocketpost.errors import StoreError
from rocketpost.kernel.hashing import string_hash
from rocketpost.store.message_store import MessageStore
from rocketpost.store.queue.files import ENTRY

from .conftest import Opener, draft

SIZES = {
    "segment_bytes": 8192,
    "message_bytes_max": 4096,
    "queue_file_bytes": 400,
    "index_slot_count": 20,
    "index_entry_count": 60,
}
GOLDEN = Path(__file__).parents[2] / "golden" / "__init__.py"


def _golden() -> ModuleType:
    spec = importlib.util.spec_from_file_location("golden", GOLDEN)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["golden"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(params=["store-clean", "store-killed"])
def manifest(request: pytest.FixtureRequest, opener: Opener) -> dict[str, Any]:
    found: dict[str, Any] = _golden().restore_store(request.param, opener.root)
    return found


def check(store: MessageStore, manifest: dict[str, Any]) -> None:
    """Compare the topic ``Orders`` with what a Java client pulled from it."""
    seen = 0
    for queue in store.queues_of("Orders"):
        units = queue.read(queue.first, queue.end - queue.first)
        for position, size, tags_code in ENTRY.iter_unpack(units):
            view = store.view(position, size)
            assert view is not None
            record = decode_record(view)
            properties = record.properties
            wanted = next(
                message
                for message in manifest["messages"]
                if message["queueId"] == queue.queue_id
                and message["queueOffset"] == record.queue_offset
            )
            assert wanted["commitLogOffset"] == position
            assert wanted["storeSize"] == size
            assert (wanted.get("tags"), wanted.get("keys")) == (
                properties.get("TAGS"), properties.get("KEYS"),
            )  # fmt: skip
            assert tags_code == string_hash(properties.get("TAGS", ""))
            for key in properties.get("KEYS", "").split():
                found = store.find("Orders", key, count_max=99, begin_ms=0, end_ms=2**62)
                assert position in found
            seen += 1
    assert seen == len(manifest["messages"])


def test_a_store_of_java_opens_with_every_message(opener: Opener, manifest: dict[str, Any]) -> None:
    store = opener(**SIZES)
    check(store, manifest)
    last = max(message["commitLogOffset"] for message in manifest["messages"])
    assert store.end_position > last
    opener.crash(store)
    check(opener(**SIZES), manifest)


def test_its_queues_and_index_can_be_rebuilt(opener: Opener, manifest: dict[str, Any]) -> None:
    entries: dict[str, bytes] = {}
    for path in sorted((opener.root / "consumequeue").rglob("0*")):
        if path.is_dir():
            continue
        entries[str(path)] = path.read_bytes()
    shutil.rmtree(opener.root / "consumequeue")
    shutil.rmtree(opener.root / "index")
    store = opener(**SIZES)
    check(store, manifest)
    store.close_blocking()
    for name, data in entries.items():
        assert Path(name).read_bytes() == data, name


def test_it_continues_where_java_stopped(opener: Opener, manifest: dict[str, Any]) -> None:
    store = opener(**SIZES)
    ends = {queue.queue_id: queue.end for queue in store.queues_of("Orders")}
    for queue_id, end in ends.items():
        assert store.append(draft(topic="Orders", queue_id=queue_id)).queue_offset == end
    store.confirm(store.commit())
    store.close_blocking()
    again = opener(**SIZES)
    assert {queue.queue_id: queue.end - 1 for queue in again.queues_of("Orders")} == ends


def test_a_missing_last_segment_is_noticed(opener: Opener, manifest: dict[str, Any]) -> None:
    """The queues lead behind the end of the log."""
    (opener.root / "checkpoint").write_bytes(bytes(4096))
    newest = max(message["commitLogOffset"] for message in manifest["messages"])
    for path in (opener.root / "commitlog").iterdir():
        if path.is_file() and int(path.name) > newest - 2 * SIZES["segment_bytes"]:
            path.unlink()
    with pytest.raises(StoreError, match=r"lacks 0000.*--accept-missing-log"):
        opener(**SIZES)
    store = opener(accept_missing=True, **SIZES)
    for queue in store.queues_of("Orders"):
        offsets = [m["queueOffset"] for m in manifest["messages"] if m["queueId"] == queue.queue_id]
        assert queue.next_offset > max(offsets)
    assert store.end_position > newest
    opener.crash(store)
    opener(**SIZES)


def test_later_use_by_a_java_broker_is_detected(opener: Opener, manifest: dict[str, Any]) -> None:
    store = opener(**SIZES)
    store.close_blocking()
    path = opener.root / "checkpoint"
    data = bytearray(path.read_bytes())
    data[7] ^= 1  # Java has flushed a message since
    data[15] ^= 1
    path.write_bytes(data)
    check(opener(**SIZES), manifest)
