"""Who makes a topic hears of it when the name servers know."""

from __future__ import annotations

import asyncio

from rocketpost.server.announcing import Announcing


class NameServers:
    def __init__(self) -> None:
        self.asked = 0
        self.answer = asyncio.Event()

    async def told(self) -> None:
        self.asked += 1
        await self.answer.wait()


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_callback_comes_when_the_topic_is_known() -> None:
    servers = NameServers()
    announcing = Announcing(told=servers.told)
    called: list[str] = []
    announcing.add("T")
    announcing.then(lambda: called.append("T"))
    await turns()
    assert announcing.topics == {"T"}
    assert called == []
    servers.answer.set()
    await turns()
    assert called == ["T"]
    assert not announcing.topics


async def test_what_changes_meanwhile_is_told_again() -> None:
    servers = NameServers()
    announcing = Announcing(told=servers.told)
    called: list[str] = []
    announcing.add("A")
    await turns()
    announcing.add("B")
    announcing.then(lambda: called.append("B"))
    servers.answer.set()
    await turns()
    assert servers.asked == 2
    assert called == ["B"]
    await announcing.close()


async def test_closing_lets_everybody_go() -> None:
    servers = NameServers()
    announcing = Announcing(told=servers.told)
    called: list[str] = []
    announcing.add("T")
    announcing.then(lambda: called.append("under way"))
    await turns()
    announcing.then(lambda: called.append("waiting"))
    await announcing.close()
    assert called == ["under way", "waiting"]
