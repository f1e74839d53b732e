"""A reply reaches the client that asked, and the replier learns whether it did."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from rocketpost.broker.group.membership import Client, Membership
from rocketpost.broker.send import SendService
from rocketpost.codec.codes import RequestCode as Code
from rocketpost.codec.codes import ResponseCode
from rocketpost.codec.command import Command
from rocketpost.codec.properties import decode_properties
from rocketpost.codec.record import pack_host
from rocketpost.errors import ConnectionLost, RequestTimeout, StoreFull
from rocketpost.model.ids import Position, QueueOffset
from rocketpost.model.topic import TopicConfig
from rocketpost.server.features.reply import ReplyFeature
from rocketpost.server.settings.broker import BrokerConfig
from rocketpost.store.config import StoreConfig
from rocketpost.store.draft import Appended, Draft
from rocketpost.testing import FakeClock

from ..contexts import broker_context
from ..handlers.fakes import Caller, FakeConnection

HOST = pack_host("10.0.0.1", 10911)
REPLY = "MSG_TYPE\x01reply\x02CORRELATION_ID\x01c-1\x02REPLY_TO_CLIENT\x01asker\x02TTL\x013000\x02"
V2 = {"a": "G", "b": "C_REPLY_TOPIC", "e": "0", "g": "5", "h": "9", "i": REPLY}


class Topics:
    def find(self, topic: str) -> TopicConfig | None:
        return TopicConfig(topic_name=topic) if topic == "C_REPLY_TOPIC" else None

    def create_on_send(self, topic: str, **_: object) -> TopicConfig | None:
        return None

    def create_internal(self, topic: str, *, queue_nums: int, by: str = "") -> TopicConfig:
        raise AssertionError("replies make no such topics")


class World:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.membership = Membership(clock=self.clock)
        self.full = False
        self.lost = False
        self.put: list[Draft] = []
        sends = SendService(
            topics=Topics(),
            groups=None,  # type: ignore[arg-type]
            clock=self.clock,
            store_host=HOST,
            cluster_name="C",
            region="R",
            new_unique_id=lambda: "U",
            random_below=lambda most: 0,
            holds_locks=lambda group: False,
        )
        self.feature = ReplyFeature(
            broker_context(
                sends=sends,
                membership=self.membership,
                clock=self.clock,
                put=self._put,
                broker=BrokerConfig(region="R"),
            )
        )
        self.call = Caller(self.feature)

    def _put(self, drafts: Sequence[Draft]) -> asyncio.Future[list[Appended]]:
        if self.full:
            raise StoreFull("no room")
        self.put += drafts
        future: asyncio.Future[list[Appended]] = asyncio.get_running_loop().create_future()
        if self.lost:
            future.set_exception(StoreFull("no room after all"))
        else:
            stored = Appended(Position(16), 10, QueueOffset(3), 0, "T", 0, 0, ("U",), None)
            future.set_result([stored])
        return future

    def asker(self, answer: Command | Exception | None = None) -> FakeConnection:
        connection = FakeConnection("10.0.0.9:1")
        connection.client_answer = answer or Command(0)
        self.membership.join_producer("P", Client(connection, "asker", "10.0.0.9:1", "JAVA", 479))
        return connection

    async def reply(self, fields: dict[str, str] = V2, code: int = 325) -> Command:
        replier: Any = FakeConnection("10.0.0.2:4000")
        replier.peer_host = pack_host("10.0.0.2", 4000)
        return await self.call(code, fields, b"answer", connection=replier)


@pytest.fixture
def world() -> World:
    return World()


async def test_the_requester_is_handed_the_reply(world: World) -> None:
    asker = world.asker()
    response = await world.reply()
    assert response.code == 0
    [(code, fields, body)] = asker.requests
    assert (code, body) == (Code.PUSH_REPLY_MESSAGE_TO_CLIENT, b"answer")
    properties = decode_properties(fields.pop("properties").encode())
    assert properties["CORRELATION_ID"] == "c-1"
    assert properties["PUSH_REPLY_TIME"] == str(world.clock.now_ms())
    assert fields["producerGroup"] == "G"
    assert fields["topic"] == "C_REPLY_TOPIC"
    assert fields["flag"] == "9"
    assert fields["bornTimestamp"] == "5"
    assert fields["bornHost"] == "10.0.0.2:4000"
    assert fields["storeHost"] == "10.0.0.1:10911"
    assert fields["storeTimestamp"] == str(world.clock.now_ms())


async def test_the_long_form_is_served_as_well(world: World) -> None:
    asker = world.asker()
    fields = {"producerGroup": "G", "topic": "C_REPLY_TOPIC", "queueId": "0", "properties": REPLY}
    assert (await world.reply(fields, Code.SEND_REPLY_MESSAGE)).code == 0
    assert len(asker.requests) == 1


async def test_a_reply_is_stored_if_replies_are(world: World) -> None:
    world.asker()
    response = await world.reply()
    assert [draft.topic for draft in world.put] == ["C_REPLY_TOPIC"]
    assert response.fields["msgId"] == "0A00000100002A9F0000000000000010"
    assert response.fields["queueOffset"] == "3"
    world.feature.configure(BrokerConfig(store_replies=False), StoreConfig())
    response = await world.reply()
    assert len(world.put) == 1
    assert (response.fields["msgId"], response.fields["queueOffset"]) == ("0", "0")


@pytest.mark.parametrize("when", ["full", "lost"])
async def test_a_store_without_room_does_not_fail_a_reply(world: World, when: str) -> None:
    asker = world.asker()
    setattr(world, when, True)
    response = await world.reply()
    assert (response.code, response.fields["msgId"]) == (0, "0")
    assert len(asker.requests) == 1


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (RequestTimeout("x"), "did not answer in 10 s"),
        (ConnectionLost("broken pipe"), "went away: broken pipe"),
        (Command(1, remark="not mine"), "refused the reply: code 1 not mine"),
    ],
)
async def test_the_replier_learns_what_happened_to_the_requester(
    world: World, answer: Command | Exception, why: str
) -> None:
    world.asker(answer)
    response = await world.reply()
    assert (response.code, response.remark) == (
        ResponseCode.SYSTEM_ERROR,
        f"the requester asker {why}",
    )


async def test_the_replier_learns_that_the_requester_is_not_connected(world: World) -> None:
    response = await world.reply()
    assert response.code == ResponseCode.SYSTEM_ERROR
    assert response.remark == "the requester asker is not connected to this broker"
    assert len(world.put) == 1


@pytest.mark.parametrize("missing", ["CORRELATION_ID", "REPLY_TO_CLIENT"])
async def test_a_reply_to_nobody_is_refused_and_changes_nothing(world: World, missing: str) -> None:
    world.asker()
    response = await world.reply(V2 | {"i": REPLY.replace(missing, "X")})
    assert response.code == ResponseCode.MESSAGE_ILLEGAL
    assert not world.put


async def test_a_reply_is_judged_like_any_message(world: World) -> None:
    world.asker()
    assert (await world.reply(V2 | {"b": "Other"})).code == ResponseCode.TOPIC_NOT_EXIST
    assert not world.put
