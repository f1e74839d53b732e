"""Recalls: refused before anything is sent if the handle or topic cannot be right."""

from __future__ import annotations

from typing import Any

import pytest

from rocketpost.client.producer.recall import recall_message
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.headers.timer import RecallResponse
from rocketpost.codec.recall_handle import RecallHandle
from rocketpost.errors import MessageRefused


class Routes:
    async def publish(self, topic: str) -> object:
        return object()

    def master(self, broker_name: str) -> str:
        return f"{broker_name}:10911"


class Answer:
    def read(self, cls: type[RecallResponse]) -> RecallResponse:
        return cls(msg_id="U")


class Session:
    def __init__(self) -> None:
        self.routes = Routes()
        self.calls: list[tuple[Any, ...]] = []

    async def call(self, address: str, code: int, header: Any, *, timeout: float | None) -> Answer:
        self.calls.append((address, code, header.topic, header.recall_handle, timeout))
        return Answer()

    async def patiently(self, topic: str, call: Any, **_: object) -> Answer:
        answer: Answer = await call()
        return answer


async def test_a_recall_goes_to_the_broker_of_the_handle() -> None:
    session, handle = Session(), RecallHandle("T", "b", 5, "U").encode()
    assert await recall_message(session, "g", "T", handle, 2.0) == "U"  # type: ignore[arg-type]
    assert session.calls == [("b:10911", RequestCode.RECALL_MESSAGE, "T", handle, 2.0)]


@pytest.mark.parametrize(
    ("topic", "handle"),
    [
        ("T", "no handle"),
        ("%RETRY%g", RecallHandle("%RETRY%g", "b", 5, "U").encode()),
        ("bad topic", RecallHandle("T", "b", 5, "U").encode()),
    ],
)
async def test_invalid_recalls_are_not_sent(topic: str, handle: str) -> None:
    session = Session()
    with pytest.raises(MessageRefused):
        await recall_message(session, "g", topic, handle, None)  # type: ignore[arg-type]
    assert not session.calls
