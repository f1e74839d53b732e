"""Pulls and pops without a connection: the same services, the same tables of who waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rocketpost.codec.codes import ResponseCode
from rocketpost.codec.faults import ServiceNotAvailable, TopicNotExist
from rocketpost.codec.headers.message import PullMessage
from rocketpost.codec.headers.pop import PopMessage
from rocketpost.codec.record import decode_record
from rocketpost.model import sysflag
from rocketpost.server.features.pull import PullFeature
from rocketpost.server.handlers.in_process import InProcessClient
from rocketpost.store.dispatch.arrival import Arrival

from ..contexts import open_now
from .popping import PopWorld


class InProcessWorld(PopWorld):
    """A broker's pulls and pops, and a client within its process."""

    def start(self) -> None:
        super().start()
        self.pulls = PullFeature(self.context)
        open_now(self.pulls)
        self.client = self.connect("client")

    def tell(self, arrivals: list[Arrival]) -> None:
        self.pulls.polls.note_arrivals(arrivals)
        super().tell(arrivals)

    def connect(self, name: str) -> InProcessClient:
        return InProcessClient(
            name,
            pulls=self.pulls.service,
            polls=self.pulls.polls,
            cold_reads=self.pulls.cold_reads,
            pops=self.feature.desk,
        )


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[InProcessWorld]:
    world = InProcessWorld(tmp_path / "store")
    yield world
    world.close()


def a_pull(offset: int = 0, *, topic: str = "T", wait_ms: int = 10_000) -> PullMessage:
    return PullMessage(
        consumer_group="g",
        topic=topic,
        queue_id=0,
        queue_offset=offset,
        sys_flag=sysflag.PULL_SUSPEND | sysflag.PULL_SUBSCRIPTION,
        suspend_timeout_millis=wait_ms,
        subscription="*",
    )


def a_pop(*, topic: str = "T", wait_ms: int = 10_000) -> PopMessage:
    return PopMessage(
        consumer_group="g",
        topic=topic,
        queue_id=-1,
        max_msg_nums=8,
        invisible_time=60_000,
        poll_time=wait_ms,
        born_time=0,
        init_mode=0,
    )


async def started(call: asyncio.Task[object]) -> None:
    await asyncio.sleep(0)
    assert not call.done()


async def test_a_pull_is_answered_at_once_or_when_a_message_arrives(world: InProcessWorld) -> None:
    world.send(body=b"first")
    answer = await world.client.pull(a_pull())
    assert answer.pulled.message_count == 1
    call = asyncio.create_task(world.client.pull(a_pull(1)))
    await started(call)
    assert world.pulls.held == 1
    world.send(body=b"second")
    answer = await call
    assert bytes(decode_record(answer.pulled.views[0]).body) == b"second"
    assert world.pulls.held == 0


async def test_a_pop_is_answered_when_its_checkpoint_is_stored(world: InProcessWorld) -> None:
    call = asyncio.create_task(world.client.pop(a_pop()))
    await started(call)
    assert world.feature.held == 1
    world.is_slow = True
    world.send(body=b"one")
    await asyncio.sleep(0)
    await started(call)  # it is taken, and its checkpoint is on its way
    world.commit()
    answer = await call
    assert answer.code == ResponseCode.SUCCESS
    assert answer.popped is not None
    [part] = answer.popped.parts
    assert bytes(decode_record(part.views[0]).body) == b"one"
    assert world.feature.held == 0


async def test_a_pop_that_cannot_be_noted_is_refused(world: InProcessWorld) -> None:
    world.send()
    world.is_slow = True
    call = asyncio.create_task(world.client.pop(a_pop()))
    await started(call)
    [(future, _)] = world.storing
    future.cancel()
    with pytest.raises(ServiceNotAvailable):
        await call
    world.storing = []
    world.is_full = True
    with pytest.raises(ServiceNotAvailable, match="no room"):
        await world.client.pop(a_pop())


async def test_a_wait_that_is_over_is_an_answer(world: InProcessWorld) -> None:
    answer = await world.client.pop(a_pop(wait_ms=0))
    assert (answer.code, answer.popped) == (ResponseCode.POLLING_TIMEOUT, None)
    pulled = await world.client.pull(a_pull(wait_ms=0))
    assert pulled.pulled.code == ResponseCode.PULL_NOT_FOUND
    pull = asyncio.create_task(world.client.pull(a_pull()))
    pop = asyncio.create_task(world.client.pop(a_pop()))
    await started(pull)
    world.pulls.close()
    world.feature.close()
    assert (await pull).pulled.code == ResponseCode.PULL_NOT_FOUND
    assert (await pop).code == ResponseCode.POLLING_TIMEOUT


async def test_refusals_are_raised(world: InProcessWorld) -> None:
    with pytest.raises(TopicNotExist):
        await world.client.pull(a_pull(topic="Unknown"))
    with pytest.raises(TopicNotExist):
        await world.client.pop(a_pop(topic="Unknown"))


async def test_a_call_that_is_cancelled_waits_no_more(world: InProcessWorld) -> None:
    other = world.connect("other")
    calls = [
        asyncio.create_task(world.client.pull(a_pull())),
        asyncio.create_task(world.client.pop(a_pop())),
        asyncio.create_task(other.pop(a_pop())),
    ]
    await asyncio.sleep(0)
    assert (world.pulls.held, world.feature.held) == (1, 2)
    for call in calls[:2]:
        call.cancel()
    await asyncio.wait(calls[:2])
    assert (world.pulls.held, world.feature.held) == (0, 1)
    other.close()
    assert world.feature.held == 0
    calls[2].cancel()
    await asyncio.wait(calls)
