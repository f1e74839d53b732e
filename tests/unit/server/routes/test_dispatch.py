"""The dispatcher: routes found, headers decoded once, every request answered once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import cast

import pytest

from rocketpost.codec.codes import RequestCode as Code
from rocketpost.codec.codes import ResponseCode
from rocketpost.codec.command import ONEWAY, Command
from rocketpost.codec.faults import NoPermission
from rocketpost.codec.headers.topic import TopicRequest
from rocketpost.server.routes.access import GET, of_cluster
from rocketpost.server.routes.dispatch import Dispatcher
from rocketpost.server.routes.route import (
    NO_HEADER,
    Reply,
    Route,
    either,
    in_slices,
    plain,
    waiting,
)
from rocketpost.testing.virtual_time import in_virtual_time
from rocketpost.transport.connection import Connection
from rocketpost.transport.express import Data, Express

from ..handlers.fakes import FakeConnection

ACCESS = of_cluster(GET)
TOPIC, OTHER = Code.DELETE_TOPIC_IN_BROKER, Code.CLEAN_UNUSED_TOPIC


def topic_route(seen: list[object]) -> Route:
    def handle(connection: object, command: Command, header: TopicRequest) -> Reply:
        seen.append(header)
        return Reply()

    return plain(TOPIC, TopicRequest, ACCESS, handle)


def ask(
    dispatcher: Dispatcher, code: int, fields: dict[str, str] | None = None, flag: int = 0
) -> list[Command]:
    connection = FakeConnection()
    command = Command(code, opaque=7, flag=flag, text_fields=fields or {})
    dispatcher.handle(connection, command)  # type: ignore[arg-type]
    return connection.responses


def test_a_handler_gets_the_decoded_header() -> None:
    seen: list[object] = []
    (answer,) = ask(Dispatcher([topic_route(seen)]), TOPIC, {"topic": "T"})
    assert answer.code == ResponseCode.SUCCESS
    assert seen == [TopicRequest(topic="T")]


def test_a_header_that_cannot_be_decoded_is_refused_before_the_handler() -> None:
    seen: list[object] = []
    (answer,) = ask(Dispatcher([topic_route(seen)]), TOPIC, {})
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert "topic" in (answer.remark or "")
    assert seen == []


def test_a_code_without_a_route_is_not_supported() -> None:
    (answer,) = ask(Dispatcher(), TOPIC)
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


def test_a_table_is_replaced_as_a_whole() -> None:
    dispatcher = Dispatcher([topic_route([])])
    dispatcher.use([plain(OTHER, NO_HEADER, ACCESS, lambda *_: Reply())])
    assert list(dispatcher.routes) == [OTHER]
    (answer,) = ask(dispatcher, TOPIC, {"topic": "T"})
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    (answer,) = ask(dispatcher, OTHER)
    assert answer.code == ResponseCode.SUCCESS


def lane_of(letter: bytes, asked: list[bytes]) -> Express[Connection]:
    def take(connection: Connection, data: Data, at: int, end: int) -> int:
        asked.append(letter)
        while at < end and data[at : at + 1] == letter:
            at += 1
        return at

    return take


@pytest.mark.parametrize(
    ("data", "left_at", "order"),
    [
        (b"ss", 2, b"s"),
        (b"pp", 2, b"sp"),
        (b"sps", 3, b"sps"),
        (b"pspx", 3, b"spsp" + b"sp"),
        (b"ssx", 2, b"sp"),
        (b"x", 0, b"sp"),
    ],
)
def test_lanes_take_by_turns_until_the_last_one_takes_nothing(
    data: bytes, left_at: int, order: bytes
) -> None:
    asked: list[bytes] = []
    dispatcher = Dispatcher()
    connection = cast(Connection, FakeConnection())
    assert dispatcher.take(connection, data, 0, len(data)) == 0, "there is no lane"
    dispatcher.use([], [lane_of(b"s", asked), lane_of(b"p", asked)])
    assert dispatcher.take(connection, data, 0, len(data)) == left_at
    assert b"".join(asked) == order


async def test_a_request_is_finished_by_the_route_that_began_it() -> None:
    gate = asyncio.Event()

    async def wait(*_: object) -> Reply:
        await gate.wait()
        return Reply(remark="the former")

    dispatcher = Dispatcher([waiting(TOPIC, NO_HEADER, ACCESS, wait)])
    answers = ask(dispatcher, TOPIC)
    dispatcher.use([])
    assert not dispatcher.is_idle
    gate.set()
    while not answers:
        await asyncio.sleep(0)
    assert [answer.remark for answer in answers] == ["the former"]


def test_two_routes_of_one_code_are_a_mistake() -> None:
    with pytest.raises(AssertionError, match="two routes"):
        Dispatcher([topic_route([]), topic_route([])])


def test_a_sliced_handler_that_ends_at_once_is_answered_at_once() -> None:
    def handle(*_: object) -> Iterator[None]:
        if False:
            yield
        raise NoPermission("no")

    (answer,) = ask(Dispatcher([in_slices(OTHER, NO_HEADER, ACCESS, handle)]), OTHER)  # type: ignore[arg-type]
    assert answer.code == ResponseCode.NO_PERMISSION


async def test_a_handler_without_an_answer_continues_in_a_task() -> None:
    async def later(*_: object) -> Reply:
        return Reply(remark="later")

    route = either(TOPIC, TopicRequest, ACCESS, lambda *_: None, later)
    answers = ask(Dispatcher([route]), TOPIC, {"topic": "T"})
    assert answers == []
    while not answers:
        await asyncio.sleep(0)
    assert [answer.remark for answer in answers] == ["later"]


@pytest.mark.parametrize("fields", [{}, {"topic": "T"}])
def test_a_oneway_request_is_never_answered(fields: dict[str, str]) -> None:
    assert ask(Dispatcher([topic_route([])]), TOPIC, fields, flag=ONEWAY) == []


def test_a_oneway_request_that_is_made_for_its_answer_is_not_served() -> None:
    seen: list[object] = []
    route = topic_route(seen)._replace(code=Code.GET_TOPIC_CONFIG)
    assert ask(Dispatcher([route]), Code.GET_TOPIC_CONFIG, {"topic": "T"}, flag=ONEWAY) == []
    assert seen == []


@in_virtual_time
async def test_a_request_that_is_cut_short_is_answered() -> None:
    finish = asyncio.Event()

    async def slow(connection: object, command: Command, header: None) -> Reply:
        await asyncio.Event().wait()
        return Reply()

    async def quick(connection: object, command: Command, header: None) -> Reply:
        await finish.wait()
        return Reply()

    dispatcher = Dispatcher(
        [waiting(TOPIC, NO_HEADER, ACCESS, slow), waiting(OTHER, NO_HEADER, ACCESS, quick)]
    )
    cut, done = ask(dispatcher, TOPIC), ask(dispatcher, OTHER)
    asyncio.get_running_loop().call_later(0.1, finish.set)
    await dispatcher.stop()
    assert dispatcher.is_idle
    assert [response.code for response in done] == [ResponseCode.SUCCESS]
    assert [response.code for response in cut] == [ResponseCode.SYSTEM_ERROR]
    assert "not known" in (cut[0].remark or "")
