"""Bytes that cannot be read through a map: the process lives, and what is lost is named.

To touch such bytes ends a process (SIGBUS), so each store here is opened in one of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = """
import errno, json, os, sys
from rocketpost.codec.record import pack_host
from rocketpost.store.config import StoreConfig
from rocketpost.store.draft import Draft
from rocketpost.store.files import DiskUsage, RealFiles
from rocketpost.store.message_store import MessageStore

root, way, lacks_call = sys.argv[1], sys.argv[2], sys.argv[3] == "old kernel"


class Clock:
    ms = 1_700_000_000_000

    def now_ms(self):
        return self.ms


class Files(RealFiles):
    def usage(self, path):
        return DiskUsage(100, 50, 50)

    def populate(self, view, offset, size):
        return False if lacks_call else super().populate(view, offset, size)


clock, host = Clock(), pack_host("10.0.0.1", 10911)
config = StoreConfig(
    root=root, segment_bytes=65536, queue_file_bytes=4000, message_bytes_max=8192,
    index_enabled=False, scrub_bytes_per_second=2**30,
)
store = MessageStore.open_blocking(config, clock=clock, files=Files(), on_durable=lambda _: None)
for number in range(150):
    body = b"%04d" % number + bytes(900)
    store.append(Draft("T", 0, 0, 0, 0, host, host, 0, 0, body, b""))
    store.confirm(store.commit())
    clock.ms += 1000
store.flush_blocking()
store.save_blocking()
clock.ms += 60_000
queue = store.queue("T", 0)
places = [queue.entry(offset)[:2] for offset in range(150)]
if way != "unmapped":
    store.segments.first.view()
os.truncate(store.segments.first.path, 20_480)

out = {"cut": [n for n, (p, size) in enumerate(places) if p + size > 20_480 and p < 65_536]}
if way in ("read", "unmapped"):
    out["served"] = []
    for first in range(0, 150, 30):
        units = [(n, *places[first + n]) for n in range(30)]
        out["served"] += [first + unit[0] for unit in store.select_sound("T", 0, first, units)]
elif way == "position":
    found = [store.record_at(position) for position, _ in places]
    out["served"] = [n for n, record in enumerate(found) if record is not None]
elif way == "time":
    out["served"] = [n for n in range(150) if queue.store_time(n) > 0]
    queue.offset_at(clock.ms - 100_000)
elif way == "scrub":
    store.integrity.scrub.run_round_blocking()
out["damage"] = [[d.begin, d.end, d.reason, d.topic, d.queue_offset] for d in store.damage.all()]
print(json.dumps(out))
"""


def run(root: Path, way: str, kernel: str = "new kernel") -> dict[str, Any]:
    command = [sys.executable, "-c", SCRIPT, str(root), way, kernel]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["new kernel", "old kernel"])
def test_a_reader_continues_after_unreadable_bytes(tmp_path: Path, kernel: str) -> None:
    found = run(tmp_path, "read", kernel)
    cut = found["cut"]
    assert 20 < len(cut) < 60
    # The file ends within a page: the rest of that page reads as zeros.
    assert found["served"] == [offset for offset in range(150) if offset not in cut]
    assert [each[4] for each in found["damage"]] == cut
    assert {each[3] for each in found["damage"]} == {"T"}
    assert "it cannot be read from its file" in {each[2] for each in found["damage"]}


@pytest.mark.slow
def test_a_file_that_was_cut_before_it_was_mapped_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    found = run(tmp_path, "unmapped")
    assert found["served"] == [offset for offset in range(150) if offset not in found["cut"]]
    assert [each[4] for each in found["damage"]] == found["cut"]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["position", "time"])
def test_an_unreadable_record_is_not_found(tmp_path: Path, way: str) -> None:
    found = run(tmp_path, way)
    readable = {offset for offset in range(150) if offset not in found["cut"]}
    assert readable <= set(found["served"])
    # Of the record that the cut goes through, the store time is still there.
    assert len(set(found["served"]) - readable) <= 1


@pytest.mark.slow
def test_the_scrub_names_what_was_cut_off(tmp_path: Path) -> None:
    found = run(tmp_path, "scrub")
    assert sum(end - begin for begin, end, *_ in found["damage"]) >= 65_536 - 20_480
    assert any("cut short" in each[2] for each in found["damage"])
