"""Pulls of connections: answered at once or held, and counted as unanswered only meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.command import BINARY, JSON, Command
from rocketpost.codec.headers.message import PullResponse
from rocketpost.model import sysflag
from rocketpost.server.features.pull import PullFeature
from rocketpost.store.draft import Appended

from ..contexts import open_now
from .fakes import Caller
from .popping import PopWorld

PULL = {
    "consumerGroup": "g",
    "topic": "T",
    "queueId": "0",
    "queueOffset": "0",
    "maxMsgNums": "8",
    "sysFlag": str(sysflag.PULL_SUSPEND | sysflag.PULL_SUBSCRIPTION),
    "commitOffset": "0",
    "suspendTimeoutMillis": "10000",
    "subscription": "*",
    "subVersion": "0",
}


class PullWorld(PopWorld):
    """A broker's pulls; what is sent arrives for them."""

    def start(self) -> None:
        super().start()
        self.pulls = PullFeature(self.context)
        open_now(self.pulls)
        self.caller = Caller(self.pulls)

    def tell(self, messages: list[Appended]) -> None:
        self.pulls.polls.note_arrivals(messages)

    def pull(self, encoding: int = JSON, **fields: object) -> None:
        self.link.unanswered += 1
        texts = PULL | {name: str(value) for name, value in fields.items()}
        command = Command(RequestCode.PULL_MESSAGE, opaque=7, text_fields=texts, encoding=encoding)
        self.caller.dispatcher.handle(self.link, command)  # type: ignore[arg-type]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[PullWorld]:
    world = PullWorld(tmp_path / "store")
    yield world
    world.pulls.close()
    world.close()


@pytest.mark.parametrize("encoding", [JSON, BINARY])
async def test_a_held_pull_counts_as_answered_and_is_answered_once(
    world: PullWorld, encoding: int
) -> None:
    world.pull(encoding)
    assert (world.link.unanswered, world.link.responses) == (0, [])
    values = world.pulls.runtime_values()
    assert (values["heldPulls"], values["coldReads"]) == ("1", "0")
    world.send(body=b"one")
    assert world.link.responses == []  # not while the send is being committed
    await asyncio.sleep(0)
    [answer] = world.link.responses
    assert (answer.code, answer.opaque) == (ResponseCode.SUCCESS, 7)
    assert b"one" in bytes(answer.body)
    assert (world.link.unanswered, world.pulls.held) == (0, 0)


@pytest.mark.parametrize("encoding", [JSON, BINARY])
async def test_a_pull_that_finds_something_is_answered_at_once(
    world: PullWorld, encoding: int
) -> None:
    world.send(body=b"one")
    world.pull(encoding)
    [answer] = world.link.responses
    assert answer.remark == "FOUND"
    assert answer.read(PullResponse).next_begin_offset == 1
    assert world.link.unanswered == 0


async def test_a_pull_that_fails_when_it_is_resumed_is_refused(
    world: PullWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.pull()

    def fail(*_: object) -> None:
        raise ValueError("a bad queue")

    monkeypatch.setattr(world.pulls.service, "_read", fail)
    world.send()
    await asyncio.sleep(0)
    [answer] = world.link.responses
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "a bad queue" in (answer.remark or "")
    assert world.link.unanswered == 0


async def test_the_pulls_of_a_lost_connection_are_forgotten(world: PullWorld) -> None:
    world.pull()
    world.pulls.connection_lost(world.link)  # type: ignore[arg-type]
    world.send()
    await asyncio.sleep(0)
    assert world.link.responses == []
