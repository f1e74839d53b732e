"""A SYNC_MASTER on the wire: every status, for every kind of send, in the lane and outside it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from rocketpost.codec.batch import BatchItem, encode_batch
from rocketpost.codec.codes import RequestCode as Code
from rocketpost.codec.codes import ResponseCode
from rocketpost.codec.command import Command, encode_response
from rocketpost.codec.record import parse_message_id
from rocketpost.kernel import FORM
from rocketpost.testing.waiting import until

from .raw_slave import raw_slave, until_alone
from .replicas import QUICK, leader, pair, until_copied
from .settings.harness import Peer, broker

LANE = [True, False] if FORM.is_compiled else [False]
WAITING = ("plain", "batch", "half", "delayed", "timed")
"""Kinds of sends whose answers wait for disk and slaves."""
PROMPT = ("no wait", "send-back", "commit", "reply")


@pytest.fixture(params=LANE, ids=lambda is_on: "lane" if is_on else "ordinary")
def lane(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(params=["ASYNC_FLUSH", "SYNC_FLUSH"])
async def master(request: pytest.FixtureRequest, tmp_path: Path, lane: bool) -> AsyncIterator[Peer]:
    settings = {"sendLaneEnable": str(lane).lower(), "flushDiskType": request.param, **QUICK}
    async with broker(tmp_path, brokerRole="SYNC_MASTER", **settings) as peer:
        await peer.topic("T")
        for _ in range(3):
            await plain(peer, wait="false")  # from the second on, the lane takes them
        yield peer


def plain(
    peer: Peer, *, wait: str = "true", code: int = Code.SEND_MESSAGE_V2, body: bytes = b"body"
) -> asyncio.Future[Command]:
    """Send as Java's producer does; the lane takes this form."""
    fields = {
        "a": "P", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0",
        "i": f"UNIQ_KEY\x01key\x02WAIT\x01{wait}\x02", "j": "0", "k": "false",
        "m": "true" if code == Code.SEND_BATCH_MESSAGE else "false",
    }  # fmt: skip
    return peer.connection.start_request(code, fields=fields, body=body)


async def send(peer: Peer, kind: str) -> Command:
    """Make one request of a kind."""
    if kind == "plain":
        return await plain(peer)
    if kind == "no wait":
        return await plain(peer, wait="false")
    if kind == "batch":
        items = [
            BatchItem(0, b"one", b"UNIQ_KEY\x01k1\x02"),
            BatchItem(0, b"two", b"UNIQ_KEY\x01k2"),
        ]
        return await plain(peer, code=Code.SEND_BATCH_MESSAGE, body=encode_batch(items))
    if kind == "half":
        return await peer.send("T", TRAN_MSG="true", PGROUP="P", UNIQ_KEY="half")
    if kind == "delayed":
        return await peer.send("T", DELAY="18")
    if kind == "timed":
        return await peer.send("T", TIMER_DELAY_SEC="3600")
    if kind == "send-back":
        stored = await plain(peer, wait="false")
        await until_visible(peer)
        _, position = parse_message_id(stored.fields["msgId"])
        return await peer.call(
            Code.CONSUMER_SEND_MSG_BACK, offset=position, group="G", delayLevel=0, originTopic="T"
        )
    if kind == "commit":
        half = await peer.send("T", TRAN_MSG="true", PGROUP="P", UNIQ_KEY="end", WAIT="false")
        await until_visible(peer)
        return await peer.call(
            Code.END_TRANSACTION, producerGroup="P", commitOrRollback=8,
            tranStateTableOffset=half.fields["queueOffset"],
            commitLogOffset=int(half.fields["msgId"][16:], 16), msgId="end",
        )  # fmt: skip
    assert kind == "reply"
    return await reply(peer)


async def until_visible(peer: Peer) -> None:
    """Wait until everything that is written is visible."""
    store = peer.server._context.store
    await until(lambda: store.confirmed_position == store.written_position)


async def reply(peer: Peer) -> Command:
    """Send a reply to the same client, which takes it."""
    beat = {"clientID": "asker", "producerDataSet": [{"groupName": "P"}]}
    await peer.ok(Code.HEART_BEAT, msgspec.json.encode(beat))
    properties = (
        "MSG_TYPE\x01reply\x02CORRELATION_ID\x01c\x02REPLY_TO_CLIENT\x01asker\x02TTL\x019000"
    )
    replying = peer.connection.start_request(
        Code.SEND_REPLY_MESSAGE,
        fields={
            "producerGroup": "G", "topic": "DefaultCluster_REPLY_TOPIC", "queueId": "0",
            "properties": properties,
        },
        body=b"answer",
    )  # fmt: skip
    pushed = await peer.heard.get()
    peer.connection.answer(encode_response(pushed))
    return await replying


async def codes(peer: Peer, kinds: tuple[str, ...]) -> dict[str, int]:
    """Make requests of some kinds one after the other; each stored message has its id."""
    found = {}
    for kind in kinds:
        answer = await send(peer, kind)
        found[kind] = answer.code
        if kind in WAITING:
            assert int(answer.fields["queueOffset"]) >= 0
            for each in answer.fields["msgId"].split(","):
                _, position = parse_message_id(each)
                assert peer.server._context.store.record_at(position) is not None, "it is visible"
    return found


async def test_a_slave_that_follows(master: Peer) -> None:
    async with raw_slave(master):
        found = await codes(master, WAITING + PROMPT)
        assert found == dict.fromkeys(WAITING + PROMPT, ResponseCode.SUCCESS)


async def test_no_slave(master: Peer) -> None:
    unavailable = dict.fromkeys(WAITING, ResponseCode.SLAVE_NOT_AVAILABLE)
    prompt = dict.fromkeys(PROMPT, ResponseCode.SUCCESS)
    assert await codes(master, WAITING + PROMPT) == unavailable | prompt
    async with raw_slave(master):
        assert (await send(master, "plain")).code == ResponseCode.SUCCESS
    await until_alone(master)
    assert (await send(master, "plain")).code == ResponseCode.SLAVE_NOT_AVAILABLE


async def test_a_silent_slave(master: Peer) -> None:
    await master.set(slaveTimeout=100)
    async with raw_slave(master, acknowledges=False) as slave:
        late = dict.fromkeys(WAITING, ResponseCode.FLUSH_SLAVE_TIMEOUT)
        prompt = dict.fromkeys(PROMPT, ResponseCode.SUCCESS)
        assert await codes(master, WAITING + PROMPT) == late | prompt
        await until(lambda: slave.end == master.server._context.store.written_position)
        slave.report()


async def test_a_slave_that_is_too_far_behind(master: Peer) -> None:
    await master.set(haMaxGapNotInSync=1024 * 1024)
    async with raw_slave(master, acknowledges=False):
        for _ in range(2):
            await plain(master, wait="false", body=bytes(600_000))
        assert (await send(master, "plain")).code == ResponseCode.SLAVE_NOT_AVAILABLE


async def test_many_sends_wait_for_one_report_and_consumers_do_not(master: Peer) -> None:
    async with raw_slave(master, acknowledges=False) as slave:
        sending = [plain(master) for _ in range(200)]
        store = master.server._context.store
        await until(lambda: leader(master)._sends.writer.awaiting_slaves_count == 200)
        assert len(await master.records("T", offset=3)) > 0, "they are visible"
        info = await master.ok(Code.GET_BROKER_RUNTIME_INFO)
        assert b'"sendsAwaitingSlaves":"200"' in info.body
        assert not any(each.done() for each in sending)
        await until(lambda: slave.end == store.written_position)
        slave.report()
        answers = await asyncio.gather(*sending)
        assert [each.code for each in answers] == [ResponseCode.SUCCESS] * 200
        assert [int(each.fields["queueOffset"]) for each in answers] == [*range(3, 203)]


@pytest.mark.parametrize("master", ["SYNC_FLUSH"], indirect=True)
async def test_a_slow_disk(master: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    store, writer = master.server._context.store, leader(master)._sends.writer
    async with raw_slave(master):
        writer._waiting.set_timeout(50)
        monkeypatch.setattr(store, "request_flush", lambda: None)
        monkeypatch.setattr(writer, "advance_from_thread", lambda rule, position: None)
        store.report_to()  # nothing is reported as durable
        for kind in ("plain", "batch", "half", "delayed"):
            answer = await send(master, kind)
            assert answer.code == ResponseCode.FLUSH_DISK_TIMEOUT
            assert answer.fields["msgId"]
        assert (await send(master, "no wait")).code == ResponseCode.SUCCESS
    await until_alone(master)
    assert (await send(master, "plain")).code == ResponseCode.SLAVE_NOT_AVAILABLE


async def test_oneway_sends_go_to_slaves_too(master: Peer) -> None:
    async with raw_slave(master) as slave:
        fields = {"producerGroup": "P", "topic": "T", "queueId": "0", "properties": "UNIQ_KEY\x01k"}
        master.connection.send_oneway(Code.SEND_MESSAGE, fields=fields, body=b"oneway")
        await until(lambda: slave.end == master.server._context.store.written_position > 0)


async def test_a_planned_end_waits_for_slaves(tmp_path: Path) -> None:
    async with broker(tmp_path, brokerRole="SYNC_MASTER", **QUICK) as master:
        await master.topic("T")
        async with raw_slave(master, acknowledges=False) as slave:
            sending = [plain(master) for _ in range(5)]
            writer = leader(master)._sends.writer
            await until(lambda: writer.awaiting_slaves_count == 5)
            await until(lambda: slave.end == master.server._context.store.written_position)
            stopping = asyncio.create_task(master.server.stop())
            await asyncio.sleep(0)
            slave.report()
            answers = await asyncio.gather(*sending)
            await stopping
        assert [each.code for each in answers] == [ResponseCode.SUCCESS] * 5


async def test_a_slave_of_ours(tmp_path: Path) -> None:
    async with pair(tmp_path, master={"brokerRole": "SYNC_MASTER"}) as (master, slave):
        await master.topic("T")
        answers = await asyncio.gather(*[plain(master) for _ in range(500)])
        assert {each.code for each in answers} == {ResponseCode.SUCCESS}
        end = master.server._context.store.written_position
        assert slave.server._context.store.written_position == end
        await until_copied(master, slave)


async def test_inSyncReplicas_counts_the_master(tmp_path: Path) -> None:
    settings: dict[str, object] = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 3, **QUICK}
    async with broker(tmp_path, **settings) as master:
        await master.topic("T")
        async with raw_slave(master):
            assert (await send(master, "plain")).code == ResponseCode.SLAVE_NOT_AVAILABLE
            async with raw_slave(master):
                await master.set(slaveTimeout=60_000)
                # Slaves without an id count once each has reported a second after the other came.
                async with asyncio.timeout(20):
                    while (await send(master, "plain")).code != ResponseCode.SUCCESS:
                        await asyncio.sleep(0.1)


async def test_a_group_with_an_acting_master_refuses_before_it_stores(tmp_path: Path) -> None:
    settings = {"brokerRole": "SYNC_MASTER", "enableSlaveActingMaster": "true", **QUICK}
    async with broker(tmp_path, skipPreOnline="true", **settings) as master:
        leader(master)._sends.note_living_replicas(2)
        await master.topic("T")
        end = master.server._context.store.written_position
        for kind in ("plain", "batch", "half", "delayed"):
            answer = await send(master, kind)
            assert (answer.code, answer.remark) == (
                ResponseCode.SYSTEM_ERROR,
                "in-sync replicas not enough",
            )
        assert master.server._context.store.written_position == end
        assert (await send(master, "no wait")).code == ResponseCode.SUCCESS
        async with raw_slave(master):
            assert (await send(master, "plain")).code == ResponseCode.SUCCESS
