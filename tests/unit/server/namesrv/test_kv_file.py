"""The key-value file: seen only once it is on disk, and never half."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rocketpost.codec.faults import ServerError, SystemBusy
from rocketpost.errors import ConfigError, StoreError
from rocketpost.server.namesrv import kv_file
from rocketpost.server.namesrv.kv_file import KvFile
from rocketpost.store.files import RealFiles


class FullDisk(RealFiles):
    def fdatasync(self, fd: int) -> None:
        raise OSError(28, "No space left on device")


class Forbidden(RealFiles):
    def open(self, path: str, *, write: bool = False, create: bool = False) -> int:
        raise PermissionError(13, "Permission denied")


async def test_a_change_is_there_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "namesrv" / "kvConfig.json"
    first = KvFile(str(path))
    first.load_blocking()
    await first.change(lambda kv: kv.put("ORDER_TOPIC_CONFIG", "TopicA", "broker-a:4"))
    assert path.read_bytes() == b'{"configTable":{"ORDER_TOPIC_CONFIG":{"TopicA":"broker-a:4"}}}'
    second = KvFile(str(path))
    second.load_blocking()
    assert second.current.get("ORDER_TOPIC_CONFIG", "TopicA") == "broker-a:4"


async def test_changes_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    file = KvFile(str(tmp_path / "kv.json"))

    async def put(number: int) -> None:
        await file.change(lambda kv: kv.put("n", str(number), "v"))

    await asyncio.gather(*map(put, range(20)))
    again = KvFile(str(tmp_path / "kv.json"))
    again.load_blocking()
    assert len(again.current.namespace("n") or ()) == 20


async def test_a_value_that_cannot_be_saved_is_not_shown(tmp_path: Path) -> None:
    file = KvFile(str(tmp_path / "kv.json"), files=FullDisk())
    with pytest.raises(ServerError, match="No space left"):
        await file.change(lambda kv: kv.put("n", "k", "v"))
    assert file.current.get("n", "k") is None


async def test_nothing_is_written_when_nothing_changes(tmp_path: Path) -> None:
    file = KvFile(str(tmp_path / "kv.json"))
    await file.change(lambda kv: kv.delete("n", "k"))
    assert not (tmp_path / "kv.json").exists()


async def test_a_damaged_file_stops_the_start(tmp_path: Path) -> None:
    path = tmp_path / "kv.json"
    path.write_text('{"configTable":')
    with pytest.raises(StoreError, match=r"kv\.json"):
        KvFile(str(path)).load_blocking()


async def test_an_unreadable_file_stops_the_start(tmp_path: Path) -> None:
    path = tmp_path / "kv.json"
    path.write_text("{}")
    with pytest.raises(ConfigError, match="kvConfigPath"):
        KvFile(str(path), files=Forbidden()).load_blocking()


async def test_without_a_path_the_table_lives_in_memory() -> None:
    file = KvFile(None)
    file.load_blocking()
    await file.change(lambda kv: kv.put("n", "k", "v"))
    assert file.current.get("n", "k") == "v"


async def test_waiting_changes_are_bounded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kv_file, "WAITING_MAX", 2)
    file = KvFile(str(tmp_path / "kv.json"))

    async def put(key: str) -> None:
        await file.change(lambda kv: kv.put("n", key, "v"))

    results = await asyncio.gather(put("a"), put("b"), put("c"), return_exceptions=True)
    assert [type(each) for each in results] == [type(None), type(None), SystemBusy]
    await file.settle()
    assert sorted(file.current.namespace("n") or ()) == ["a", "b"]
