"""Delayed, timed, popped, transactional and numbered messages after a change of leader."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path

import pytest

from rocketpost.codec.codes import RequestCode as Code
from rocketpost.codec.codes import ResponseCode
from rocketpost.codec.command import Command
from rocketpost.codec.record import decode_records
from rocketpost.model.stamp import Stamp

from .group_brokers import TOPIC, Group, group_of_three
from .settings.harness import Peer, until

pytestmark = pytest.mark.slow

HALF = {"TRAN_MSG": "true", "PGROUP": "P"}


async def depose(group: Group) -> str:
    """Cut the leader off until another member leads, and return that one."""
    old = await group.leader()
    heal = group.isolate(old)
    new = await group.leader(but=old)
    heal()
    return new


async def counts_at(group: Group, node: str) -> Counter[bytes]:
    return Counter((await group.bodies(node)).values())


async def until_delivered(group: Group, node: str, count: int) -> Counter[bytes]:
    """Wait until a member shows so many messages, and return how often each is there."""

    async def is_there() -> bool:
        return len(await group.bodies(node)) >= count

    await until(is_there)
    await asyncio.sleep(0.5)  # a second copy would come now
    return await counts_at(group, node)


async def make_topic(group: Group, node: str) -> None:
    async with group.client(node) as peer:
        assert (await peer.topic(TOPIC)).code == ResponseCode.SUCCESS


async def test_delayed_messages_are_delivered_once(tmp_path: Path) -> None:
    async with group_of_three(tmp_path, messageDelayLevel="1s 2s 4s") as group:
        first = await group.leader()
        await make_topic(group, first)
        async with group.client(first) as peer:
            for number in range(15):
                answer = await peer.send(TOPIC, b"%d" % number, DELAY=str(1 + number % 3))
                assert answer.code == ResponseCode.SUCCESS
        await asyncio.sleep(1.2)  # the first are delivered by the first leader
        second = await depose(group)
        counts = await until_delivered(group, second, 15)
        assert counts == Counter({b"%d" % number: 1 for number in range(15)})
        await group.check()


async def test_timed_messages_are_delivered_once_and_not_early(tmp_path: Path) -> None:
    async with group_of_three(tmp_path) as group:
        first = await group.leader()
        await make_topic(group, first)
        due: dict[bytes, float] = {}
        async with group.client(first) as peer:
            for number in range(12):
                at = time.time() + 1 + number % 4
                body = b"%d" % number
                due[body] = at
                answer = await peer.send(TOPIC, body, TIMER_DELIVER_MS=str(int(at * 1000)))
                assert answer.code == ResponseCode.SUCCESS
        await asyncio.sleep(1.2)
        second = await depose(group)
        counts = await until_delivered(group, second, 12)
        assert counts == Counter(dict.fromkeys(due, 1))
        async with group.client(second) as peer:
            for record in await peer.records(TOPIC):
                assert record.store_ms >= due[bytes(record.body)] * 1000 - 1000
        await group.check()


async def test_a_transaction_is_ended_at_the_next_leader(tmp_path: Path) -> None:
    async with group_of_three(tmp_path) as group:
        first = await group.leader()
        await make_topic(group, first)
        async with group.client(first) as peer:
            halves = [await peer.send(TOPIC, b"%d" % n, UNIQ_KEY=f"K{n}", **HALF) for n in range(2)]
        assert await group.bodies(first) == {}
        second = await depose(group)
        async with group.client(second) as peer:
            for half, outcome in zip(halves, (8, 12), strict=True):
                await peer.ok(
                    Code.END_TRANSACTION, producerGroup="P", commitOrRollback=outcome,
                    tranStateTableOffset=half.fields["queueOffset"],
                    commitLogOffset=int(half.fields["msgId"][16:], 16),
                    msgId=half.fields["transactionId"],
                )  # fmt: skip
        third = await depose(group)
        assert await counts_at(group, third) == Counter([b"0"])


async def pop(peer: Peer, invisible_ms: int = 60_000) -> Command:
    return await peer.call(
        Code.POP_MESSAGE, consumerGroup="G", topic=TOPIC, queueId=-1, maxMsgNums=4,
        invisibleTime=invisible_ms, pollTime=0, bornTime=int(time.time() * 1000), initMode=0,
        exp="*", expType="TAG", order="false",
    )  # fmt: skip


async def ack(peer: Peer, popped: Command, offset: int) -> None:
    fields = popped.fields
    start = fields["startOffsetInfo"].split(" ")[-1]
    info = " ".join(
        [start, fields["popTime"], fields["invisibleTime"], fields["reviveQid"], "0",
         "broker-g", "0", str(offset)]
    )  # fmt: skip
    await peer.ok(
        Code.ACK_MESSAGE, consumerGroup="G", topic=TOPIC, queueId=0, extraInfo=info, offset=offset
    )


async def test_popped_messages_that_are_acknowledged_do_not_come_again(tmp_path: Path) -> None:
    async with group_of_three(tmp_path) as group:
        first = await group.leader()
        await group.send(first, 8)
        async with group.client(first) as peer:
            popped = await pop(peer, invisible_ms=6000)  # longer than a change of leader takes
            got = [record.queue_offset for record in decode_records(popped.body)]
            assert got == [0, 1, 2, 3]
            for offset in got[:2]:
                await ack(peer, popped, offset)
        second = await depose(group)
        async with group.client(second) as peer:
            await ack(peer, popped, 2)  # a receipt of the leader before
            again: list[int] = []

            async def has_all() -> bool:
                answer = await pop(peer)
                if answer.code == ResponseCode.SUCCESS:
                    for record in decode_records(answer.body):
                        again.append(int(bytes(record.body).split()[0]))
                return 3 in again and 7 in again

            await until(has_all)
        assert sorted(again) == [3, 4, 5, 6, 7]


async def test_numbered_messages_are_stored_once(tmp_path: Path) -> None:
    async with group_of_three(tmp_path) as group:
        first = await group.leader()
        await make_topic(group, first)
        stamps = [Stamp("producer-1", 1, number) for number in range(6)]

        async def send_all(node: str) -> list[Command]:
            async with group.client(node) as peer:
                return [
                    await peer.call(
                        Code.SEND_MESSAGE, b"%d" % stamp.sequence, producerGroup="P", topic=TOPIC,
                        defaultTopic="TBW102", defaultTopicQueueNums=1, queueId=0, sysFlag=0,
                        bornTimestamp=1, flag=0, properties="", sequence=stamp.to_field(),
                    )
                    for stamp in stamps
                ]  # fmt: skip

        answers = await send_all(first)
        assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}
        second = await depose(group)
        repeated = await send_all(second)
        assert {answer.code for answer in repeated} == {ResponseCode.SUCCESS}
        assert await counts_at(group, second) == Counter(b"%d" % n for n in range(6))


async def test_orderly_consumers_keep_their_queue_until_it_is_free(tmp_path: Path) -> None:
    from .test_group_tables import lock

    async with group_of_three(tmp_path) as group:
        first = await group.leader()
        await group.send(first, 1)
        async with group.client(first) as peer:
            assert await lock(peer, "a")
        for _ in range(2):
            leader = await depose(group)
            async with group.client(leader) as peer:
                assert not await lock(peer, "b")
                assert await lock(peer, "a")
