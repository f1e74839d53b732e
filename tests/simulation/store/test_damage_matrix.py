"""Every kind of file of a store, harmed in every way, after every kind of stop.

For each the outcome is stated below:

    intact    nothing is lost, and nothing had to be made again
    rebuilt   nothing is lost; what was harmed is made again from the commit log, or from a copy
    refused   the start is refused with a reason and what to do about it; who does that loses the
              harmed messages alone, and they are named
    named     the harmed messages alone are lost, and each is named
    on read   nobody looked at the harmed place: whoever reads it can tell that it is wrong

Whatever happens, no other message is lost or altered, and no queue offset and no position of the
log is given a second time.
"""

from __future__ import annotations

import copy
import functools
import logging
import random
from typing import NamedTuple

import pytest

from rocketpost.errors import StoreError
from rocketpost.kernel.hashing import string_hash
from rocketpost.kernel.record_scan import parse_record
from rocketpost.store.queue.check import QueueCheck
from rocketpost.store.queue.files import FILLER_SIZE
from rocketpost.store.queue.table import QueueTable
from rocketpost.store.recovery.losses import Losses
from rocketpost.store.recovery.missing import MissingLog
from rocketpost.store.recovery.recovery import Recovery
from rocketpost.testing.sim.disk import SimulatedDisk

from .world import World, small

HARMS = ["flipped", "zeroed", "cut", "deleted", "old", "random"]
STOPS = ["clean", "killed"]

INTACT, REBUILT, REFUSED, NAMED, ON_READ = "intact", "rebuilt", "refused", "named", "on read"
SAFE = {INTACT, REBUILT}
LOG = {INTACT, NAMED, ON_READ}

OUTCOMES: dict[str, dict[str, set[str]]] = {
    "newest segment": {
        # Bits that no check covers, like those of a host, change nothing that can be told.
        "flipped": LOG,
        "zeroed": {NAMED},
        "cut": {NAMED},
        "deleted": {REFUSED},
        "old": {NAMED},
        "random": {NAMED},
    },
    "sealed segment": {
        "flipped": LOG,
        "zeroed": {NAMED},
        "cut": {NAMED},
        "deleted": {REFUSED},
        "old": LOG,
        "random": {NAMED},
    },
    "first queue file": {
        "flipped": SAFE | {ON_READ},
        "zeroed": {REBUILT},
        "cut": {REBUILT},
        "deleted": {REBUILT},
        "old": SAFE,
        "random": {REBUILT},
    },
    "last queue file": {
        "flipped": SAFE | {ON_READ},
        "zeroed": SAFE,
        "cut": SAFE,
        "deleted": SAFE,
        "old": SAFE,
        "random": SAFE,
    },
    "first index file": {
        "flipped": SAFE | {ON_READ},
        "zeroed": {REBUILT},
        "cut": {REBUILT},
        "deleted": SAFE | {ON_READ},
        "old": SAFE | {ON_READ},
        "random": {REBUILT},
    },
    "last index file": {
        "flipped": SAFE | {ON_READ},
        "zeroed": SAFE,
        "cut": SAFE,
        "deleted": SAFE,
        "old": SAFE | {ON_READ},
        "random": SAFE,
    },
    **dict.fromkeys(
        ("index-progress", "checkpoint", "extent", "lock", "log lock", "abort", "damage"),
        dict.fromkeys(HARMS, SAFE),
    ),
    "deleted topics": dict.fromkeys(HARMS, SAFE),
    "copy of deleted topics": dict.fromkeys(HARMS, SAFE),
}


class Base(NamedTuple):
    """A stopped store, and its files as they were at some times before."""

    world: World
    old: list[dict[str, bytes]]


@functools.cache
def base(stop: str) -> Base:
    rng = random.Random(11)
    world = World(config=small())
    world.open()
    send(world, rng, 12)
    world.delete("topic1")
    send(world, rng, 12)
    # A message that is damaged already, so that there is a list of damage.
    victim = world.sent[-1]
    world.kill()
    body_at = victim.position % world.config.segment_bytes + 88
    world.disk.flip(segment(world, victim.position), body_at * 8)
    world.victims.add(victim.position)
    world.open()
    world.check()
    send(world, rng, 20)
    world.save()
    old = [contents(world.disk)]
    send(world, rng, 40)
    world.save()
    old.append(contents(world.disk))
    for _ in range(10):
        send(world, rng, 3)
        old.append(contents(world.disk))
    send(world, rng, 3)
    world.close() if stop == "clean" else world.kill()
    return Base(world, old)


def contents(disk: SimulatedDisk) -> dict[str, bytes]:
    return {path: disk.read_bytes(path) for path in disk.paths()}


def send(world: World, rng: random.Random, count: int) -> None:
    for _ in range(count):
        world.send(rng)
        world.flush()


def segment(world: World, position: int) -> str:
    return f"/store/commitlog/{position - position % world.config.segment_bytes:020d}"


def file_of(kind: str, world: World) -> str:
    paths = world.disk.paths()
    newest = max(message.position for message in world.sent)
    match kind:
        case "newest segment":
            return segment(world, newest)
        case "sealed segment":
            return segment(world, 0)
        case "first queue file" | "last queue file":
            files = [path for path in paths if path.startswith("/store/consumequeue/topic0/0/")]
            assert len(files) > 1
            return files[0 if kind.startswith("first") else -1]
        case "first index file" | "last index file":
            files = [path for path in paths if path.startswith("/store/index/")]
            assert len(files) > 1
            return files[0 if kind.startswith("first") else -1]
        case "log lock":
            return "/store/commitlog/allocating/lock"
        case "deleted topics":
            return "/store/config/droppedTopics.json"
        case "copy of deleted topics":
            return "/store/config/droppedTopics.json.bak"
        case "damage":
            return "/store/damage.json"
    return f"/store/{kind}"


def harm(disk: SimulatedDisk, path: str, how: str, old: list[dict[str, bytes]], seed: int) -> bool:
    """Harm a file; False if it cannot be harmed so."""
    rng = random.Random(f"{path} {how} {seed}")
    is_there = path in disk.paths()
    if how == "old":
        copies = [each[path] for each in old if path in each]
        if not copies:
            return False
        disk.put(path, copies[0] if seed == 0 else rng.choice(copies))
        return True
    if not is_there:
        return False
    data = disk.read_bytes(path)
    if not data:
        return False
    written = len(data.rstrip(b"\0")) or 1
    match how:
        case "flipped":
            disk.flip(path, rng.randrange(written * 8))
        case "zeroed":
            disk.zero(path, 0, len(data))
        case "cut":
            disk.cut_short(path, rng.randrange(1, written) if written > 1 else 0)
        case "deleted":
            disk.lose(path)
        case "random":
            disk.put(path, rng.randbytes(len(data)))
    return True


def run(kind: str, how: str, stop: str, seed: int, caplog: pytest.LogCaptureFixture) -> str | None:
    """Harm a copy of the base store, open it and check it.

    Returns:
        The outcome; None if the file cannot be harmed so.
    """
    made = base(stop)
    world = copy.copy(made.world)
    world.disk = made.world.disk.copy()
    world.sent = [copy.copy(message) for message in made.world.sent]
    world.victims = set(made.world.victims)
    path = file_of(kind, world)
    whole = contents(world.disk)
    if not harm(world.disk, path, how, made.old, seed):
        return None
    if "segment" in kind:
        world.victims |= harmed(world, path, whole[path])
    caplog.clear()
    is_refused = is_start_refused(world)
    if is_refused:
        world.open(accept_missing=True)
    wrong = check(world, kind)
    texts = [record.getMessage() for record in caplog.records]
    is_rebuilt = any("rebuilt" in text or "again" in text for text in texts)
    go_on(world)
    if is_refused:
        return REFUSED
    if wrong:
        return ON_READ
    lost = [m for m in made.world.sent if m.position in world.victims - made.world.victims]
    if any(not is_named(world, m.position) and not is_readable(world, m) for m in lost):
        return ON_READ
    if any(is_named(world, m.position) for m in lost):
        return NAMED
    return REBUILT if is_rebuilt else INTACT


def is_start_refused(world: World) -> bool:
    try:
        world.open()
    except StoreError as error:
        if "--accept-missing-log" not in str(error):
            raise
        return True
    return False


def harmed(world: World, path: str, whole: bytes) -> set[int]:
    """Return the positions of the messages whose bytes have changed."""
    start = int(path.rpartition("/")[2])
    there = path in world.disk.paths()
    now = world.disk.read_bytes(path).ljust(len(whole), b"\0") if there else b""
    return {
        message.position
        for message in world.sent
        if start <= message.position < start + len(whole)
        and now[message.position - start : message.end - start]
        != whole[message.position - start : message.end - start]
    }


def is_named(world: World, position: int) -> bool:
    return world.running.damage.find_covering(position) is not None


def is_readable(world: World, message: object) -> bool:
    position, end, body = message.position, message.end, message.body  # type: ignore[attr-defined]
    view = world.running.view(position, end - position)
    if view is None or parse_record(view, 0, position, True) is None:
        return False
    record = world.running.record_at(position)
    return record is not None and bytes(record.body) == body


def check(world: World, kind: str) -> int:
    """Check every message that was not harmed; returns how many entries readers must refuse."""
    store = world.running
    wrong = 0
    for message in world.sent:
        if message.is_gone:
            continue
        queue = store.queue(message.topic, message.queue_id)
        assert queue is not None, f"no queue of {message}"
        assert queue.next_offset > message.queue_offset, f"its offset is given again: {message}"
        assert store.end_position >= message.end, f"its position is given again: {message}"
        if message.position in world.victims:
            continue
        assert not world.is_named_lost(message), f"called lost: {message}"
        assert is_readable(world, message), f"lost: {message}"
        entry = queue.entry(message.queue_offset)
        assert entry is not None
        if entry != (message.position, message.end - message.position, string_hash("tag")):
            assert "queue" in kind, f"hidden: {message} by {entry}"
            wrong += 1
        found = store.find(message.topic, message.key, count_max=64, begin_ms=0, end_ms=2**62)
        if message.position not in found:
            assert "index" in kind, f"not in the index: {message}"
            wrong += 1
    for queue in store.queues:
        for offset in range(queue.first, queue.end):
            entry = queue.entry(offset)
            assert entry is not None
            assert entry[1] == FILLER_SIZE or entry[1] > 0 or "queue" in kind
    return wrong


def go_on(world: World) -> None:
    """Write more, stop in both ways, and find all that again."""
    rng = random.Random(3)
    before = len(world.sent)
    send(world, rng, 5)
    for stop in (world.kill, world.close):
        stop()
        world.open()
        for message in world.sent[before:]:
            assert is_readable(world, message)
            queue = world.running.queue(message.topic, message.queue_id)
            assert queue is not None
            entry = queue.entry(message.queue_offset)
            assert entry is not None
            assert entry[0] == message.position


def cases() -> list[tuple[str, str, str]]:
    return [(kind, how, stop) for kind in OUTCOMES for how in HARMS for stop in STOPS]


@pytest.mark.parametrize(("kind", "how", "stop"), cases())
def test_each_harm_has_its_outcome(
    kind: str, how: str, stop: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        outcome = run(kind, how, stop, 0, caplog)
    if outcome is None:
        assert kind in ("abort",), f"{kind} cannot be {how}"
        return
    assert outcome in OUTCOMES[kind][how], outcome


def test_harms_in_any_place(
    seed: int, rng: random.Random, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        kind, how, stop = rng.choice(cases())
        with caplog.at_level(logging.INFO):
            outcome = run(kind, how, stop, rng.randrange(1, 10**6), caplog)
        assert outcome is None or outcome in OUTCOMES[kind][how], (kind, how, stop, outcome)


class TestPlantedBugs:
    """The checks above find what they are for."""

    def is_caught(self, kind: str, how: str, caplog: pytest.LogCaptureFixture) -> bool:
        for seed in range(10):
            for stop in STOPS:
                try:
                    outcome = run(kind, how, stop, seed, caplog)
                except AssertionError:
                    return True
                if outcome not in OUTCOMES[kind][how]:
                    return True
        return False

    @pytest.mark.parametrize("how", ["flipped", "zeroed", "old", "random"])
    def test_cutting_the_log_at_the_first_bad_record(
        self, how: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert not self.is_caught("newest segment", how, caplog)
        monkeypatch.setattr(Recovery, "_pass", lambda *_: None)
        assert self.is_caught("newest segment", how, caplog)

    def test_reusing_the_offsets_of_unknown_records(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(Losses, "count_after", lambda *_: 0)
        assert self.is_caught("newest segment", "zeroed", caplog)

    def test_not_missing_a_first_queue_file(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(QueueTable, "start_sum", lambda *_: 0)
        assert self.is_caught("first queue file", "deleted", caplog)

    def test_not_missing_the_last_segment(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(MissingLog, "check", lambda *_, **__: [])
        assert self.is_caught("newest segment", "deleted", caplog)

    def test_trusting_every_entry_of_a_queue_file(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(QueueCheck, "looks_whole", lambda *_: True)
        assert self.is_caught("first queue file", "zeroed", caplog)
