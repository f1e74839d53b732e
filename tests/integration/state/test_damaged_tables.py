"""Every table under ``config/``, lost or damaged in every way: never taken for an empty one."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import pytest

from rocketpost.codec.codes import RequestCode as Code
from rocketpost.errors import StoreError
from rocketpost.server.clock import BrokerClock
from rocketpost.server.settings.broker import BrokerConfig
from rocketpost.server.startup import load_settings
from rocketpost.server.tables.broker_tables import Identity, load_tables_blocking
from rocketpost.store.files import RealFiles
from rocketpost.store.layout import Layout

from .harness import SETTINGS, Peer, broker, connected, copy_files

NEEDED: Final = {
    "auth.json",
    "brokerOverrides.json",
    "consumerOffset.json",
    "consumerOrderInfo.json",
    "messageRequestMode.json",
    "namedFilters.json",
    "subscriptionGroup.json",
}
"""Without them, and without a backup, a broker does not start."""

REBUILT: Final = {
    "autoCreatedGroups.json",
    "autoCreatedTopics.json",
    "consumerFilter.json",
    "delayOffset.json",
    "masterTimer.json",
    "topics.json",
}
"""Tables whose contents can be restored from elsewhere."""

ELSEWHERE: Final = {"producerState.json", "droppedTopics.json"}
"""Looked after by tests of their own."""


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    digits = [at for at, byte in enumerate(data[:-30]) if chr(byte).isdigit()] or [0]
    data[random.Random(str(path.name)).choice(digits)] ^= 1
    path.write_bytes(data)


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def delete(path: Path) -> None:
    path.unlink()


def scramble(path: Path) -> None:
    path.write_bytes(random.Random(0).randbytes(path.stat().st_size))


DAMAGES: Final = [flip, zero, cut, empty, delete, scramble]


async def change_everything(peer: Peer, number: int) -> None:
    """Change something in every table, and have it saved."""
    topic = f"T{number}"
    await peer.send(topic)
    await peer.succeed(Code.UPDATE_BROKER_CONFIG, b"defaultQueryMaxNum=%d\n" % (number + 20))
    group = msgspec.json.encode({"groupName": f"G{number}"})
    await peer.succeed(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, group)
    mode = {"topic": topic, "consumerGroup": "G", "mode": "POP", "popShareQueueNum": number}
    await peer.succeed(Code.SET_MESSAGE_REQUEST_MODE, msgspec.json.encode(mode))
    named = msgspec.json.encode({"name": f"f{number}", "expression": f"a > {number}"})
    await peer.succeed(Code.PUT_NAMED_FILTER, named)
    await peer.succeed(
        Code.UPDATE_CONSUMER_OFFSET, topic=topic, consumerGroup="G", queueId=0, commitOffset=1
    )
    await peer.succeed(Code.DELETE_TOPIC_IN_BROKER, topic=topic)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return asyncio.run(make_stores(tmp_path_factory.mktemp("tables")))


async def make_stores(root: Path) -> dict[str, Path]:
    """Make a store that was stopped in order, and one that was killed."""
    clean = root / "clean"
    settings = {"namedFilterEnable": "true"}
    async with broker(clean, **settings) as server, connected(server) as peer:
        await change_everything(peer, 0)
    async with broker(clean, **settings) as server, connected(server) as peer:
        await change_everything(peer, 1)
        killed = copy_files(clean, root / "killed")
    return {"clean": clean, "killed": killed}


async def load(root: Path) -> list[str]:
    """Load all tables as a start does; return what was repaired."""
    values = SETTINGS | {"storePathRootDir": str(root)}
    _, overrides = await load_settings(
        values, root=str(root), clock=BrokerClock(), files=RealFiles()
    )
    tables = load_tables_blocking(
        Layout(str(root)),
        RealFiles(),
        identity=Identity("c", "b", "127.0.0.1", 1),
        config=BrokerConfig(),
        clock=BrokerClock(),
        timed=True,
    )
    return [*tables.registry.repairs] + ([overrides.repair] if overrides.repair else [])


@pytest.mark.slow
@pytest.mark.parametrize("state", ["clean", "killed"])
@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_damaged_table_is_repaired_or_refused(
    stores: dict[str, Path],
    tmp_path: Path,
    state: str,
    damage: Callable[[Path], None],
) -> None:
    names = {path.name for path in (stores[state] / "config").glob("*.json")}
    assert names - ELSEWHERE == NEEDED | REBUILT
    for name in sorted(NEEDED | REBUILT):
        root = tmp_path / name
        shutil.copytree(stores[state] / "config", root / "config")
        path, backup = root / "config" / name, root / "config" / f"{name}.bak"
        if backup.exists():
            damage(path)
            [repair] = await load(root)
            assert name in repair
            assert "the previous version is used" in repair
            shutil.copy(stores[state] / "config" / name, path)
            damage(backup)
        damage(path)
        if name in NEEDED:
            with pytest.raises(StoreError, match=name):
                await load(root)
            path.write_bytes(b"{}")  # as the refusal says
            backup.unlink(missing_ok=True)
            assert await load(root) == []
        else:
            [repair] = await load(root)
            assert name in repair


@pytest.mark.slow
async def test_an_old_copy_is_used_as_it_is(stores: dict[str, Path], tmp_path: Path) -> None:
    for name in sorted(NEEDED | REBUILT):
        root = tmp_path / name
        shutil.copytree(stores["clean"] / "config", root / "config")
        backup = root / "config" / f"{name}.bak"
        if backup.exists():
            shutil.copy(backup, root / "config" / name)
        assert await load(root) == []


@pytest.mark.slow
async def test_lost_topics_are_restored_from_their_messages(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, connected(server) as peer:
        await peer.send("Plain")
        await peer.send("Delayed", "DELAY\x0118\x02")
        await peer.send("Timed", "TIMER_DELAY_SEC\x01100\x02")
        await peer.send("Half", "TRAN_MSG\x01true\x02PGROUP\x01P\x02", sys_flag=4)
    for path in (tmp_path / "config").glob("topics.json*"):
        path.unlink()
    async with broker(tmp_path) as server, connected(server) as peer:
        assert "topics.json is missing" in (await peer.status())["tableRepairs"]
        for topic in ("Plain", "Delayed", "Timed", "Half"):
            await peer.succeed(Code.GET_TOPIC_CONFIG, topic=topic)
        assert len(await peer.pull("Plain")) == 1
    async with broker(tmp_path) as server, connected(server) as peer:
        assert (await peer.status())["tableRepairs"] == ""


@pytest.mark.slow
async def test_the_loss_of_all_tables_is_reported(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, connected(server) as peer:
        assert (await peer.status())["tableRepairs"] == ""
        await peer.send("T")
    shutil.rmtree(tmp_path / "config")
    async with broker(tmp_path) as server, connected(server) as peer:
        assert "has no tables" in (await peer.status())["tableRepairs"]
        assert len(await peer.pull("T")) == 1


@pytest.mark.slow
async def test_lost_progress_of_delays_repeats_nothing(tmp_path: Path) -> None:
    async with broker(tmp_path, messageDelayLevel="1s 100s") as server, connected(server) as peer:
        await peer.send("T", "DELAY\x011\x02", body=b"soon")
        await peer.send("T", "DELAY\x012\x02", body=b"late")
        while not await peer.pull("T", hold_ms=2000):
            pass
    for path in (tmp_path / "config").glob("delayOffset.json*"):
        path.unlink()
    async with broker(tmp_path, messageDelayLevel="1s 100s") as server, connected(server) as peer:
        status = await peer.status()
        assert "delayOffset.json is missing" in status["tableRepairs"]
        await peer.send("T", "DELAY\x011\x02", body=b"new")
        while len(found := await peer.pull("T", hold_ms=2000)) < 2:
            pass
        assert [bytes(record.body) for record in found] == [b"soon", b"new"]
        assert (await peer.status())["delayedMessages"] == "1"
