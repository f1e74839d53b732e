"""Receipts: answered when stored, refused when they make no sense."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rocketpost.broker.group.table import GroupTable
from rocketpost.codec.bodies.pop import AckSet, BatchAck, encode_batch_ack, encode_bits
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.headers.pop import ChangeInvisibleTimeResponse

from .popping import POP, PopWorld, about


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[PopWorld]:
    world = PopWorld(tmp_path / "store")
    world.send()
    world.send()
    yield world
    world.close()


async def test_an_ack_is_answered_when_it_is_stored(world: PopWorld) -> None:
    [(_, receipt), _] = await world.pop_all()
    world.is_slow = True
    world.ask(RequestCode.ACK_MESSAGE, **about(receipt))
    before = len(world.link.responses)
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(world.link.responses) == before
    world.commit()
    for _ in range(5):
        await asyncio.sleep(0)
    assert world.link.responses[before].code == 0


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "Unknown"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queueId": 9}, ResponseCode.MESSAGE_ILLEGAL),
        ({"offset": 99}, ResponseCode.NO_MESSAGE),
        ({"extraInfo": "nonsense"}, ResponseCode.INVALID_PARAMETER),
    ],
)
async def test_invalid_receipts_are_refused(
    world: PopWorld, fields: dict[str, object], code: int
) -> None:
    [(_, receipt), _] = await world.pop_all()
    answer = await world.call(RequestCode.ACK_MESSAGE, **(about(receipt) | fields))
    assert answer.code == code


async def test_a_batch_ends_what_its_bits_name(world: PopWorld) -> None:
    [(_, first), (_, second)] = await world.pop_all()
    bits = encode_bits(first.start_offset, [first.offset, second.offset])
    ack = AckSet(
        b=bits, c="g", pt=first.pop_ms, q=first.queue_id, so=first.start_offset, t="T",
        rq=first.revive_queue,
    )  # fmt: skip
    body = encode_batch_ack(BatchAck(acks=[ack], broker_name="b"))
    answer = await world.caller(RequestCode.BATCH_ACK_MESSAGE, body=body, connection=world.link)
    assert answer.code == 0
    changed = await world.call(
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME, **about(first), invisibleTime=5
    )
    assert changed.code == ResponseCode.NO_MESSAGE


async def test_an_empty_batch_and_one_that_is_none_are_refused(world: PopWorld) -> None:
    empty = encode_batch_ack(BatchAck(acks=[], broker_name="b"))
    for body, code in ((empty, ResponseCode.NO_MESSAGE), (b"[]", ResponseCode.INVALID_PARAMETER)):
        answer = await world.caller(RequestCode.BATCH_ACK_MESSAGE, body=body, connection=world.link)
        assert answer.code == code


async def test_more_time_makes_another_receipt(world: PopWorld) -> None:
    [(_, receipt), _] = await world.pop_all()
    world.clock.advance(1000)
    answer = await world.call(
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME, **about(receipt), invisibleTime=5000
    )
    changed = answer.read(ChangeInvisibleTimeResponse)
    assert (changed.pop_time, changed.invisible_time) == (receipt.pop_ms + 1000, 5000)
    again = await world.call(
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME, **about(receipt), invisibleTime=5000
    )
    assert again.code == ResponseCode.NO_MESSAGE
    too_long = await world.call(
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME, **about(receipt), invisibleTime=10**12
    )
    assert too_long.code == ResponseCode.INVALID_PARAMETER


async def test_messages_popped_in_order_have_receipts_too(world: PopWorld) -> None:
    [(_, first), (_, second)] = await world.pop_all(order="true", queueId=0)
    assert first.revive_queue == 999
    blocked = await world.pop(order="true", queueId=0)
    assert blocked.code == ResponseCode.POLLING_TIMEOUT
    changed = await world.call(
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME, **about(first), invisibleTime=0
    )
    assert changed.read(ChangeInvisibleTimeResponse).revive_qid == 999
    unknown = await world.call(
        RequestCode.ACK_MESSAGE, **(about(first) | {"consumerGroup": "stranger"})
    )
    assert unknown.code == ResponseCode.MESSAGE_ILLEGAL
    bits = encode_bits(second.start_offset, [second.offset])
    ack = AckSet(b=bits, c="g", pt=second.pop_ms, q=0, so=second.start_offset, t="T", rq=999)
    body = encode_batch_ack(BatchAck(acks=[ack], broker_name="b"))
    answer = await world.caller(RequestCode.BATCH_ACK_MESSAGE, body=body, connection=world.link)
    assert answer.code == 0
    answer = await world.pop(order="true", queueId=0)
    assert answer.fields["orderCountInfo"] == f"0 qo0%{first.offset} 1;0 0 1"
    assert (await world.ack(first)).code == 0


@pytest.mark.parametrize("order", ["false", "true"])
async def test_the_end_of_the_invisible_time_of_a_message_is_returned(
    world: PopWorld, order: str
) -> None:
    async def until_ms(offset: int) -> int:
        answer = await world.call(
            RequestCode.GET_POP_STATE, consumerGroup="g", topic="T", queueId=0, offset=offset
        )
        return int(answer.fields["untilTimestamp"])

    assert await until_ms(0) == 0
    [(_, first), (_, second)] = await world.pop_all(order=order, queueId=0)
    assert await until_ms(second.offset) == second.pop_ms + 60_000
    assert await until_ms(9) == 0
    await world.ack(first)
    assert await until_ms(first.offset) == 0
    assert await until_ms(second.offset) == second.pop_ms + 60_000


async def test_messages_popped_by_a_group_lost_in_a_crash_are_redelivered(world: PopWorld) -> None:
    await world.pop_all(invisibleTime=10_000)
    world.groups = GroupTable(clock=world.clock)  # the group was made by its pop, and not saved
    world.start()
    running = asyncio.create_task(world.feature.run())
    world.clock.advance(10_000)
    async with asyncio.timeout(2):
        while (queue := world.store.queue("%RETRY%g_T", 0)) is None or queue.end < 2:
            await asyncio.sleep(0)
    assert len(await world.pop_all()) == 2
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def started_again(world: PopWorld) -> None:
    """Start anew, with the groups that were saved; none comes into being by being used."""
    groups = GroupTable(clock=world.clock, auto_create=False)
    groups.load(world.groups.to_json())
    world.groups = groups
    world.start()


async def test_more_time_does_not_bring_back_a_deleted_group(world: PopWorld) -> None:
    [(_, receipt), _] = await world.pop_all()
    world.clock.advance(1000)
    world.groups.delete("g")
    world.clock.advance(1000)
    answer = await world.call(
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME, **about(receipt), invisibleTime=60_000
    )
    assert answer.code == ResponseCode.NO_MESSAGE
    assert "deleted" in (answer.remark or "")
    started_again(world)
    assert world.groups.find("g") is None


async def test_a_pop_that_waits_does_not_bring_back_a_deleted_group(world: PopWorld) -> None:
    for _, receipt in await world.pop_all():
        await world.ack(receipt)
    world.ask(RequestCode.POP_MESSAGE, **(POP | {"pollTime": 10_000}))
    assert world.feature.held == 1
    before = len(world.link.responses)
    world.clock.advance(1000)
    world.groups.delete("g")
    world.clock.advance(1000)
    world.send()
    async with asyncio.timeout(10):
        while world.feature.held:
            await asyncio.sleep(0)
    assert world.link.responses[before].code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    started_again(world)
    assert world.groups.find("g") is None
