from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from client.brokers import NAMESRV, QueueBroker, network_of, route_of
from client.network import Answer, FakeNetwork
from rocketpost.client import (
    ConfigError,
    Consumed,
    MessageModel,
    MessageQueue,
    PushConsumer,
    PushConsumerConfig,
    ReceivedMessage,
    Retry,
    Rollback,
    StartFrom,
    Suspend,
)
from rocketpost.client.consumer import queue_locks
from rocketpost.client.consumer import rebalance as rebalance_module
from rocketpost.codec.bodies.client import LockRequest, LockResponse, decode_lock_request
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.command import Command
from rocketpost.codec.lenient_json import encode
from rocketpost.testing.virtual_time import in_virtual_time
from rocketpost.testing.waiting import until

A = "a:1"
RETRY_TOPIC = "%RETRY%G"
ROUTES = {"T": route_of({"a": A}), RETRY_TOPIC: route_of({"a": A}, queues=1)}
QUEUE = MessageQueue("a", 0, "T")

Use = Callable[[FakeNetwork], FakeNetwork]


class LockingBroker(QueueBroker):
    """Grants every lock but those in ``refused``."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: set[MessageQueue] = set()
        self.locked: set[MessageQueue] = set()

    def _lock_batch_mq(self, command: Command) -> Answer:
        granted = set(decode_lock_request(command.body).mq_set) - self.refused
        self.locked |= granted
        return Answer(body=encode(LockResponse(list(granted))))

    def _unlock_batch_mq(self, command: Command) -> Answer:
        self.locked -= set(decode_lock_request(command.body).mq_set)
        return Answer()


def consumer(**options: object) -> PushConsumer:
    defaults: dict[str, object] = {
        "start_from": StartFrom.FIRST,
        "error_seconds": 0.001,
        "stop_seconds": 0.05,
        "suspend_seconds": 0.01,
        "lock_renew_seconds": 0.01,
    }
    config = PushConsumerConfig(name_servers=NAMESRV, **(defaults | options))  # type: ignore[arg-type]
    return PushConsumer("G", config=config)


@pytest.fixture
def broker() -> LockingBroker:
    return LockingBroker()


@pytest.fixture
def network(
    use_network: Use, broker: LockingBroker, monkeypatch: pytest.MonkeyPatch
) -> FakeNetwork:
    monkeypatch.setattr(queue_locks, "AGAIN_SECONDS", 0.005)
    monkeypatch.setattr(rebalance_module, "ROUND_SECONDS_MIN", 0.0)
    return use_network(network_of(ROUTES, {A: broker.serve}))


class Got(list[bytes]):
    """An async handler that remembers bodies and whether two calls ever met on a queue."""

    def __init__(self) -> None:
        super().__init__()
        self.busy: set[MessageQueue] = set()
        self.gate: asyncio.Event | None = None
        self.met = False

    async def __call__(self, message: ReceivedMessage) -> None:
        self.met = self.met or message.queue in self.busy
        self.busy.add(message.queue)
        self.append(message.body)
        await asyncio.sleep(0)
        if self.gate is not None:
            await self.gate.wait()
        self.busy.discard(message.queue)


async def test_a_queue_is_handled_one_by_one_in_order(
    network: FakeNetwork, broker: LockingBroker
) -> None:
    for n in range(50):
        broker.put(b"%d" % n)
    got = Got()
    reader = consumer()
    reader.subscribe("T", got, orderly=True)
    async with reader:
        await until(lambda: len(got) == 50)
        assert QUEUE in broker.locked
    assert got == [b"%d" % n for n in range(50)]
    assert not got.met
    assert broker.offsets[("T", 0)] == 50
    assert not broker.locked


async def test_a_failure_among_many_quick_messages_repeats_only_itself(
    network: FakeNetwork, broker: LockingBroker
) -> None:
    for n in range(200):
        broker.put(b"%d" % n)
    got: list[int] = []
    at_failure: list[int | None] = []
    reader = consumer()

    async def handle(message: ReceivedMessage) -> None:
        got.append(int(message.body))
        if got.count(77) == 1 and got[-1] == 77:
            (owned,) = [each for each in reader._assigned_queues.owned if each.queue == QUEUE]
            at_failure.append(owned.committable)
            raise Suspend(0.01)

    reader.subscribe("T", handle, orderly=True)
    async with reader:
        await until(lambda: len(got) == 201)
    assert got == [*range(78), *range(77, 200)]
    assert at_failure == [77]  # everything before it was finished when it failed
    assert broker.offsets[("T", 0)] == 200


async def test_plain_functions_are_called_in_order_too(
    network: FakeNetwork, broker: LockingBroker
) -> None:
    for n in range(30):
        broker.put(b"%d" % n)
    got: list[bytes] = []
    reader = consumer()
    reader.subscribe("T", lambda message: got.append(message.body), orderly=True)
    async with reader:
        await until(lambda: len(got) == 30)
    assert got == [b"%d" % n for n in range(30)]


@pytest.mark.parametrize("error", [ValueError("x"), Suspend(0.01), Suspend(), Retry(3)])
async def test_a_handler_that_raises_gets_the_same_message_before_the_next(
    network: FakeNetwork, broker: LockingBroker, error: Exception
) -> None:
    seen: list[tuple[bytes, int]] = []

    async def handler(message: ReceivedMessage) -> None:
        seen.append((message.body, message.reconsume_times))
        if message.body == b"0" and message.reconsume_times < 2:
            raise error

    broker.put(b"0")
    broker.put(b"1")
    reader = consumer()
    reader.subscribe("T", handler, orderly=True)
    async with reader:
        await until(lambda: len(seen) == 4)
    assert seen == [(b"0", 0), (b"0", 1), (b"0", 2), (b"1", 0)]
    assert not network.sent(RequestCode.CONSUMER_SEND_MSG_BACK)


@pytest.mark.parametrize(("error", "calls"), [(ValueError("x"), 3), (Retry(-1), 1)])
async def test_a_message_that_fails_too_often_goes_to_the_dead_letters(
    network: FakeNetwork, broker: LockingBroker, error: Exception, calls: int
) -> None:
    seen: list[bytes] = []

    async def handler(message: ReceivedMessage) -> None:
        seen.append(message.body)
        if message.body == b"bad":
            raise error

    broker.put(b"bad", UNIQ_KEY="U")
    broker.put(b"good")
    reader = consumer(retry_max=2)
    reader.subscribe("T", handler, orderly=True)
    async with reader:
        await until(lambda: b"good" in seen)
    assert seen == [b"bad"] * calls + [b"good"]
    [letter] = network.sent(RequestCode.SEND_MESSAGE_V2)
    assert (letter.fields["b"], letter.fields["j"], letter.fields["l"]) == (RETRY_TOPIC, "3", "2")
    assert "DELAY" not in letter.fields["i"]
    assert f"CONSUME_FAILURE\x01{type(error).__qualname__}" in letter.fields["i"]
    assert broker.offsets[("T", 0)] == 2


async def test_a_message_refused_by_the_dead_letter_topic_is_tried_again(
    network: FakeNetwork, broker: LockingBroker
) -> None:
    broker.refuse[RequestCode.SEND_MESSAGE_V2] = ResponseCode.MESSAGE_ILLEGAL
    calls = 0

    async def handler(message: ReceivedMessage) -> None:
        nonlocal calls
        calls += 1
        raise Suspend(0.01)

    broker.put(b"bad")
    reader = consumer(retry_max=0)
    reader.subscribe("T", handler, orderly=True)
    async with reader:
        await until(lambda: calls == 3)
    assert broker.offsets.get(("T", 0), 0) == 0


@in_virtual_time
async def test_without_the_lock_nothing_is_handled(
    network: FakeNetwork, broker: LockingBroker
) -> None:
    broker.refused.add(QUEUE)
    broker.put(b"0")
    broker.put(b"1", queue_id=1)
    got = Got()
    reader = consumer()
    reader.subscribe("T", got, orderly=True)
    async with reader:
        await until(lambda: got == [b"1"])
        await asyncio.sleep(1)
        assert got == [b"1"]
        broker.refused.clear()
        await until(lambda: len(got) == 2)


@in_virtual_time
async def test_a_lost_lock_stops_handling_until_it_is_granted_again(
    network: FakeNetwork, broker: LockingBroker
) -> None:
    got = Got()
    got.gate = asyncio.Event()
    for n in range(3):
        broker.put(b"%d" % n)
    reader = consumer()
    reader.subscribe("T", got, orderly=True)
    async with reader:
        await until(lambda: got == [b"0"])
        broker.refused.add(QUEUE)
        [owned] = [each for each in reader._assigned_queues.owned if each.queue == QUEUE]
        await until(lambda: owned.lock and not owned.lock.held)
        got.gate.set()
        await asyncio.sleep(1)
        assert got == [b"0"]
        assert ("T", 0) not in broker.offsets  # without the lock nothing is stored
        broker.refused.clear()
        await until(lambda: got == [b"0", b"1", b"2"])


async def test_a_lock_counts_for_a_while_without_renewal(
    network: FakeNetwork, broker: LockingBroker
) -> None:
    got = Got()
    got.gate = asyncio.Event()
    broker.put(b"0")
    reader = consumer(lock_trust_seconds=0.05)
    reader.subscribe("T", got, orderly=True)
    async with reader:
        await until(lambda: got == [b"0"])
        broker.refuse[RequestCode.LOCK_BATCH_MQ] = ResponseCode.SYSTEM_ERROR
        [owned] = [each for each in reader._assigned_queues.owned if each.queue == QUEUE]
        await until(lambda: owned.lock and not owned.lock.held)
        got.gate.set()


async def test_where_others_went_on_meanwhile_nothing_is_repeated(
    network: FakeNetwork, broker: LockingBroker
) -> None:
    got = Got()
    got.gate = asyncio.Event()
    for n in range(5):
        broker.put(b"%d" % n)
    reader = consumer()
    reader.subscribe("T", got, orderly=True)
    async with reader:
        await until(lambda: got == [b"0"])
        broker.refused.add(QUEUE)
        [owned] = [each for each in reader._assigned_queues.owned if each.queue == QUEUE]
        await until(lambda: owned.lock and not owned.lock.held)
        broker.offsets[("T", 0)] = 4
        got.gate.set()
        broker.refused.clear()
        await until(lambda: len(got) == 2)
    assert got == [b"0", b"4"]


@in_virtual_time
async def test_a_lost_connection_is_a_lost_lock(
    network: FakeNetwork, broker: LockingBroker
) -> None:
    got = Got()
    got.gate = asyncio.Event()
    broker.put(b"0")
    broker.put(b"1")
    reader = consumer()
    reader.subscribe("T", got, orderly=True)
    async with reader:
        await until(lambda: got == [b"0"])
        [owned] = [each for each in reader._assigned_queues.owned if each.queue == QUEUE]
        network.cut(A)
        await until(lambda: owned.lock and not owned.lock.held)
        got.gate.set()
        await asyncio.sleep(1)
        assert got == [b"0"]
        network.servers[A] = broker.serve
        await until(lambda: got == [b"0", b"1"])


async def test_a_queue_is_unlocked_when_its_handler_is_done_and_its_offset_stored(
    network: FakeNetwork, broker: LockingBroker
) -> None:
    got = Got()
    got.gate = asyncio.Event()
    broker.put(b"0", queue_id=1)
    broker.put(b"1", queue_id=1)
    reader = consumer(rebalance_seconds=0.01)
    reader.subscribe("T", got, orderly=True)
    lost = MessageQueue("a", 1, "T")
    async with reader:
        await until(lambda: got == [b"0"])
        broker.members = ["zzz"]  # takes the second queue
        await until(lambda: lost not in reader.queues)
        renewals = len(network.sent(RequestCode.LOCK_BATCH_MQ))
        await until(lambda: len(network.sent(RequestCode.LOCK_BATCH_MQ)) > renewals + 2)
        assert lost in broker.locked
        got.gate.set()
        await until(lambda: lost not in broker.locked)
        assert broker.offsets[("T", 1)] == 1
        codes = [command.code for _, command in network.requests]
        assert (
            RequestCode.UPDATE_CONSUMER_OFFSET in codes[: codes.index(RequestCode.UNLOCK_BATCH_MQ)]
        )
    assert got == [b"0"]


@in_virtual_time
async def test_a_queue_that_comes_back_waits_for_the_handler_of_before(
    network: FakeNetwork, broker: LockingBroker
) -> None:
    got = Got()
    got.gate = asyncio.Event()
    broker.put(b"0")
    broker.put(b"1")
    reader = consumer()
    reader.subscribe("T", got, orderly=True)
    async with reader:
        await until(lambda: got == [b"0"])
        for _ in range(3):
            await reader._assigned_queues.reset(QUEUE, 0)
            await asyncio.sleep(1)
        assert got == [b"0"]
        got.gate.set()
        await until(lambda: len(got) == 3)
    assert got == [b"0", b"0", b"1"]
    assert not got.met


async def test_a_stop_while_a_handler_runs_does_not_undo_a_reset(
    network: FakeNetwork, broker: LockingBroker
) -> None:
    begun: list[bytes] = []

    async def handler(message: ReceivedMessage) -> None:
        begun.append(message.body)
        if message.body == b"3":
            await asyncio.Event().wait()

    for n in range(4):
        broker.put(b"%d" % n)
    reader = consumer(stop_seconds=0.01)
    reader.subscribe("T", handler, orderly=True)
    async with reader:
        await until(lambda: len(begun) == 4)
        assert await reader._assigned_queues.reset(QUEUE, 1)
    assert broker.offsets[("T", 0)] == 1


async def test_a_thread_that_is_still_at_work_keeps_its_lock_over_a_stop(
    network: FakeNetwork, broker: LockingBroker
) -> None:
    release = threading.Event()
    begun: list[bytes] = []

    def handler(message: ReceivedMessage) -> None:
        begun.append(message.body)
        release.wait(2)

    broker.put(b"0")
    reader = consumer(stop_seconds=0.01)
    reader.subscribe("T", handler, orderly=True)
    await reader.start()
    await until(lambda: begun)
    await reader.stop()
    release.set()
    assert broker.locked == {QUEUE}
    assert broker.offsets.get(("T", 0), 0) == 0


async def test_batches_are_taken_in_order(network: FakeNetwork, broker: LockingBroker) -> None:
    for n in range(7):
        broker.put(b"%d" % n)
    got: list[list[bytes]] = []

    async def handler(messages: object) -> None:
        got.append([message.body for message in messages])  # type: ignore[attr-defined]

    reader = consumer(batch_max=3)
    reader.subscribe_batches("T", handler, orderly=True)
    async with reader:
        await until(lambda: sum(map(len, got)) == 7)
    assert got == [[b"0", b"1", b"2"], [b"3", b"4", b"5"], [b"6"]]


async def test_orderly_and_other_handlers_do_not_meet() -> None:
    reader = consumer()
    reader.subscribe("T", Got(), orderly=True)
    with pytest.raises(ConfigError, match="all be orderly"):
        reader.subscribe("U", Got())


async def test_broadcasting_in_order_needs_no_lock(
    network: FakeNetwork, broker: LockingBroker, tmp_path: Path
) -> None:
    broker.put(b"0")
    broker.put(b"1")
    got = Got()
    reader = consumer(model=MessageModel.BROADCASTING, offset_directory=str(tmp_path))
    reader.subscribe("T", got, orderly=True)
    async with reader:
        await until(lambda: got == [b"0", b"1"])
    assert not network.sent(RequestCode.LOCK_BATCH_MQ)


async def test_the_request_for_a_lock_is_java_s(
    network: FakeNetwork, broker: LockingBroker
) -> None:
    reader = consumer()
    reader.subscribe("T", Got(), orderly=True)
    async with reader:
        await until(lambda: network.sent(RequestCode.LOCK_BATCH_MQ))
        request = decode_lock_request(network.sent(RequestCode.LOCK_BATCH_MQ)[0].body)
        assert request == LockRequest(
            client_id=reader.client_id, consumer_group="G", mq_set=request.mq_set
        )


@pytest.mark.parametrize(
    ("start", "bodies"),
    [
        (StartFrom.FIRST, [b"0", b"1", b"2", b"new"]),
        (StartFrom.TIMESTAMP, [b"1", b"2", b"new"]),
        (StartFrom.LAST, [b"new"]),
    ],
)
@pytest.mark.parametrize("model", MessageModel)
async def test_a_new_group_starts_at_the_configured_place(
    network: FakeNetwork,
    broker: LockingBroker,
    tmp_path: Path,
    start: StartFrom,
    bodies: list[bytes],
    model: MessageModel,
) -> None:
    for n in range(3):
        broker.put(b"%d" % n)
    got = Got()
    reader = consumer(start_from=start, model=model, offset_directory=str(tmp_path))
    reader.subscribe("T", got, orderly=True)
    async with reader:
        await until(lambda: broker.held.get(("T", 0)))
        broker.put(b"new")
        await until(lambda: got[-1:] == [b"new"])
    assert got == bodies


async def test_a_handler_can_commit_and_roll_back_by_itself(
    network: FakeNetwork, broker: LockingBroker
) -> None:
    seen: list[bytes] = []
    rolled = False

    async def handler(message: ReceivedMessage) -> Consumed | None:
        nonlocal rolled
        seen.append(message.body)
        if message.body == b"2" and not rolled:
            rolled = True
            raise Rollback(0.01)
        if message.body == b"3":
            return Consumed.COMMIT
        return Consumed.HELD if message.body == b"4" else None

    for n in range(6):
        broker.put(b"%d" % n)
    reader = consumer()
    reader.subscribe("T", handler, orderly=True, auto_commit=False)
    async with reader:
        await until(lambda: b"5" in seen)
    assert seen == [b"0", b"1", b"2", b"0", b"1", b"2", b"3", b"4", b"5"]
    assert broker.offsets[("T", 0)] == 4  # the last two were never committed


@pytest.mark.parametrize("commits", [True, False])
async def test_plain_functions_commit_by_themselves_too(
    network: FakeNetwork, broker: LockingBroker, commits: bool
) -> None:
    seen: list[int] = []

    def handler(messages: Sequence[ReceivedMessage]) -> Consumed | None:
        seen.extend(message.queue_offset for message in messages)
        if seen == [0, 1]:
            raise ValueError("once")  # these two come again, others before stay handled
        return Consumed.COMMIT if commits and 3 in seen else None

    for n in range(4):
        broker.put(b"%d" % n)
    reader = consumer(batch_max=2)
    reader.subscribe_batches("T", handler, orderly=True, auto_commit=False)
    async with reader:
        await until(lambda: seen == [0, 1, 0, 1, 2, 3])
    assert broker.offsets.get(("T", 0), 0) == (4 if commits else 0)


async def test_only_orderly_handlers_commit_by_themselves() -> None:
    with pytest.raises(ConfigError, match="only orderly handlers"):
        consumer().subscribe("T", print, auto_commit=False)


@pytest.mark.parametrize("how", ["gone", "refuses"])
@in_virtual_time
async def test_locks_move_at_once_to_the_broker_that_acts_for_a_lost_one(
    use_network: Use, how: str
) -> None:
    first, acting = LockingBroker(), LockingBroker()
    routes = dict(ROUTES)
    network = use_network(network_of(routes, {A: first.serve, "a:2": acting.serve}))
    for broker in (first, acting):
        broker.put(b"0")
    got = Got()
    reader = consumer(route_seconds=3600)
    reader.subscribe("T", got, orderly=True)
    async with reader:
        await until(lambda: QUEUE in first.locked)
        acting.put(b"1")
        moved = {"a": "a:2"}
        routes |= {"T": route_of(moved, perm=4), RETRY_TOPIC: route_of(moved, queues=1, perm=4)}
        if how == "gone":
            network.cut(A)
        else:
            first.refuse[RequestCode.LOCK_BATCH_MQ] = ResponseCode.SERVICE_NOT_AVAILABLE
        await until(lambda: QUEUE in acting.locked)
