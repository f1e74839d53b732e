"""Messages of every kind, from a gRPC producer to gRPC consumers."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rocketpost.model.group import GroupChange
from rocketpost.proxy.wire import messages
from rocketpost.proxy.wire.enums import ClientType, Code, Encoding, FilterType, MessageType
from rocketpost.server.proxy.broker import ProxiedBroker

from .calls import Client, message, proxied_broker

pytestmark = pytest.mark.slow

TOPICS = {
    "normal": "NORMAL",
    "fifo": "FIFO",
    "delay": "DELAY",
    "transaction": "TRANSACTION",
    "priority": "PRIORITY",
}


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[ProxiedBroker]:
    async with proxied_broker(
        tmp_path / "store",
        topics=TOPICS,
        transactionTimeOut="500",
        transactionCheckInterval="500",
        enablePropertyFilter="true",
        recallMessageEnable="true",
    ) as running:
        yield running


@pytest.fixture
async def client(broker: ProxiedBroker) -> AsyncIterator[Client]:
    async with Client(broker.grpc_port) as made:
        yield made


@pytest.fixture
async def consumer(broker: ProxiedBroker) -> AsyncIterator[Client]:
    async with Client(broker.grpc_port) as made:
        yield made


async def test_a_message_arrives_as_it_was_sent(client: Client, consumer: Client) -> None:
    await client.produce("normal")
    await consumer.consume("group", "normal")
    entry = await client.send(
        "normal",
        b"body",
        tag="tag",
        keys=["one", "two\u3000and\u00a0three"],
        properties={"a": "1", "é": "ü"},
        trace_context="trace",
        message_id="0102FC00000001",
    )
    assert entry.message_id == "0102FC00000001"
    (received,) = await consumer.receive("normal", "group")
    system = received.system_properties
    assert received.body == b"body"
    assert received.topic.name == "normal"
    assert dict(received.user_properties) == {"a": "1", "é": "ü"}
    assert (system.tag, list(system.keys)) == ("tag", ["one", "two\u3000and\u00a0three"])
    assert system.message_id == "0102FC00000001"
    assert system.trace_context == "trace"
    assert system.message_type == MessageType.NORMAL
    assert system.body_encoding == Encoding.IDENTITY
    assert system.body_digest.checksum == hashlib.md5(b"body").hexdigest().upper()
    assert system.delivery_attempt == 1
    assert system.queue_offset == entry.offset == 0
    assert await consumer.ack("group", received) == Code.OK
    assert await consumer.receive("normal", "group") == []


async def test_settings_come_back_with_the_values_of_the_server(
    broker: ProxiedBroker, client: Client, consumer: Client
) -> None:
    answer = await client.produce("normal")
    assert answer.status.code == Code.OK
    assert answer.settings.publishing.max_body_size == 4 * 1024 * 1024
    assert answer.settings.publishing.validate_message_type
    assert answer.settings.backoff_policy.max_attempts == 3
    assert answer.settings.backoff_policy.WhichOneof("strategy") == "exponential_backoff"
    _make_ordered(broker, "ordered")
    answer = await consumer.consume("ordered", "fifo", kind=ClientType.PUSH_CONSUMER)
    assert answer.settings.subscription.fifo
    assert answer.settings.subscription.long_polling_timeout.seconds == 20
    assert answer.settings.subscription.receive_batch_size == 32
    assert answer.settings.backoff_policy.max_attempts == 17
    assert len(answer.settings.backoff_policy.customized_backoff.next) == 18


async def test_a_route_has_the_queues_of_a_topic_at_the_address_of_the_client(
    client: Client,
) -> None:
    request = messages.QueryRouteRequest()
    request.topic.name = "fifo"
    request.endpoints.scheme = 3
    request.endpoints.addresses.add(host="proxy.example", port=80)
    answer = await client.call("QueryRoute", request)
    assert [queue.id for queue in answer.message_queues] == [0, 1, 2, 3]
    for queue in answer.message_queues:
        assert queue.broker.endpoints == request.endpoints
        assert (queue.broker.name, queue.broker.id) == ("broker-a", 0)
        assert list(queue.accept_message_types) == [MessageType.FIFO]
        assert queue.permission == 4
    request.topic.name = "unknown"
    answer = await client.call("QueryRoute", request)
    assert answer.status.code == Code.TOPIC_NOT_FOUND


async def test_a_topic_refuses_messages_of_other_types(client: Client) -> None:
    for topic, kind in TOPICS.items():
        wrong = {"message_group": "g"} if kind != "FIFO" else {}
        request = messages.SendMessageRequest(messages=[message(topic, b"body", **wrong)])
        answer = await client.call("SendMessage", request)
        assert answer.status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, topic
        assert kind in answer.status.message


async def test_messages_of_one_call_are_stored_together(client: Client, consumer: Client) -> None:
    await consumer.consume("group", "normal")
    batch = [message("normal", b"%d" % number) for number in range(10)]
    answer = await client.call("SendMessage", messages.SendMessageRequest(messages=batch))
    assert answer.status.code == Code.OK
    assert [entry.offset for entry in answer.entries] == list(range(10))
    received = await consumer.receive("normal", "group")
    assert [each.body for each in received] == [b"%d" % number for number in range(10)]
    ids = [each.system_properties.message_id for each in received]
    assert ids == [entry.message_id for entry in answer.entries]
    batch[3].topic.name = "fifo"
    answer = await client.call("SendMessage", messages.SendMessageRequest(messages=batch))
    assert answer.status.code == Code.MESSAGE_CORRUPTED


async def test_a_message_group_is_received_in_order(
    broker: ProxiedBroker, client: Client, consumer: Client
) -> None:
    _make_ordered(broker, "ordered")
    await consumer.consume("ordered", "fifo", kind=ClientType.PUSH_CONSUMER)
    for number in range(6):
        await client.send("fifo", b"%d" % number, message_group="group")
    options = {"auto_renew": True, "batch": 2, "attempt_id": "first"}
    first = await consumer.receive("fifo", "ordered", **options)
    assert [each.body for each in first] == [b"0", b"1"]
    # The queue is blocked for others; the same attempt gets the same messages.
    assert await consumer.receive("fifo", "ordered", **{**options, "attempt_id": "other"}) == []
    again = await consumer.receive("fifo", "ordered", **options)
    assert [each.body for each in again] == [b"0", b"1"]
    for received in again:
        assert await consumer.ack("ordered", received) == Code.OK
    rest = await consumer.receive("fifo", "ordered", auto_renew=True, attempt_id="second")
    assert [each.body for each in rest] == [b"2", b"3", b"4", b"5"]


async def test_a_delayed_message_arrives_later_unless_it_is_recalled(
    client: Client, consumer: Client
) -> None:
    await consumer.consume("group", "delay")
    recalled = await client.send("delay", b"recalled", deliver_in=2)
    await client.send("delay", b"kept", deliver_in=2)
    request = messages.RecallMessageRequest(recall_handle=recalled.recall_handle)
    request.topic.name = "delay"
    answer = await client.call("RecallMessage", request)
    assert answer.status.code == Code.OK
    assert answer.message_id == recalled.message_id
    received = await consumer.receive("delay", "group")
    assert [each.body for each in received] == [b"kept"]
    assert received[0].system_properties.message_type == MessageType.DELAY
    assert received[0].system_properties.HasField("delivery_timestamp")


async def test_a_transaction_is_committed_rolled_back_or_asked_about(
    client: Client, consumer: Client
) -> None:
    await client.produce("transaction")
    await consumer.consume("group", "transaction")
    kind = {"message_type": MessageType.TRANSACTION}
    committed = await client.send("transaction", b"committed", **kind)
    dropped = await client.send("transaction", b"dropped", **kind)
    assert await _end(client, committed.transaction_id, 1) == Code.OK
    assert await _end(client, dropped.transaction_id, 2) == Code.OK
    (received,) = await consumer.receive("transaction", "group")
    assert received.body == b"committed"
    await client.send("transaction", b"forgotten", **kind)
    async with asyncio.timeout(20):
        question = (await client.hear()).recover_orphaned_transaction_command
    assert question.message.body == b"forgotten"
    assert question.message.topic.name == "transaction"
    assert await _end(client, question.transaction_id, 1, source=2) == Code.OK
    (received,) = await consumer.receive("transaction", "group")
    assert received.body == b"forgotten"
    assert await _end(client, "nonsense", 1) == Code.INVALID_TRANSACTION_ID


async def test_filters_by_tag_and_by_expression(client: Client, consumer: Client) -> None:
    await consumer.consume("tags", "normal")
    for number, tag in enumerate(["a", "b", "c", "a"]):
        await client.send("normal", tag.encode(), tag=tag, properties={"n": str(number)})
    received = await consumer.receive("normal", "tags", expression="a || c")
    assert sorted(each.body for each in received) == [b"a", b"a", b"c"]
    sql = {"filter_type": FilterType.SQL, "expression": "n > 1"}
    received = await consumer.receive("normal", "sql", **sql)
    assert sorted(each.user_properties["n"] for each in received) == ["2", "3"]
    sql["expression"] = "n >"
    code, _ = await consumer.receive_raw("normal", "sql", **sql)
    assert code == Code.ILLEGAL_FILTER_EXPRESSION


async def test_a_message_comes_again_after_its_time_and_then_becomes_a_dead_letter(
    broker: ProxiedBroker, client: Client, consumer: Client
) -> None:
    broker._context.tables.groups.update(GroupChange(group_name="group", retry_max_times=1))
    await consumer.consume("group", "normal")
    await client.send("normal", b"body")
    (first,) = await consumer.receive("normal", "group")
    changed = await consumer.change("group", first, 0)
    assert changed.status.code == Code.OK
    assert changed.receipt_handle != first.system_properties.receipt_handle
    assert await consumer.ack("group", first) in (Code.OK, Code.INVALID_RECEIPT_HANDLE)
    (second,) = await consumer.receive("normal", "group", poll=10)
    assert second.system_properties.delivery_attempt == 2
    await consumer.change("group", second, 0)
    assert await consumer.receive("normal", "group", poll=5) == []
    store = broker._context.store
    assert store.queue("%DLQ%group", 0).end == 1  # type: ignore[union-attr]


async def test_a_dead_letter_on_request(
    broker: ProxiedBroker, client: Client, consumer: Client
) -> None:
    await consumer.consume("group", "normal")
    await client.send("normal", b"first")
    await client.send("normal", b"second")
    first, second = await consumer.receive("normal", "group")
    assert await _forward(consumer, first) == Code.OK
    forged = messages.Message()
    forged.CopyFrom(second)
    words = second.system_properties.receipt_handle.split(" ")
    words[-1] = first.system_properties.receipt_handle.split(" ")[-1]
    forged.system_properties.receipt_handle = " ".join(words)
    assert await _forward(consumer, forged) == Code.INVALID_RECEIPT_HANDLE
    store = broker._context.store
    assert store.queue("%DLQ%group", 0).end == 1  # type: ignore[union-attr]


async def test_an_assignment_is_one_queue_of_a_broker_or_all_in_order(
    broker: ProxiedBroker, client: Client
) -> None:
    _make_ordered(broker, "ordered")
    for group, ids in (("any", [-1]), ("ordered", [0, 1, 2, 3])):
        request = messages.QueryAssignmentRequest()
        request.topic.name, request.group.name = "fifo", group
        request.endpoints.addresses.add(host="127.0.0.1", port=8081)
        answer = await client.call("QueryAssignment", request)
        assert [each.message_queue.id for each in answer.assignments] == ids


async def test_priorities(client: Client, consumer: Client) -> None:
    await consumer.consume("group", "priority")
    for level in (0, 2, 1):
        await client.send("priority", b"%d" % level, priority=level)
    received = await consumer.receive("priority", "group")
    assert [each.body for each in received] == [b"2", b"1", b"0"]
    assert received[0].system_properties.priority == 2
    assert received[0].system_properties.message_type == MessageType.PRIORITY


async def _end(client: Client, transaction_id: str, resolution: int, source: int = 1) -> int:
    request = messages.EndTransactionRequest(
        transaction_id=transaction_id, resolution=resolution, source=source
    )
    request.topic.name = "transaction"
    code: int = (await client.call("EndTransaction", request)).status.code
    return code


async def _forward(client: Client, received: object) -> int:
    request = messages.ForwardMessageToDeadLetterQueueRequest(
        topic=received.topic,  # type: ignore[attr-defined]
        receipt_handle=received.system_properties.receipt_handle,  # type: ignore[attr-defined]
        message_id=received.system_properties.message_id,  # type: ignore[attr-defined]
    )
    request.group.name = "group"
    code: int = (await client.call("ForwardMessageToDeadLetterQueue", request)).status.code
    return code


def _make_ordered(broker: ProxiedBroker, group: str) -> None:
    broker._context.tables.groups.update(
        GroupChange(group_name=group, consume_message_orderly=True)
    )


async def test_a_consumer_that_pulls_keeps_its_own_offsets(client: Client) -> None:
    for number in range(8):
        await client.send("normal", b"%d" % number)
    queue = messages.MessageQueue(id=1)
    queue.topic.name, queue.broker.name = "normal", "broker-a"
    found, next_offset = await _pull(client, queue, 0)
    assert len(found) == next_offset == 2
    found, again = await _pull(client, queue, next_offset)
    assert (found, again) == ([], next_offset)
    request = messages.GetOffsetRequest(message_queue=queue)
    request.group.name = "pulling"
    assert (await client.call("GetOffset", request)).status.code == Code.OFFSET_NOT_FOUND
    update = messages.UpdateOffsetRequest(message_queue=queue, group=request.group, offset=1)
    assert (await client.call("UpdateOffset", update)).status.code == Code.OK
    answer = await client.call("GetOffset", request)
    assert (answer.status.code, answer.offset) == (Code.OK, 1)
    for policy, offset in ((0, 0), (1, 2), (2, 0)):
        ask = messages.QueryOffsetRequest(message_queue=queue, query_offset_policy=policy)
        ask.timestamp.seconds = 1
        answer = await client.call("QueryOffset", ask)
        assert (answer.status.code, answer.offset) == (Code.OK, offset)
    queue.id = 4
    answer = await client.call("GetOffset", messages.GetOffsetRequest(message_queue=queue))
    assert answer.status.code == Code.BAD_REQUEST


async def _pull(client: Client, queue: object, offset: int) -> tuple[list[bytes], int]:
    request = messages.PullMessageRequest(message_queue=queue, offset=offset, batch_size=32)
    request.group.name = "pulling"
    read = messages.PullMessageResponse.FromString
    answers = [read(data) async for data in client.stream("PullMessage", request)]
    assert answers[0].WhichOneof("content") == "status"
    found = [each.message.body for each in answers[1:-1]]
    assert answers[0].status.code == (Code.OK if found else Code.MESSAGE_NOT_FOUND)
    return found, answers[-1].next_offset
