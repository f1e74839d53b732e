"""Pulls of a task: its whole range, whatever answers it gets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rocketpost.client.consumer.fetch import PullStatus, RawPull, Replica
from rocketpost.errors import ClientError, ConnectionLost, RequestTimeout
from rocketpost.model.route import MessageQueue
from rocketpost.spark.broker_session import BrokerSession
from rocketpost.spark.options import SourceOptions, parse_options
from rocketpost.spark.source.plan import QueueKey, Range

QUEUE = QueueKey("T", "a", 0)


class FakeConsumer:
    """One queue, of which some offsets may hold nothing; answers may be put before its own."""

    offsets: list[int]
    first = 0
    answers: list[RawPull | Exception]

    def __init__(self, group: str, **_: object) -> None:
        pass

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    async def queues(self, topic: str, *, refresh: bool = False) -> list[MessageQueue]:
        return [MessageQueue("a", 0, "T")]

    async def pull_raw(
        self, queue: MessageQueue, at: int, *, count_max: int, replica: Replica, **_: object
    ) -> RawPull:
        assert replica is Replica.MASTER
        if self.answers:
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer
        end = self.offsets[-1] + 1
        if not self.first <= at < end:
            return RawPull(
                PullStatus.OFFSET_ILLEGAL, max(self.first, min(at, end)), self.first, end, b""
            )
        found = [offset for offset in self.offsets if at <= offset < at + count_max]
        text = b"".join(b"%d " % offset for offset in found)
        status = PullStatus.FOUND if found else PullStatus.NO_MATCHED_MSG
        return RawPull(status, min(at + count_max, end), self.first, end, text)


class FakeAdmin:
    def __init__(self, **_: object) -> None:
        pass

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[FakeConsumer]]:
    monkeypatch.setattr("rocketpost.spark.broker_session.PullConsumer", FakeConsumer)
    monkeypatch.setattr("rocketpost.spark.broker_session.AdminClient", FakeAdmin)
    FakeConsumer.offsets, FakeConsumer.first, FakeConsumer.answers = list(range(100)), 0, []
    yield FakeConsumer
    assert not FakeConsumer.answers


def options(**more: Any) -> SourceOptions:
    base = {"nameServer": "x:1", "topic": "T", "pullBatchSize": "8", "outageTimeoutMs": "10000"}
    return parse_options(SourceOptions, base | {"fetchOffset.retryIntervalMs": "0"} | more)


def pulled(start: int, end: int, **more: str) -> list[int]:
    with BrokerSession(options(**more)) as broker_session:
        return [
            int(word)
            for data in broker_session.pull(Range(QUEUE, start, end))
            for word in data.split()
        ]


def test_trap_a_pull_that_fails_is_never_the_end_of_a_range(queue: type[FakeConsumer]) -> None:
    nothing_new = RawPull(PullStatus.NO_NEW_MSG, 5, 0, 5, b"")
    queue.answers = [RequestTimeout("slow"), ConnectionLost("away"), nothing_new]
    assert pulled(5, 60) == list(range(5, 60))


def test_trap_the_end_of_what_a_broker_shows_is_not_the_end_of_a_range(
    queue: type[FakeConsumer],
) -> None:
    queue.answers = [RawPull(PullStatus.NO_NEW_MSG, 5, 0, 5, b"")]
    with pytest.raises(ClientError, match="returns nothing at offset 5"):
        pulled(5, 60, outageTimeoutMs="0")


def test_trap_gaps_inside_a_range_are_no_loss(queue: type[FakeConsumer]) -> None:
    queue.offsets = [3, 4, 40, 41, 99]
    assert pulled(0, 100) == queue.offsets


def test_messages_deleted_during_a_read_fail_it_or_are_skipped(queue: type[FakeConsumer]) -> None:
    queue.first = 30
    with pytest.raises(ClientError, match="has offsets 30 to 100, but 5 was requested"):
        pulled(5, 60)
    assert pulled(5, 60, failOnDataLoss="false") == list(range(30, 60))
