"""Requests for the leader at a follower: sends that arrive while this broker becomes the leader."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from rocketpost.codec.codes import RequestCode
from rocketpost.codec.command import Command
from rocketpost.codec.faults import ServiceNotAvailable
from rocketpost.server.group.serving.forwarding import Forwarding
from rocketpost.server.routes.dispatch import Dispatcher
from rocketpost.testing.waiting import until

from ...handlers.fakes import FakeConnection

OWN = "127.0.0.1:10911"


class Leader:
    """This broker as its own leader, which notes the requests that it passes on to itself."""

    def __init__(self) -> None:
        self.asked: list[Command] = []
        self.term = 3

    async def connect(self, address: str) -> Leader:
        assert address == OWN
        return self

    async def request(self, code: int, **values: Any) -> Command:
        self.asked.append(Command(code, text_fields=values["fields"]))
        return Command(0)


def forwarding(leader: Leader) -> Forwarding:
    peers: Any = SimpleNamespace(
        connector=lambda **_: leader, log_ports=SimpleNamespace(login=None), sign=None
    )
    return Forwarding(lambda: OWN, term=lambda: leader.term, peers=peers)


async def test_sends_of_the_turn_in_which_this_broker_becomes_the_leader_are_served_first() -> None:
    """They must not be passed on to this broker itself, behind what the client sends next."""
    leader = Leader()
    passing = forwarding(leader)
    dispatcher = Dispatcher(passing.routes())
    connection: Any = FakeConnection()
    sends = [Command(RequestCode.SEND_MESSAGE_V2, opaque=number) for number in range(3)]
    for send in sends:
        dispatcher.handle(connection, send)
    served: list[Command] = []
    passing.serve_here(lambda _, command: served.append(command))
    assert served == sends
    await until(lambda: dispatcher.is_idle)
    assert leader.asked == []
    assert passing.held == 0
    assert connection.responses == []
    passing.serve_here(lambda _, command: served.append(command))
    assert served == sends


@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE_V2, RequestCode.UPDATE_CONSUMER_OFFSET])
@pytest.mark.parametrize("is_encoded", [True, False])
async def test_a_leader_of_another_term_refuses_what_was_passed_on(
    code: RequestCode, *, is_encoded: bool
) -> None:
    """It was under way while others led, and served what the client has sent since."""
    leader = Leader()
    passing = forwarding(leader)
    await passing.pass_on(FakeConnection(), Command(code, text_fields={"a": "b"}), None)  # type: ignore[arg-type]
    [late] = leader.asked
    if is_encoded:
        late = Command(code, raw_fields=msgspec.Raw(msgspec.json.encode(late.fields)))
    passing.check_term(late)
    leader.term = 5
    with pytest.raises(ServiceNotAvailable, match="passed on in term 3, and it is 5 now"):
        passing.check_term(late)


def test_requests_of_clients_are_not_decoded_for_this() -> None:
    passing = forwarding(Leader())
    command = Command(RequestCode.SEND_MESSAGE_V2, raw_fields=msgspec.Raw(b'{"a":"b"}'))
    passing.check_term(command)
    assert command.text_fields is None
