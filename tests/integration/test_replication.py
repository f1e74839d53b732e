"""A master and its slaves: the log flows, goes on after every loss, or it is said why not."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import threading
from collections import Counter
from pathlib import Path

import pytest

from rocketpost.codec.codes import RequestCode as Code
from rocketpost.codec.codes import ResponseCode
from rocketpost.codec.ha_frames import encode_report
from rocketpost.server.replication import slave as slave_module
from rocketpost.server.term import LeaderTerm
from rocketpost.testing.process import free_port

from .replicas import (
    QUICK,
    follower,
    leader,
    log_of,
    name_server,
    pair,
    slave_of,
    until_copied,
    until_following,
    until_refused,
)
from .settings.harness import Peer, broker, peer_at

MIB = 1024 * 1024
SMALL: dict[str, object] = {"mappedFileSizeCommitLog": MIB, "maxMessageSize": 500_000}
LONG_LIVED = ("Feature", "Term", "Link", "Stream", "Writer", "Lane", "Log", "Store", "Follower")
"""The ends of names of classes whose objects live as long as a term, a connection or a store."""


async def fill(peer: Peer, count: int, *, size: int = 1000, topic: str = "T") -> None:
    body = b"m" * size
    for at in range(count):
        answer = await peer.send(topic, body, default_queues=4, queue_id=at % 4)
        assert answer.code == ResponseCode.SUCCESS, answer.remark


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_a_slave_gets_the_whole_log_and_then_every_message(
    tmp_path: Path, flush: str
) -> None:
    settings: dict[str, object] = {"flushDiskType": flush} | SMALL
    async with (
        name_server(tmp_path) as names,
        broker(tmp_path / "m", namesrvAddr=names, **settings) as master,
    ):
        await fill(master, 12, size=300_000)  # several segments, with fillers between them
        async with slave_of(names, tmp_path / "s", **settings) as slave:
            await until_following(slave)
            await fill(master, 20)
            await until_copied(master, slave)
            assert log_of(slave.server) == log_of(master.server)
            ours, copies = master.server._context.store, slave.server._context.store
            assert ours.written_position > 3 * MIB
            for queue in ours.queues:
                copy = copies.queue(queue.topic, queue.queue_id)
                assert copy is not None
                assert (copy.first, copy.end) == (queue.first, queue.end)


async def test_a_slave_follows_again_after_every_restart(tmp_path: Path) -> None:
    async with (
        name_server(tmp_path) as names,
        broker(tmp_path / "m", namesrvAddr=names, **QUICK) as master,
    ):
        for _ in range(3):
            await fill(master, 5)
            async with slave_of(names, tmp_path / "s") as slave:
                await fill(master, 5)
                await until_copied(master, slave)
                assert log_of(slave.server) == log_of(master.server)


async def test_a_slave_finds_its_master_again_when_that_has_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slave_module, "BACKOFF_SECONDS", 0.1)
    async with name_server(tmp_path) as names:
        settings: dict[str, object] = {"namesrvAddr": names, **QUICK}
        async with slave_of(names, tmp_path / "s") as slave:
            for _ in range(2):
                async with broker(tmp_path / "m", **settings) as master:  # another port each time
                    await fill(master, 5)
                    await until_copied(master, slave)
                    assert log_of(slave.server) == log_of(master.server)


async def test_haMasterAddress_is_enough(tmp_path: Path) -> None:
    async with broker(tmp_path / "m", **QUICK) as master:
        await fill(master, 5)
        where = leader(master).slaves.ha_address
        settings: dict[str, object] = {"haMasterAddress": where, "brokerRole": "SLAVE"}
        async with broker(tmp_path / "s", brokerId=1, **settings, **QUICK) as slave:
            await until_following(slave)
            await fill(master, 5)
            await until_copied(master, slave)
            assert log_of(slave.server) == log_of(master.server)
            (replica,) = leader(master).slaves.status().replicas
            assert replica.broker_id is None  # nobody could introduce it


async def test_each_slave_is_known_by_its_id(tmp_path: Path) -> None:
    async with pair(tmp_path) as (master, first):
        async with slave_of(master.server.name_servers, tmp_path / "second", broker_id=7) as second:
            await fill(master, 5)
            await until_copied(master, first)
            await until_copied(master, second, replicas=2)
            replicas = leader(master).slaves.status().replicas
            assert sorted(each.broker_id or 0 for each in replicas) == [1, 7]
            assert all(each.is_in_sync and not each.problem for each in replicas)
            assert leader(master).slaves.acks.position_of(2) == len(log_of(master.server))
        async with asyncio.timeout(15):
            while len(leader(master).slaves.status().replicas) > 1:
                await asyncio.sleep(0.005)
        assert leader(master).slaves.acks.position_of(2) == 0


async def test_brokerStatus_shows_both_sides(tmp_path: Path) -> None:
    async with pair(tmp_path, slave={"slaveReadEnable": "true"}) as (master, slave):
        await fill(master, 5)
        await until_copied(master, slave)
        end = len(log_of(master.server))
        values = leader(master).features.runtime_values()
        assert values["brokerRole"] == "ASYNC_MASTER"
        assert values["haAddress"] == leader(master).slaves.ha_address
        assert values["slavesInSync"] == "1"
        assert f"in sync, has {end}, 0 behind" in values["slaves"]
        values = follower(slave).features.runtime_values()
        assert values["brokerRole"] == "SLAVE"
        assert values["masterAddress"] == master.server.address
        assert values["masterHaAddress"] == leader(master).slaves.ha_address
        assert (values["followsMaster"], values["followProblem"]) == ("true", "")
        assert values["replicatedPosition"] == values["replicatedWritten"] == str(end)
        assert int(values["masterHeardTimestamp"]) > 0


# Slaves that can never follow.


async def test_other_sizes_of_segments_are_refused(tmp_path: Path) -> None:
    async with (
        name_server(tmp_path) as names,
        broker(tmp_path / "m", namesrvAddr=names) as master,
        slave_of(names, tmp_path / "s", mappedFileSizeCommitLog=2 * MIB) as slave,
    ):
        await fill(master, 1)
        problem = await until_refused(slave)
        assert (
            "mappedFileSizeCommitLog is 2097152 at the slave and 4194304 at the master" in problem
        )
        (replica,) = [each for each in leader(master).slaves.status().replicas if each.problem]
        assert replica.problem == problem
        assert problem in leader(master).slaves.runtime_values()["slaves"]
        assert follower(slave).features.runtime_values()["followProblem"] == problem


async def test_a_slave_that_is_ahead_is_refused(tmp_path: Path) -> None:
    async with name_server(tmp_path) as names:
        settings: dict[str, object] = {"namesrvAddr": names}
        async with broker(tmp_path / "s", **settings) as own:
            await fill(own, 5)
        async with (
            broker(tmp_path / "m", **settings),
            slave_of(names, tmp_path / "s") as slave,
        ):
            assert "the slave has messages that the master lacks" in await until_refused(slave)


async def test_a_slave_with_other_bytes_is_refused_and_keeps_them(tmp_path: Path) -> None:
    async with name_server(tmp_path) as names:
        settings: dict[str, object] = {"namesrvAddr": names}
        async with broker(tmp_path / "s", **settings) as own:
            await fill(own, 3)
            before = log_of(own.server)
        async with broker(tmp_path / "m", **settings) as master:
            await fill(master, 10)
            async with slave_of(names, tmp_path / "s") as slave:
                assert "diverged" in await until_refused(slave)
                assert log_of(slave.server) == before


async def test_a_slave_behind_deleted_messages_is_refused(tmp_path: Path) -> None:
    async with name_server(tmp_path) as names:
        settings: dict[str, object] = {"namesrvAddr": names} | SMALL
        async with broker(tmp_path / "m", **settings) as master:
            await fill(master, 3)
            async with slave_of(names, tmp_path / "s", **SMALL) as slave:
                await until_copied(master, slave)
            await fill(master, 10, size=300_000)
            segments = master.server._context.store.segments
            first = segments.first
            assert first is not None
            segments.remove(first)
            async with slave_of(names, tmp_path / "s", **SMALL) as slave:
                assert "the master has deleted everything before" in await until_refused(slave)


async def test_a_slave_of_a_damaged_master_can_begin_with_the_newest_file(tmp_path: Path) -> None:
    async with name_server(tmp_path) as names:
        settings: dict[str, object] = {"namesrvAddr": names} | SMALL
        async with broker(tmp_path / "m", **settings) as master:
            await fill(master, 8, size=300_000)
            newest = master.server._context.store.segments.last
            assert newest is not None
            start = newest.start
        (oldest, *_) = sorted((tmp_path / "m" / "store" / "commitlog").glob("0*"))
        damaged = bytearray(oldest.read_bytes())
        damaged[damaged.index(b"mmm") + 1000] ^= 1
        oldest.write_bytes(damaged)
        async with broker(tmp_path / "m", **settings) as master:
            async with slave_of(names, tmp_path / "s", **SMALL) as slave:
                assert "the record at 0 is refused" in await until_refused(slave)
            from_last = SMALL | {"syncFromLastFile": "true"}
            async with slave_of(names, tmp_path / "empty", **from_last) as slave:
                await until_copied(master, slave)
                assert slave.server._context.store.first_position == start > 0
                await fill(master, 4)
                await until_copied(master, slave)


async def test_a_refused_slave_follows_once_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slave_module, "BACKOFF_SECONDS", 0.1)
    async with name_server(tmp_path) as names:
        async with broker(tmp_path / "old", namesrvAddr=names) as old:
            await fill(old, 5)
            async with slave_of(names, tmp_path / "s") as slave:
                await until_copied(old, slave)
        async with slave_of(names, tmp_path / "s") as slave:
            async with broker(tmp_path / "new", namesrvAddr=names):  # an empty store
                await until_refused(slave)
            async with broker(tmp_path / "old", namesrvAddr=names) as old:
                await fill(old, 5)
                await until_copied(old, slave)
                assert follower(slave).stream.status().problem == ""


# Strange peers.


async def test_a_stranger_at_the_HA_port_gets_frames_by_the_protocol(tmp_path: Path) -> None:
    async with broker(tmp_path, **QUICK) as master:
        await fill(master, 3)
        log = log_of(master.server)
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", leader(master).slaves._listener.port
        )
        writer.write(encode_report(0))
        head = await reader.readexactly(12)
        assert head == (0).to_bytes(8, "big") + len(log).to_bytes(4, "big")
        assert await reader.readexactly(len(log)) == log
        assert await reader.readexactly(12) == len(log).to_bytes(8, "big") + bytes(4)
        writer.write((-5).to_bytes(8, "big", signed=True))
        assert await reader.read() == b""
        writer.close()
        assert (await master.send("T", b"x")).code == ResponseCode.SUCCESS


async def test_a_silent_connection_is_closed(tmp_path: Path) -> None:
    settings: dict[str, object] = {"haSendHeartbeatInterval": 50, "haHousekeepingInterval": 200}
    async with broker(tmp_path, **settings) as master:
        port = leader(master).slaves._listener.port
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b""  # it never told where to begin
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(encode_report(0))
        assert len(await reader.read()) >= 12  # heartbeats until it is given up
        writer.close()
        assert not leader(master).slaves.status().replicas


async def test_a_slave_gives_up_a_silent_master(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        settings: dict[str, object] = {
            "brokerRole": "SLAVE",
            "brokerId": 1,
            "haMasterAddress": f"127.0.0.1:{mute.getsockname()[1]}",
            "haSendHeartbeatInterval": 50,
            "haHousekeepingInterval": 200,
        }
        async with broker(tmp_path, **settings) as slave:
            assert "the master was silent for 200 ms" in await until_refused(slave)


# Settings and roles.


async def test_the_announced_HA_address_is_the_true_one(tmp_path: Path) -> None:
    async with pair(tmp_path, master={"brokerIP2": "127.0.0.1"}) as (master, slave):
        assert follower(slave).master.ha == leader(master).slaves.ha_address
        port = leader(master).slaves._listener.port
        assert leader(master).slaves.ha_address == f"127.0.0.1:{port}"
        assert port != master.server.port


async def test_a_taken_default_port_leaves_a_master_without_slaves(tmp_path: Path) -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port + 1)):
        async with broker(tmp_path, listenPort=port) as master:
            assert leader(master).slaves.ha_address == ""
            assert (await master.send("T", b"x")).code == ResponseCode.SUCCESS
        with pytest.raises(Exception, match="Set haListenPort to a free port"):
            async with broker(tmp_path, listenPort=port, brokerRole="SYNC_MASTER"):
                pass


async def test_a_master_tells_RocketMQs_slave_its_addresses_only(tmp_path: Path) -> None:
    async with broker(tmp_path) as master:
        answer = await master.ok(Code.EXCHANGE_BROKER_HA_INFO)
        assert answer.fields == {
            "masterHaAddress": leader(master).slaves.ha_address,
            "masterFlushOffset": "0",
            "masterAddress": master.server.address,
        }


async def test_a_master_can_tell_a_slave_where_it_is(tmp_path: Path) -> None:
    async with (
        broker(tmp_path / "m", **QUICK) as master,
        broker(tmp_path / "s", brokerRole="SLAVE", brokerId=1, **QUICK) as slave,
    ):
        await fill(master, 3)
        where = {
            "masterHaAddress": leader(master).slaves.ha_address,
            "masterAddress": master.server.address,
            "masterFlushOffset": 0,
        }
        assert (await slave.ok(Code.EXCHANGE_BROKER_HA_INFO, **where)).fields == {}
        await until_copied(master, slave)


async def test_changes_of_role_leave_nothing_behind(tmp_path: Path) -> None:
    async with pair(tmp_path) as (master, slave):
        kept: list[Counter[str]] = []
        for _ in range(3):
            await fill(master, 5)
            await until_copied(master, slave)
            await master.server.become_follower(2)
            await master.server.become_leader()
            assert isinstance(master.server._term, LeaderTerm)
            await fill(master, 1)
            await until_copied(master, slave)
            kept.append(what_is_kept(tmp_path))
        for name in ("MasterFeature", "SlaveFeature", "SlaveLink", "MasterStream"):
            assert kept[-1][name] == 1, name
        assert kept[-1] == kept[0], (kept[-1] - kept[0], kept[0] - kept[-1])


def what_is_kept(folder: Path) -> Counter[str]:
    """Return the number of objects, by class, and the threads and open files of all brokers.

    A leader starts the thread of its timer, and opens the timer's log, when it first needs them. So
    these are not counted unless there are more than one; the other broker is a slave.
    """
    gc.collect()
    found = Counter(
        type(each).__name__
        for each in gc.get_objects()
        if str(type(each).__module__).startswith(("rocketpost.server.", "rocketpost.store."))
    )
    kept = Counter({name: count for name, count in found.items() if name.endswith(LONG_LIVED)})
    kept.update(
        thread.name for thread in threading.enumerate() if not thread.name.startswith("asyncio")
    )
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # it was that of the listing
            if (target := link.readlink()).is_relative_to(folder):
                kept[str(target.relative_to(folder))] += 1
    for name in list(kept):
        if kept[name] == 1 and ("timerlog" in name or name.startswith("timer_")):
            del kept[name]
    return kept


async def test_a_new_topic_has_a_route_even_if_no_slave_has_its_first_message(
    tmp_path: Path,
) -> None:
    async with name_server(tmp_path) as names:
        settings: dict[str, object] = {"namesrvAddr": names, "brokerRole": "SYNC_MASTER"}
        async with broker(tmp_path / "m", **settings) as master:
            host, _, port = names.partition(":")
            async with peer_at(host, int(port)) as name_peer:
                for topic in ("First", "Second"):
                    answer = await master.send(topic, b"x")
                    assert answer.code == ResponseCode.SLAVE_NOT_AVAILABLE
                    await name_peer.ok(Code.GET_ROUTEINFO_BY_TOPIC, topic=topic)
