"""Messages that come again are handed out as messages of their own topic, in either form."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rocketpost.codec.codes import ResponseCode
from rocketpost.codec.headers.pop import pop_retry_topic
from rocketpost.codec.properties import PROPERTIES_BYTES_MAX
from rocketpost.codec.record import decode_records

from .popping import PopWorld


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[PopWorld]:
    world = PopWorld(tmp_path / "store")
    yield world
    world.close()


@pytest.mark.parametrize(
    ("newer", "retry", "topic"), [(False, 1, "%RETRY%g_T"), (True, 2, "%RETRY%g+T")]
)
async def test_a_redelivered_message_names_its_retry_topic(
    world: PopWorld, newer: bool, retry: int, topic: str
) -> None:
    world.configure(retry_topic_v2=newer)
    world.send(body=b"again")
    [(_, first)] = await world.pop_all(invisibleTime=10)
    assert (first.retry, first.broker) == (0, "b")
    running = asyncio.ensure_future(world.feature.run())
    world.clock.advance(10)
    async with asyncio.timeout(2):
        while world.store.queue(topic, 0) is None:
            await asyncio.sleep(0)
    await asyncio.sleep(0)
    [(record, receipt)] = await world.pop_all()
    assert (record.topic, bytes(record.body), record.reconsume_times) == ("T", b"again", 1)
    assert receipt.retry == retry
    assert (await world.ack(receipt, topic=topic)).code == 0
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_message_without_room_for_its_receipt_is_handed_out_as_stored(
    world: PopWorld,
) -> None:
    world.send(tag="x" * (PROPERTIES_BYTES_MAX - len("TAGS") - 2))
    assert len(await world.pop_all(invisibleTime=10)) == 1
    running = asyncio.ensure_future(world.feature.run())
    world.clock.advance(10)
    async with asyncio.timeout(2):
        while world.store.queue(pop_retry_topic("g", "T"), 0) is None:
            await asyncio.sleep(0)
    await asyncio.sleep(0)
    answer = await world.pop()
    assert answer.code == ResponseCode.SUCCESS
    [record] = decode_records(answer.body)
    assert record.topic == pop_retry_topic("g", "T")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
