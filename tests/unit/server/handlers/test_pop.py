"""Pops and questions for news: answered, refused, held, woken and ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.model.topic import TopicChange

from .popping import POP, PopWorld, received


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[PopWorld]:
    world = PopWorld(tmp_path / "store")
    yield world
    world.close()


async def test_a_pop_is_answered_when_its_checkpoint_is_stored(world: PopWorld) -> None:
    world.send(body=b"one")
    world.is_slow = True
    world.ask(RequestCode.POP_MESSAGE, **POP)
    await asyncio.sleep(0)
    assert world.link.responses == []
    world.commit()
    await asyncio.sleep(0)
    [answer] = world.link.responses
    assert [bytes(record.body) for record, _ in received(answer)] == [b"one"]


async def test_tags_choose(world: PopWorld) -> None:
    world.send(tag="A", body=b"a")
    world.send(tag="B", body=b"b")
    [(record, _)] = await world.pop_all(exp="B || C")
    assert bytes(record.body) == b"b"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"maxMsgNums": 33}, ResponseCode.INVALID_PARAMETER),
        ({"maxMsgNums": 0}, ResponseCode.INVALID_PARAMETER),
        ({"invisibleTime": -1}, ResponseCode.INVALID_PARAMETER),
        ({"queueId": 2}, ResponseCode.INVALID_PARAMETER),
        ({"topic": "Unknown"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"exp": "x" * 70_000}, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
    ],
)
async def test_invalid_pops_are_refused(
    world: PopWorld, fields: dict[str, object], code: int
) -> None:
    world.send()
    assert (await world.pop(**fields)).code == code
    assert len(await world.pop_all()) == 1


async def test_a_broker_that_may_not_be_read_refuses(world: PopWorld) -> None:
    world.configure(permission=2)
    assert (await world.pop()).code == ResponseCode.NO_PERMISSION


async def test_a_full_disk_is_reported_and_hands_nothing_out(world: PopWorld) -> None:
    world.send()
    world.is_full = True
    assert (await world.pop()).code == ResponseCode.SERVICE_NOT_AVAILABLE
    world.is_full = False
    assert len(await world.pop_all()) == 1


async def test_a_pop_waits_for_a_message_and_two_share(world: PopWorld) -> None:
    for _ in range(2):
        world.ask(RequestCode.POP_MESSAGE, **(POP | {"pollTime": 10_000}))
    assert world.feature.held == 2
    world.send(body=b"late")
    await _until(lambda: bool(world.link.responses))
    assert world.feature.held == 1
    [answer] = world.link.responses
    assert len(received(answer)) == 1
    world.feature.close()
    assert world.link.responses[1].code == ResponseCode.POLLING_TIMEOUT


async def test_a_pop_that_waits_is_given_what_comes_in_new_queues(world: PopWorld) -> None:
    world.ask(RequestCode.POP_MESSAGE, **(POP | {"pollTime": 10_000}))
    assert world.feature.held == 1
    world.topics.update(TopicChange(topic_name="T", read_queue_nums=9, write_queue_nums=9))
    world.send(queue_id=8, body=b"late")
    await _until(lambda: bool(world.link.responses))
    [answer] = world.link.responses
    assert [bytes(record.body) for record, _ in received(answer)] == [b"late"]


async def test_a_pop_without_polling_time_is_answered_immediately(world: PopWorld) -> None:
    assert (await world.pop()).code == ResponseCode.POLLING_TIMEOUT


@pytest.mark.parametrize("setting", ["held_pops_max", "held_pops_in_place_max"])
async def test_too_many_waiting_pops_are_refused(world: PopWorld, setting: str) -> None:
    world.configure(**{setting: 1})
    world.ask(RequestCode.POP_MESSAGE, **(POP | {"pollTime": 10_000}))
    assert (await world.pop(pollTime=10_000)).code == ResponseCode.POLLING_FULL
    info = await world.call(RequestCode.POLLING_INFO, consumerGroup="g", topic="T", queueId=-1)
    assert info.fields["pollingNum"] == "1"


async def test_the_pops_of_a_lost_connection_are_forgotten(world: PopWorld) -> None:
    world.ask(RequestCode.POP_MESSAGE, **(POP | {"pollTime": 10_000}))
    world.feature.connection_lost(world.link)  # type: ignore[arg-type]
    assert world.feature.held == 0


async def test_notifications_take_no_messages(world: PopWorld) -> None:
    question = {"consumerGroup": "g", "topic": "T", "queueId": -1, "pollTime": 10_000}
    world.ask(RequestCode.NOTIFICATION, **question)
    assert world.feature.held == 1
    world.send()
    await _until(lambda: bool(world.link.responses))
    assert world.link.responses[0].fields["hasMsg"] == "true"
    peeked = await world.call(
        RequestCode.PEEK_MESSAGE, consumerGroup="g", topic="T", queueId=-1, maxMsgNums=5
    )
    assert peeked.code == 0
    assert len(await world.pop_all()) == 1
    nothing = await world.call(RequestCode.NOTIFICATION, **(question | {"pollTime": 0}))
    assert nothing.fields["hasMsg"] == "false"


async def _until(condition: object) -> None:
    assert callable(condition)
    async with asyncio.timeout(2):
        while not condition():
            await asyncio.sleep(0)


async def test_a_pop_is_counted_as_unanswered_until_it_is_answered_or_waits(
    world: PopWorld,
) -> None:
    world.send(body=b"one")
    world.is_slow = True
    world.ask(RequestCode.POP_MESSAGE, **POP)
    assert world.link.unanswered == 1  # its checkpoint is not stored yet
    world.commit()
    await asyncio.sleep(0)
    assert (world.link.unanswered, len(world.link.responses)) == (0, 1)
    world.ask(RequestCode.POP_MESSAGE, **(POP | {"pollTime": 10_000}))
    assert (world.link.unanswered, len(world.link.responses)) == (0, 1)  # it is held
    world.feature.close()
    assert (world.link.unanswered, len(world.link.responses)) == (0, 2)


async def test_an_answer_that_does_not_fit_into_a_frame_is_an_error(
    world: PopWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.send(body=b"one")
    monkeypatch.setattr("rocketpost.codec.frames.FRAME_BYTES_MAX", 200)
    answer = await world.pop()
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "200" in (answer.remark or "")
