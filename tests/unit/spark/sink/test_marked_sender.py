"""Rows go out once, however attempts fail: against a broker in memory that fails as told."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketpost.client import Message, MessageQueue, Producer
from rocketpost.client.blocking.loop_thread import LoopThread
from rocketpost.client.message import SendResult, SendStatus
from rocketpost.codec.faults import MessageIllegal
from rocketpost.errors import ConfigError, ConnectionLost, RocketpostError
from rocketpost.spark.options import parse_options
from rocketpost.spark.sink.marked_sender import MarkedSender, Row, _RoundRobin, split_requests
from rocketpost.spark.sink.marks import Marks, MarksByQueue, QueueMarks
from rocketpost.spark.sink.options import SinkOptions
from rocketpost.spark.source.plan import Bounds, Offsets, QueueKey, Range

QUEUE = MessageQueue("a", 0, "T")
QUEUES = [MessageQueue("a", 0, "T"), MessageQueue("a", 1, "T"), MessageQueue("b", 0, "T")]
OPTIONS = {
    "nameServer": "127.0.0.1:9876",
    "topic": "T",
    "delivery": "effectivelyOnce",
    "sinkId": "job",
    "batchBytes": "300",
}


class Killed(Exception):  # noqa: N818
    """The process of a task is gone."""


class FakeBroker:
    """Keeps messages of a topic, and fails requests: before or behind the store."""

    def __init__(self) -> None:
        self.stored: dict[QueueKey, list[tuple[str, Message]]] = {key_of(q): [] for q in QUEUES}
        self.marks: dict[QueueKey, tuple[int, int]] = {key_of(q): (0, 0) for q in QUEUES}
        self.faults: list[str] = []
        self.requests = 0
        self.searched = 0

    def put(self, queue: MessageQueue, ids: Sequence[str], messages: Sequence[Message]) -> int:
        self.requests += 1
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "lost":
            raise ConnectionLost("the request was lost")
        some = self.stored[key_of(queue)]
        some += zip(ids, messages, strict=True)
        if fault == "unanswered":
            raise ConnectionLost("the answer was lost")
        if fault == "killed":
            raise Killed
        return len(some) - len(ids)

    def plan(self) -> dict[str, MarksByQueue]:
        return {"T": FakeMarks(self).read_marks("T")}

    def commit(self, batch_id: int) -> None:
        for queue, marks in self.marks.items():
            end = len(self.stored[queue])
            self.marks[queue] = (end, marks[1]) if batch_id % 2 == 0 else (marks[0], end)

    @property
    def bodies(self) -> list[bytes]:
        return sorted(bytes(m.body) for some in self.stored.values() for _, m in some)


class FakeMarks(Marks):
    def __init__(self, broker: FakeBroker) -> None:
        super().__init__(parse_options(SinkOptions, OPTIONS))
        self._broker = broker

    def read_marks(self, topic: str) -> MarksByQueue:
        broker = self._broker
        return {
            queue: QueueMarks(broker.marks[queue], Bounds(0, len(some)))
            for queue, some in broker.stored.items()
        }

    def find_ids(self, ranges: Iterable[Range]) -> dict[str, tuple[QueueKey, int]]:
        found = {}
        for queue, start, end in ranges:
            for offset in range(start, end):
                self._broker.searched += 1
                found[self._broker.stored[queue][offset][0]] = queue, offset
        return found

    def find_ends(self, queues: Iterable[QueueKey]) -> Offsets:
        return {queue: len(self._broker.stored[queue]) for queue in queues}

    def is_indexed(self, topic: str, message_id: str, *, is_known: bool) -> bool:
        return any(
            message_id == stored for some in self._broker.stored.values() for stored, _ in some
        )


class FakeProducer:
    def __init__(self, broker: FakeBroker) -> None:
        self._broker = broker

    async def queues(self, topic: str) -> list[MessageQueue]:
        return QUEUES

    async def send_soon(
        self, message: Message, *, queue: MessageQueue, message_id: str, timeout: float
    ) -> asyncio.Future[SendResult]:
        future: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
        at = self._broker.put(queue, [message_id], [message])
        future.set_result(result_of(queue, at))
        return future

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue,
        message_ids: Sequence[str],
        timeout: float,
    ) -> list[SendResult]:
        await asyncio.sleep(0)
        return [result_of(queue, self._broker.put(queue, message_ids, messages))]

    async def stop(self) -> None:
        await asyncio.sleep(0)


class Loop:
    """A loop without a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()

    def call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(work)

    def close(self) -> None:
        self._loop.close()


def key_of(queue: MessageQueue) -> QueueKey:
    return QueueKey(queue.topic, queue.broker_name, queue.queue_id)


def result_of(queue: MessageQueue, offset: int) -> SendResult:
    return SendResult(SendStatus.SEND_OK, "", "", queue, offset)


def task(
    broker: FakeBroker,
    batch: pa.RecordBatch,
    *,
    batch_id: int = 0,
    plan: dict[str, MarksByQueue] | None = None,
    is_again: bool = False,
) -> MarkedSender:
    loop = Loop()
    sending = MarkedSender(
        cast(LoopThread, loop),
        parse_options(SinkOptions, OPTIONS),
        partition=0,
        batch_id=batch_id,
        plan=broker.plan() if plan is None else plan,
        is_again=is_again,
        marks=FakeMarks(broker),
        producer=cast(Producer, FakeProducer(broker)),
        settle_seconds=0,
    )
    try:
        for at in range(0, batch.num_rows, 10):
            sending.send(batch.slice(at, 10))
        sending.close()
    finally:
        loop.close()
    return sending


def rows_of(first: int, count: int, keys: int = 0) -> pa.RecordBatch:
    numbers = range(first, first + count)
    columns: dict[str, list[Any]] = {"body": [b"%d" % number for number in numbers]}
    if keys:
        columns["shardingKey"] = [f"k{number % keys}" for number in numbers]
    return pa.RecordBatch.from_pydict(columns)


def bodies(count: int) -> list[bytes]:
    return sorted(b"%d" % number for number in range(count))


def test_a_run_without_faults_sends_all_and_searches_nothing() -> None:
    broker = FakeBroker()
    for batch_id in range(4):
        done = task(broker, rows_of(30 * batch_id, 30), batch_id=batch_id)
        assert (done.sent, done.stored_before) == (30, 0)
        if batch_id == 0:
            broker.commit(1)  # the other mark of a topic that is new
        broker.commit(batch_id)
    assert broker.bodies == bodies(120)
    assert broker.searched == 0


def test_a_batch_that_runs_again_after_its_commit_sends_nothing() -> None:
    broker = FakeBroker()
    task(broker, rows_of(0, 30), batch_id=0)
    broker.commit(0)
    task(broker, rows_of(30, 30), batch_id=1)
    broker.commit(1)
    again = task(broker, rows_of(30, 30), batch_id=1)
    assert (again.sent, again.stored_before) == (0, 30)
    assert sorted(again.firsts) == sorted(q for q, some in broker.stored.items() if some)
    assert broker.bodies == bodies(60)


def test_a_repeated_stage_is_recognised_by_the_first_row() -> None:
    broker = FakeBroker()
    plan = broker.plan()
    broker.faults = ["", "", "killed"]
    with pytest.raises(Killed):
        task(broker, rows_of(0, 30), plan=plan)
    # Spark counts the attempts of a new stage from 0, and the plan is the one of the old.
    done = task(broker, rows_of(0, 30), plan=plan, is_again=False)
    assert done.stored_before > 0
    assert broker.bodies == bodies(30)


def test_the_first_row_goes_before_all_others() -> None:
    broker = FakeBroker()
    broker.faults = ["killed"]
    with pytest.raises(Killed):
        task(broker, rows_of(0, 30))
    assert broker.bodies == [b"0"]


def test_a_permanent_refusal_ends_the_task() -> None:
    broker = FakeBroker()

    def refuse(*_: object) -> int:
        raise MessageIllegal("too large")

    broker.put = refuse  # type: ignore[method-assign]
    with pytest.raises(MessageIllegal):
        task(broker, rows_of(0, 3))


def test_a_topic_that_reappears_during_the_search_is_searched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = FakeBroker()
    task(broker, rows_of(0, 30))
    # Nobody knew it when the driver planned, nor when the task asked for its first row.
    monkeypatch.setattr(FakeMarks, "is_indexed", lambda *_, **__: False)
    again = task(broker, rows_of(0, 30), plan={"T": {}})
    assert (again.sent, again.stored_before) == (0, 30)
    assert broker.bodies == bodies(30)


def test_a_queue_that_nobody_can_read_is_refused() -> None:
    broker = FakeBroker()
    del broker.stored[key_of(QUEUES[2])]
    with pytest.raises(ConfigError, match="queue 0 of T on b can be written to but not read"):
        task(broker, rows_of(0, 3))


FAULTS = st.lists(st.sampled_from(["", "", "lost", "unanswered", "killed"]), max_size=12)


@settings(deadline=None, max_examples=50)
@given(
    attempts=st.lists(FAULTS, min_size=1, max_size=4),
    keys=st.integers(0, 3),
    strangers=st.integers(0, 5),
    drivers_die=st.booleans(),
)
def test_every_row_is_stored_once_and_in_order_whatever_fails(
    attempts: list[list[str]], keys: int, strangers: int, drivers_die: bool
) -> None:
    broker = FakeBroker()
    for queue in QUEUES:
        broker.put(queue, ["x"] * strangers, [Message("T", b"stranger")] * strangers)
    for batch_id in range(3):
        batch = rows_of(40 * batch_id, 40, keys)
        plan = broker.plan()
        for at, faults in enumerate([*attempts, []]):
            broker.faults = list(faults)
            if drivers_die:
                plan = broker.plan()  # a new driver plans anew, and counts from 0
            try:
                task(
                    broker, batch, batch_id=batch_id, plan=plan, is_again=at > 0 and not drivers_die
                )
            except (Killed, RocketpostError):
                continue
            broker.commit(batch_id)  # and Spark does not note it: the batch runs once more
    ours = [body for body in broker.bodies if body != b"stranger"]
    assert ours == bodies(120)
    for some in broker.stored.values():
        last: dict[str | None, int] = {}
        for _, message in some:
            if message.sharding_key is not None:
                assert int(message.body) > last.get(message.sharding_key, -1)
                last[message.sharding_key] = int(message.body)


def rows(*sizes: int) -> list[Row]:
    return [Row(str(at), Message("T", b""), QUEUE, size) for at, size in enumerate(sizes)]


def cut(*sizes: int, bytes_max: int = 100) -> list[list[str]]:
    some = split_requests(rows(*sizes), bytes_max=bytes_max)
    return [[row.message_id for row in each] for each in some]


def test_rows_of_a_queue_share_requests_in_their_order() -> None:
    assert cut(40, 40, 40) == [["0", "1"], ["2"]]
    assert cut(500, 10, 90) == [["0"], ["1", "2"]]
    assert cut() == []
    assert [len(some) for some in cut(*[0] * 2500)] == [1000, 1000, 500]


def test_rows_go_to_one_queue_until_a_request_is_full() -> None:
    turn = _RoundRobin(100)
    over = [turn.is_over(size) for size in (500, 40, 40, 40, 60, 1)]
    assert over == [False, True, False, True, False, True]
    many = _RoundRobin(10**9)
    assert [at for at in range(2100) if many.is_over(1)] == [1000, 2000]
