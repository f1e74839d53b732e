from __future__ import annotations

from collections.abc import Sequence

from rocketpost.broker.group.assignment import AssignmentService
from rocketpost.broker.group.request_modes import RequestModes
from rocketpost.codec.codes import RequestCode as Code
from rocketpost.codec.codes import ResponseCode
from rocketpost.errors import ConnectionLost
from rocketpost.model.route import MessageQueue
from rocketpost.server.handlers.assignment import AssignmentHandlers

from .fakes import Caller, json_of
from .world import World

QUESTION = (
    b'{"clientId":"c","consumerGroup":"g","messageModel":"BROADCASTING",'
    b'"strategyName":"AVG","topic":"T"}'
)


class FakeRoutes:
    def __init__(self) -> None:
        self.answer: Sequence[MessageQueue] | Exception | None = [MessageQueue("b", 0, "T")]

    async def queues(self, topic: str) -> Sequence[MessageQueue] | None:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Assigning:
    def __init__(self, world: World) -> None:
        self.routes = FakeRoutes()
        self.modes = RequestModes()
        service = AssignmentService(members=world.membership, modes=self.modes)
        self.call = Caller(
            AssignmentHandlers(
                service=service, modes=self.modes, routes=self.routes, save=world.saves
            )
        )


async def test_a_client_learns_its_queues_and_how_to_take_from_them(world: World) -> None:
    assigning = Assigning(world)
    queue = {"brokerName": "b", "queueId": 0, "topic": "T"}
    found = json_of(await assigning.call(Code.QUERY_ASSIGNMENT, body=QUESTION))
    assert found == {"messageQueueAssignments": [{"messageQueue": queue, "mode": "PULL"}]}


async def test_an_unknown_topic_and_silent_name_servers_change_nothing(world: World) -> None:
    assigning = Assigning(world)
    for answer in (None, ConnectionLost("gone")):
        assigning.routes.answer = answer
        assert json_of(await assigning.call(Code.QUERY_ASSIGNMENT, body=QUESTION)) == {}


async def test_a_mode_is_saved_before_it_is_acknowledged(world: World) -> None:
    assigning = Assigning(world)
    body = b'{"consumerGroup":"g","mode":"POP","popShareQueueNum":8,"topic":"T"}'
    assert (await assigning.call(Code.SET_MESSAGE_REQUEST_MODE, body=body)).code == 0
    assert world.saves.count == 1
    assert assigning.modes.find("T", "g").mode == "POP"
    listed = json_of(await assigning.call(Code.GET_ALL_MESSAGE_REQUEST_MODE))
    assert isinstance(listed, dict)
    assert listed["messageRequestModeMap"]["T"]["g"]["popShareQueueNum"] == 8


async def test_bad_bodies_change_nothing(world: World) -> None:
    assigning = Assigning(world)
    for code in (Code.QUERY_ASSIGNMENT, Code.SET_MESSAGE_REQUEST_MODE):
        response = await assigning.call(code, body=b"[]")
        assert response.code == ResponseCode.INVALID_PARAMETER
    retry = b'{"consumerGroup":"g","mode":"POP","topic":"%RETRY%g"}'
    response = await assigning.call(Code.SET_MESSAGE_REQUEST_MODE, body=retry)
    assert response.code == ResponseCode.NO_PERMISSION
    assert world.saves.count == 0
