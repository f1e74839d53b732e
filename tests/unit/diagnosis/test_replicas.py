from __future__ import annotations

from typing import Any, cast

from diagnosis.samples import make_message
from rocketpost.client.admin import AdminClient
from rocketpost.codec.faults import ServerError
from rocketpost.codec.record import Record
from rocketpost.diagnosis.replicas import ReplicaCopy, find_copies
from rocketpost.errors import NotConnected, RocketpostError
from rocketpost.model.route import BrokerData


class FakeAdmin:
    """Answers for some replicas: their record at the position, or an error."""

    def __init__(self, answers: dict[str, Record | RocketpostError]) -> None:
        self._answers = answers
        self.messages = self

    async def at_position(self, address: str, position: int) -> Record:
        assert position == 786
        answer = self._answers[address]
        if isinstance(answer, RocketpostError):
            raise answer
        return answer


async def test_every_replica_is_asked_for_the_message() -> None:
    message = make_message()
    answers: dict[str, Record | RocketpostError] = {
        "m:1": message.record,
        "s:1": ServerError("there is no message at 786 in the commit log"),
        "s:2": NotConnected("cannot connect to s:2"),
        "s:3": make_message(b"another").record,
    }
    broker = BrokerData(
        broker_name="broker-a", broker_addrs={3: "s:3", 0: "m:1", 1: "s:1", 2: "s:2"}
    )
    admin = cast(AdminClient, cast(Any, FakeAdmin(answers)))
    assert await find_copies(admin, broker, message) == [
        ReplicaCopy(broker_id=0, address="m:1", present=True),
        ReplicaCopy(
            broker_id=1,
            address="s:1",
            present=False,
            reason="there is no message at 786 in the commit log",
        ),
        ReplicaCopy(broker_id=2, address="s:2", present=None, reason="cannot connect to s:2"),
        ReplicaCopy(
            broker_id=3,
            address="s:3",
            present=False,
            reason="it has another message at that position",
        ),
    ]
