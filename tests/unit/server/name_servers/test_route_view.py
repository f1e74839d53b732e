"""Routes that a broker knows, before any socket."""

from __future__ import annotations

import asyncio

import pytest

from rocketpost.codec.bodies.route import encode_route
from rocketpost.codec.codes import ResponseCode
from rocketpost.codec.command import Command
from rocketpost.errors import ConnectionLost
from rocketpost.model.route import MessageQueue, QueueData, TopicRoute
from rocketpost.server.name_servers import route_view
from rocketpost.server.name_servers.route_view import ROUNDS_UNASKED, RouteView


def route(*rows: QueueData) -> Command:
    return Command(0, body=encode_route(TopicRoute(queue_datas=list(rows)), standard=True))


UNKNOWN = Command(int(ResponseCode.TOPIC_NOT_EXIST))


class View(RouteView):
    """A view whose name servers answer from a dict."""

    def __init__(self, **answers: Command | Exception) -> None:
        super().__init__(name_servers=list(answers), own_queues=lambda topic: None)
        self.answers = answers
        self.asked: list[str] = []

    async def _ask(self, address: str, topic: str) -> Command:
        await asyncio.sleep(0)
        self.asked.append(address)
        answer = self.answers[address]
        if isinstance(answer, Exception):
            raise answer
        return answer


GONE = ConnectionLost("gone")


async def test_queues_of_all_brokers_that_can_be_read() -> None:
    view = View(
        a=route(
            QueueData(broker_name="y", read_queue_nums=1),
            QueueData(broker_name="z", read_queue_nums=9, perm=2),
            QueueData(broker_name="x", read_queue_nums=2),
        )
    )
    found = await view.queues("T")
    assert found == [
        MessageQueue("x", 0, "T"),
        MessageQueue("x", 1, "T"),
        MessageQueue("y", 0, "T"),
    ]
    assert await view.queues("T") is found
    assert view.asked == ["a"]


async def test_many_that_ask_at_once_cause_one_question() -> None:
    view = View(a=route(QueueData(broker_name="x", read_queue_nums=1)))
    answers = await asyncio.gather(*(view.queues("T") for _ in range(5)))
    assert view.asked == ["a"]
    assert all(answer == answers[0] for answer in answers)


async def test_another_name_server_is_asked_when_one_fails_and_stays_the_first() -> None:
    view = View(a=GONE, b=route(QueueData(broker_name="x", read_queue_nums=1)))
    assert await view.queues("T")
    assert await view.queues("U")
    assert view.asked == ["a", "b", "b"]
    view.answers["b"] = GONE
    with pytest.raises(ConnectionLost):
        await view.queues("V")
    assert await view.queues("T")


async def test_an_unknown_topic_is_asked_for_again() -> None:
    view = View(a=UNKNOWN)
    assert await view.queues("T") is None
    view.answers["a"] = route(QueueData(broker_name="x", read_queue_nums=1))
    assert await view.queues("T") == [MessageQueue("x", 0, "T")]


async def test_a_route_of_too_many_queues_is_no_route() -> None:
    view = View(a=route(QueueData(broker_name="x", read_queue_nums=2**31 - 1)))
    assert await view.queues("T") is None


async def test_routes_are_refreshed_while_somebody_asks() -> None:
    view = View(a=route(QueueData(broker_name="x", read_queue_nums=1)))
    await view.queues("T")
    view.answers["a"] = route(QueueData(broker_name="x", read_queue_nums=2))
    await view._refresh("T")
    assert len(await view.queues("T") or ()) == 2
    for _ in range(ROUNDS_UNASKED):
        await view._refresh("T")
    assert len(view) == 1
    await view._refresh("T")
    assert len(view) == 0


async def test_a_deleted_topic_is_forgotten_and_a_silent_name_server_changes_nothing() -> None:
    view = View(a=route(QueueData(broker_name="x", read_queue_nums=1)))
    view.poll_seconds = 0.001
    await view.queues("T")
    view.answers["a"] = GONE
    running = asyncio.ensure_future(view.run())
    async with asyncio.timeout(5):
        while len(view.asked) < 3:
            await asyncio.sleep(0)
        assert await view.queues("T")
        view.answers["a"] = UNKNOWN
        while len(view):
            await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await view.close()


async def test_there_is_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route_view, "TOPICS_MAX", 1)
    view = View(a=route(QueueData(broker_name="x", read_queue_nums=1)))
    assert await view.queues("T")
    assert await view.queues("U")
    assert len(view) == 1


async def test_without_name_servers_a_broker_knows_its_own_queues() -> None:
    own = [MessageQueue("me", 0, "T")]
    view = RouteView(name_servers=[], own_queues=lambda topic: own if topic == "T" else None)
    assert await view.queues("T") == own
    assert await view.queues("U") is None
