"""The creator of a topic is answered when the name servers know the topic."""

from __future__ import annotations

import asyncio

from rocketpost.server.name_servers.announcing import Announcing


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
    announcing = Announcing(wait_registered=servers.told)
    called: list[str] = []
    announcing.add("T")
    announcing.when_announced({"T"}, lambda: called.append("T"))
    await turns()
    assert announcing.topics == {"T"}
    assert called == []
    servers.answer.set()
    await turns()
    assert called == ["T"]
    assert not announcing.topics


async def test_changes_during_an_announcement_are_announced_again() -> None:
    servers = NameServers()
    announcing = Announcing(wait_registered=servers.told)
    called: list[str] = []
    announcing.add("A")
    await turns()
    announcing.add("B")
    announcing.when_announced({"B"}, lambda: called.append("B"))
    servers.answer.set()
    await turns()
    assert servers.asked == 2
    assert called == ["B"]
    await announcing.close()


async def test_closing_lets_everybody_go() -> None:
    servers = NameServers()
    announcing = Announcing(wait_registered=servers.told)
    called: list[str] = []
    announcing.add("T")
    announcing.when_announced({"T"}, lambda: called.append("under way"))
    await turns()
    announcing.when_announced({"other"}, lambda: called.append("waiting"))
    await announcing.close()
    assert called == ["under way", "waiting"]


async def test_who_asks_while_the_news_are_under_way_waits_for_no_second_round() -> None:
    servers = NameServers()
    announcing = Announcing(wait_registered=servers.told)
    called: list[str] = []
    announcing.add("T")
    await turns()
    announcing.when_announced({"T"}, lambda: called.append("T"))
    servers.answer.set()
    await turns()
    assert called == ["T"]
    assert servers.asked == 1


async def test_a_change_of_a_known_topic_is_no_news_but_its_return_is() -> None:
    servers = NameServers()
    servers.answer.set()
    announcing = Announcing(wait_registered=servers.told)
    announcing.add("T")
    await turns()
    announcing.add("T")
    assert not announcing.topics
    announcing.forget("T")
    announcing.add("T")
    assert announcing.topics == {"T"}
    await announcing.close()
