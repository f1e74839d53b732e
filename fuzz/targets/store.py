"""A store directory in which somebody changed bytes, names and sizes.

It opens and serves what is sound, or says in a ``StoreError`` why it does not. It never hangs, and
never shows a message that was not stored so.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from fuzz.finding import Find, watched
from fuzz.json_shapes import body
from fuzz.supply import Supply
from rocketpost.codec.record import pack_host
from rocketpost.errors import RocketpostError
from rocketpost.server.settings.broker import broker_settings
from rocketpost.server.tables.broker_tables import Identity, load_tables_blocking
from rocketpost.store.config import StoreConfig
from rocketpost.store.draft import Draft
from rocketpost.store.files import RealFiles
from rocketpost.store.message_store import MessageStore

_HOST = pack_host("10.0.0.1", 10911)
_TABLES = ("topics", "subscriptionGroup", "consumerOffset", "droppedTopics", "brokerOverrides")
_SHAPES = ("topic table", "group table", "offset table", "dropped", "overrides")
_VALUES = (
    b"\x00" * 8,
    b"\xff" * 8,
    b"\x7f" + b"\xff" * 7,
    b"\x80" + b"\x00" * 7,
    b"\x00\x00\x00\x01",
)


class _Clock:
    def now_ms(self) -> int:
        return 1_700_000_000_000


class Target:
    """Copies a good store, spoils the copy, opens it."""

    def __init__(self) -> None:
        self._watching = watched()
        self._watch = self._watching.__enter__()
        shared = "/dev/shm" if os.path.isdir("/dev/shm") else None
        self._home = Path(tempfile.mkdtemp(prefix="rocketpost-fuzz-", dir=shared))
        self._good = self._home / "good"
        self._bodies = {f"message {number}".encode() for number in range(60)}
        self._make()
        self._files = sorted(
            str(path.relative_to(self._good)) for path in self._good.rglob("*") if path.is_file()
        )

    def check(self, data: bytes) -> None:
        """Spoil a copy, open it, read everything, append, close, open again."""
        supply = Supply(data)
        copy = self._home / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self._good, copy, copy_function=shutil.copyfile)
        self._spoil(copy, supply)
        self._watch.clear()
        try:
            for _ in range(2):
                self._use(copy)
        except RocketpostError:
            pass
        self._watch.judge()
        if sorted(os.listdir(self._home)) != ["copy", "good"]:
            raise Find(f"files beside the store: {os.listdir(self._home)}")

    def close(self) -> None:
        """Remove the directories."""
        shutil.rmtree(self._home, ignore_errors=True)
        self._watching.__exit__(None, None, None)

    def _config(self, root: Path) -> StoreConfig:
        return StoreConfig(
            root=str(root), segment_bytes=4096, queue_file_bytes=200, message_bytes_max=2048,
            index_slot_count=16, index_entry_count=32, flush_interval_ms=60_000,
            queue_flush_interval_ms=60_000,
        )  # fmt: skip

    def _open(self, root: Path) -> MessageStore:
        return MessageStore.open_blocking(
            self._config(root), clock=_Clock(), on_durable=lambda position: None
        )

    def _make(self) -> None:
        store = self._open(self._good)
        for number, content in enumerate(sorted(self._bodies)):
            topic = "TopicA" if number % 3 else "%RETRY%GroupA"
            store.append(_draft(topic, number % 2, content))
            store.commit()
        store.close_blocking()
        config = self._good / "config"
        config.mkdir(exist_ok=True)
        for name, shape in zip(_TABLES, _SHAPES, strict=True):
            (config / f"{name}.json").write_bytes(body(Supply(b""), (), (shape,)))
        (config / "droppedTopics.json").unlink()
        (self._good / "abort").touch()

    def _spoil(self, copy: Path, supply: Supply) -> None:
        changes: tuple[Callable[[Path, Supply], None], ...] = (
            _overwrite, _overwrite, _resize, _remove, _edit_record, _edit_record, self._add,
            self._rewrite_table,
        )  # fmt: skip
        for _ in range(supply.number(1, 3)):
            path = copy / supply.pick(self._files)
            if path.exists():
                supply.pick(changes)(path, supply)

    def _add(self, path: Path, supply: Supply) -> None:
        root = self._home / "copy"
        name = supply.pick(
            (
                "commitlog/00000000000000008192", "commitlog/x", "commitlog/00000000000099999999",
                "consumequeue/TopicB/0/00000000000000000000", "consumequeue/TopicA/99999/x",
                "consumequeue/TopicA/0/00000000000000000020", "consumequeue/TopicA/7",
                "consumequeue/a b/0/00000000000000000000", "consumequeue/TopicA/²/0",
                "index/20260101000000000", "index/x", "dropped/1-5-TopicA/0/0",
                "dropped/9999999999999999999999-1-x", "dropped/²-1-x/0", "config/x.json",
                "commitlog/0000000000000000٣", "consumequeue/TopicA/0/0000000000000000000٣",
                "consumequeue/TopicA/99999999999999999999/00000000000000000000",
            )
        )  # fmt: skip
        target = root / name
        if not target.parent.exists() or target.parent.is_dir():
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():
                target.write_bytes(supply.raw(60) * supply.number(0, 70))

    def _rewrite_table(self, path: Path, supply: Supply) -> None:
        at = supply.number(0, len(_TABLES) - 1)
        data = body(supply, ("TopicA", "GroupA"), (_SHAPES[at],))
        suffix = ".bak" if supply.chance(4) else ""
        table = self._home / "copy" / "config" / f"{_TABLES[at]}.json{suffix}"
        if not table.is_dir():
            table.write_bytes(data)

    def _use(self, root: Path) -> None:
        store = self._open(root)
        try:
            broker, _ = broker_settings({"storePathRootDir": str(root)})
            identity = Identity(cluster="C", name="broker-a", ip="127.0.0.1", port=10911)
            load_tables_blocking(
                store.layout,
                RealFiles(),
                identity=identity,
                config=broker,
                clock=_Clock(),
                timed=True,
            )
            self._read(store)
            store.append(_draft("TopicA", 0, b"message 1"))
            store.commit()
            self._read(store)
            store.save_blocking()
        finally:
            store.close_blocking()

    def _read(self, store: MessageStore) -> None:
        for queue in list(store.queues):
            for offset in range(max(queue.first, queue.end - 100), queue.end):
                entry = queue.entry(offset)
                record = None if entry is None else store.record_at(entry[0])
                if record is not None and record.position != (entry or (0,))[0]:
                    raise Find("a record that lies elsewhere")
            queue.offset_at(1_700_000_000_000, upper=True)
            queue.offset_at(1_700_000_000_000, upper=False)
            queue.store_time(queue.first)
        for key in ("k", "x"):
            store.find("TopicA", key, count_max=64, begin_ms=0, end_ms=2**63 - 1)


def _draft(topic: str, queue_id: int, content: bytes) -> Draft:
    return Draft(
        topic, queue_id, 0, 0, 1_700_000_000_000, _HOST, _HOST, 0, 0, content,
        b"KEYS\x01k\x02", 0, ("k", content.decode()),
    )  # fmt: skip


def _overwrite(path: Path, supply: Supply) -> None:
    if path.is_dir():
        return
    data = bytearray(path.read_bytes())
    if not data:
        return
    used = len(data.rstrip(b"\0")) or len(data)
    at = supply.number(0, min(used + 16, len(data)) - 1)
    value = supply.raw(12) if supply.chance(2) else supply.pick(_VALUES)
    data[at : at + len(value)] = value
    path.write_bytes(bytes(data))


def _edit_record(path: Path, supply: Supply) -> None:
    """Change fields that no CRC covers, and have the log read again."""
    log = path
    while log.name != "copy":
        log = log.parent
    segment = log / "commitlog" / "00000000000000000000"
    if not segment.is_file():
        return
    data = segment.read_bytes()
    evil = supply.pick(
        (b"../../", b"/tmp/x", b"a/b/cd", b"\xff" * 6, b"\0" * 6, b"......", b"../../")
    )
    if supply.chance(2):
        data = data.replace(b"TopicA", evil, supply.number(1, 9))
    else:
        at = data.find(b"\xda\xa3\x20\xa7", supply.number(0, len(data) - 1))
        field, size = supply.pick(((8, 4), (16, 8), (24, 8), (32, 4), (36, 8), (52, 8), (0, 4)))
        if at >= 0:
            value = (supply.pick(_VALUES) * 2)[:size]
            data = data[: at + field] + value + data[at + field + size :]
    segment.write_bytes(data)
    if supply.chance(2):
        shutil.rmtree(log / "consumequeue", ignore_errors=True)
    if (log / "checkpoint").is_file():
        (log / "checkpoint").unlink()


def _resize(path: Path, supply: Supply) -> None:
    if path.is_dir():
        return
    size = path.stat().st_size
    os.truncate(path, supply.pick((0, 1, size - 1 if size else 0, size + 1, size // 2, size * 2)))


def _remove(path: Path, supply: Supply) -> None:
    if path.is_dir():
        return
    path.unlink()
    if supply.chance(3):
        path.mkdir()
