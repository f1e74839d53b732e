"""A broker changes its role again and again under load, in one process.

Nothing that was acknowledged is lost, everybody who waits is answered, nothing is left behind.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rocketpost.codec.codes import RequestCode as Code
from rocketpost.codec.codes import ResponseCode
from rocketpost.codec.record import decode_records
from rocketpost.errors import StoreError
from rocketpost.server.broker import BrokerServer
from rocketpost.server.feature import Feature
from rocketpost.server.features import timer
from rocketpost.server.features.pull import PullFeature
from rocketpost.server.features.timer import TimerFeature
from rocketpost.server.follower_term import FollowerTerm
from rocketpost.server.namesrv.process import NameServer
from rocketpost.server.routes.follower_refusals import REFUSED
from rocketpost.server.settings.namesrv import NamesrvConfig

from .census import find_leaks, overlook_older_objects, take_census
from .flush_modes import FLUSH_MODES
from .load import QUEUES, load_on
from .settings.harness import Peer, broker, peer_at

MIB = 1024 * 1024


@contextlib.asynccontextmanager
async def drilled_broker(root: Path, **settings: object) -> AsyncIterator[Peer]:
    """Run a broker whose files do not grow in number."""
    sizes = {"mappedFileSizeCommitLog": 64 * MIB, "maxHashSlotNum": 1000, "maxIndexNum": 1_000_000}
    usual = {"timerWheelEnable": "true", "slaveReadEnable": "true", **sizes}
    async with broker(root, **usual | settings) as peer:
        for topic, queues in (("T", QUEUES), ("Silent", 1), ("Later", 1), ("Popped", 1)):
            await peer.topic(topic, readQueueNums=queues, writeQueueNums=queues)
        yield peer


async def drill(server: BrokerServer, changes: int) -> None:
    """Change the role so often under load, and check that nothing acknowledged is lost."""
    async with load_on(server) as load:
        for _ in range(changes // 2):
            await load.wait_for_sends(5)
            pops, pulls = load.pops_answered, load.waits_answered
            await server.become_follower(1)
            assert load.pops_answered > pops, "the pop that waited was not answered"
            assert load.waits_answered > pulls, "the pull that waited was not answered"
            await load.wait_for_refusals(2)
            await server.become_leader()
        await load.wait_for_sends(5)
    print(f"changes={changes} {load}")
    for queue_id, bodies in load.pulled.items():
        stored = {at: body for (queue, at), body in load.stored.items() if queue == queue_id}
        assert stored
        assert {at: bodies[at] for at in stored} == stored


async def leaks_of_drill(server: BrokerServer, changes: int) -> dict[str, int]:
    """Return what a drill leaves behind; the first one makes the files that stay.

    A follower is counted, so that nothing of a leader may be there.
    """
    with overlook_older_objects():
        await drill(server, 2)
        await server.become_follower(1)
        before = await take_census(server)
        await server.become_leader()
        await drill(server, changes)
        await server.become_follower(1)
        leaks = await find_leaks(server, before)
        await server.become_leader()
    return leaks


@pytest.mark.parametrize("flush", FLUSH_MODES)
async def test_twenty_changes_of_term(tmp_path: Path, flush: str) -> None:
    async with drilled_broker(tmp_path, flushDiskType=flush) as peer:
        assert not await leaks_of_drill(peer.server, 14)


@pytest.mark.long
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_two_hundred_changes_of_term(tmp_path: Path, flush: str) -> None:
    async with drilled_broker(tmp_path, flushDiskType=flush) as peer:
        assert not await leaks_of_drill(peer.server, 200)


async def leave_files_open(feature: TimerFeature) -> None:
    feature._thread.shutdown()


async def leave_a_task(feature: PullFeature) -> None:
    feature._leaked = asyncio.create_task(asyncio.sleep(3600), name="leaked")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("owner", "method", "leak", "found"),
    [
        (TimerFeature, "save", leave_files_open, "open "),
        (PullFeature, "open", leave_a_task, "task leaked"),
    ],
)
async def test_a_planted_leak_is_found(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    owner: type[Feature],
    method: str,
    leak: Callable[..., Awaitable[None]],
    found: str,
) -> None:
    async with drilled_broker(tmp_path) as peer:
        with monkeypatch.context() as planted:
            planted.setattr(owner, method, leak)
            left = await leaks_of_drill(peer.server, 4)
        assert any(name.startswith(found) for name in left), left


async def test_a_pull_that_is_not_answered_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with drilled_broker(tmp_path) as peer:
        monkeypatch.setattr(PullFeature, "close", Feature.close)
        with pytest.raises(AssertionError, match="the pull that waited was not answered"):
            await drill(peer.server, 4)


async def test_a_follower_serves_reads_and_refuses_writes_like_a_slave(tmp_path: Path) -> None:
    async with drilled_broker(tmp_path) as peer:
        await peer.send("T", b"first")
        await peer.server.become_follower(1)
        term = peer.server._term
        assert isinstance(term, FollowerTerm)
        assert [record.body for record in await peer.records("T")] == [b"first"]
        assert (await peer.pull("T", 5)).code == ResponseCode.PULL_NOT_FOUND
        term.master_presence.set_alive(True)
        assert (await peer.pull("T", 5)).code == ResponseCode.PULL_RETRY_IMMEDIATELY
        for code, (refusal, _) in REFUSED.items():
            answer = await peer.call(code, topic="T", consumerGroup="G", queueId=0)
            assert answer.code == refusal, Code(code).name
        assert (await peer.send("T")).remark == REFUSED[Code.SEND_MESSAGE][1]
        await peer.server.become_leader()
        assert (await peer.send("T", b"second")).code == ResponseCode.SUCCESS
        assert [record.body for record in await peer.records("T")] == [b"first", b"second"]


async def test_a_follower_refuses_pulls_unless_slaves_may_be_read(tmp_path: Path) -> None:
    async with drilled_broker(tmp_path, slaveReadEnable="false") as peer:
        await peer.send("T", b"first")
        assert (await peer.pull("T", 0)).code == ResponseCode.SUCCESS
        await peer.server.become_follower(1)
        refused = await peer.pull("T", 0)
        assert refused.code == ResponseCode.SYSTEM_BUSY
        assert (refused.remark or "").startswith("[REJECTREQUEST]system busy, start flow control")
        await peer.set(slaveReadEnable="true")
        assert (await peer.pull("T", 0)).code == ResponseCode.SUCCESS


async def test_a_follower_alone_corrects_offsets_if_offsetCheckInSlave_is_set(
    tmp_path: Path,
) -> None:
    async with drilled_broker(tmp_path, offsetCheckInSlave="true") as peer:
        await peer.send("T", b"first")
        await peer.server.become_follower(1)
        answer = await peer.pull("T", 5)
        assert answer.code == ResponseCode.PULL_OFFSET_MOVED
        assert answer.fields["nextBeginOffset"] == "1"
        await peer.set(offsetCheckInSlave="false")
        assert (await peer.pull("T", 5)).code == ResponseCode.PULL_NOT_FOUND


async def test_a_group_says_which_broker_serves_its_pulls(tmp_path: Path) -> None:
    async with drilled_broker(tmp_path) as peer:
        await peer.send("T", b"first")
        await peer.group("G", brokerId=2, whichBrokerWhenConsumeSlowly=3)
        assert (await peer.pull("T", 0)).fields["suggestWhichBrokerId"] == "2"
        [pulls] = [each for each in peer.server._term.features if isinstance(each, PullFeature)]
        pulls._reader.limits = pulls._reader.limits._replace(memory_bytes=0)  # all is old
        assert (await peer.pull("T", 0)).fields["suggestWhichBrokerId"] == "3"


async def test_held_pulls_at_a_follower_go_to_the_master_that_returns(tmp_path: Path) -> None:
    async with drilled_broker(tmp_path) as peer:
        await peer.server.become_follower(1)
        term = peer.server._term
        assert isinstance(term, FollowerTerm)
        waiting = asyncio.create_task(peer.pull("T", 0, hold_ms=30_000))
        await until_held(peer.server)
        term.master_presence.set_alive(True)
        answer = await waiting
        assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert answer.fields["suggestWhichBrokerId"] == "0"
        assert answer.fields["nextBeginOffset"] == "0"


@pytest.mark.parametrize("flush", FLUSH_MODES)
async def test_a_held_pull_at_a_follower_gets_the_masters_next_message(
    tmp_path: Path, flush: str
) -> None:
    async with (
        drilled_broker(tmp_path / "master") as master,
        drilled_broker(tmp_path / "slave", flushDiskType=flush) as slave,
    ):
        await slave.server.become_follower(1)
        term = slave.server._term
        assert isinstance(term, FollowerTerm)
        reported: list[int] = []
        term.log.on_advance = reported.append
        waiting = asyncio.create_task(slave.pull("T", 0, hold_ms=30_000))
        await until_held(slave.server)
        await master.send("T", b"copied")
        store = master.server._context.store
        log = store.view(0, store.end_position)
        assert log is not None
        term.log.append(0, log)
        assert [record.body for record in decode_records((await waiting).body)] == [b"copied"]
        assert reported == [store.end_position]
        await slave.server.become_leader()
        assert (await slave.send("T", b"own")).code == ResponseCode.SUCCESS
        assert [record.body for record in await slave.records("T")] == [b"copied", b"own"]


async def test_a_follower_knows_every_request_of_a_leader(tmp_path: Path) -> None:
    async with drilled_broker(tmp_path) as peer:
        of_leader = set(peer.server._dispatcher.routes)
        await peer.server.become_follower(1)
        assert set(peer.server._dispatcher.routes) == of_leader


async def test_name_servers_see_each_role(tmp_path: Path) -> None:
    config = NamesrvConfig(
        bind_address="127.0.0.1", listen_port=0, kv_config_path=str(tmp_path / "kv.json")
    )
    name_server = NameServer(config)
    await name_server.start()
    try:
        async with drilled_broker(tmp_path, namesrvAddr=name_server.address) as peer:
            for change, broker_id in (
                (None, 0),
                (partial(peer.server.become_follower, 2), 2),
                (peer.server.become_leader, 0),
            ):
                if change is not None:
                    await change()
                route = name_server._table.route("T")
                assert route is not None
                (found,) = route.route.broker_datas
                assert found.broker_addrs == {broker_id: peer.server.address}
    finally:
        await name_server.stop()


async def test_changed_settings_hold_in_the_next_term(tmp_path: Path) -> None:
    async with drilled_broker(tmp_path) as peer:
        await peer.set(maxMessageSize=65536)
        await peer.server.become_follower(1)
        await peer.server.become_leader()
        assert (await peer.send("T", b"x" * 70_000)).code == ResponseCode.MESSAGE_ILLEGAL


async def test_a_term_that_cannot_open_ends_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **more: object) -> None:
        raise StoreError("the timer's files are damaged")

    async with drilled_broker(tmp_path) as peer:
        await peer.server.become_follower(1)
        monkeypatch.setattr(timer, "open_timers_blocking", fail)
        with pytest.raises(StoreError, match="damaged"):
            await peer.server.become_leader()
        assert "the timer's files are damaged" in await peer.server.wait_failed()
        assert (await peer.pull("T")).code == ResponseCode.SERVICE_NOT_AVAILABLE


async def test_a_client_that_leaves_between_two_terms_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with drilled_broker(tmp_path) as peer:
        server = peer.server
        begun, gone = asyncio.Event(), asyncio.Event()
        open_term = FollowerTerm.open.__func__  # type: ignore[attr-defined]

        async def open_late(cls: type[FollowerTerm], *args: Any, **more: Any) -> FollowerTerm:
            begun.set()
            await gone.wait()
            opened = await open_term(cls, *args, **more)
            assert isinstance(opened, FollowerTerm)
            return opened

        monkeypatch.setattr(FollowerTerm, "open", classmethod(open_late))
        body = msgspec.json.encode({"clientID": "c", "producerDataSet": [{"groupName": "P"}]})
        async with peer_at("127.0.0.1", server.port) as other:
            await other.ok(Code.HEART_BEAT, body)
            assert server._context.membership.producers["P"]
            change = asyncio.create_task(server.become_follower(1))
            await begun.wait()
        await until_lost(server)
        gone.set()
        await change
        assert "P" not in server._context.membership.producers


async def until_held(server: BrokerServer) -> None:
    while not server._term.features.held:
        await asyncio.sleep(0.001)


async def until_lost(server: BrokerServer) -> None:
    while not server._term.lost:
        await asyncio.sleep(0.001)
