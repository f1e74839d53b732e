"""Every field of every request wrong in turn: a known code each time, and the port serves on."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from rocketpost.proxy.wire import messages
from rocketpost.proxy.wire.enums import ClientType, Code
from rocketpost.server.proxy.broker import ProxiedBroker

from .calls import Client, message, proxied_broker, receive_request

pytestmark = pytest.mark.slow

QUICK = (
    '{"grpcClientConsumerMinLongPollingTimeoutMillis": 1, '
    '"grpcClientConsumerMaxLongPollingTimeoutMillis": 20}'
)
HANDLE = "0 1700000000000 99999999999 0 0 broker-a 0 0 0"
TEXTS = ["", " ", "\x00", "\x02\x01", "../../x", "é😀", "x" * 5000, "%", "a b c d e f g h i", "-1"]
NUMBERS = [0, -1, 1, 99, 2**31 - 1, -(2**31)]
LONG_NUMBERS = [*NUMBERS, 2**63 - 1, -(2**63)]
SERVERS_FAULT = "see its log"


def good_requests() -> dict[str, Any]:
    """Return a request for each method that would be served."""
    queue = messages.MessageQueue(id=0)
    queue.topic.name, queue.broker.name = "topic", "broker-a"
    group, topic = messages.Resource(name="group"), messages.Resource(name="topic")
    endpoints = messages.Endpoints(scheme=1)
    endpoints.addresses.add(host="127.0.0.1", port=8081)
    ack = messages.AckMessageRequest(group=group, topic=topic)
    ack.entries.add(message_id="id", receipt_handle=HANDLE)
    full = message("topic", b"body", tag="tag", keys=["key"], properties={"a": "b"})
    for field in full.system_properties.DESCRIPTOR.fields:
        if field.message_type is not None and not field.is_repeated:
            getattr(full.system_properties, field.name).SetInParent()
    full.system_properties.ClearField("delivery_timestamp")
    receive = receive_request("topic", "group")
    change = messages.ChangeInvisibleDurationRequest(
        group=group, topic=topic, receipt_handle=HANDLE, message_id="id"
    )
    change.invisible_duration.seconds = 1
    made = {
        "QueryRoute": messages.QueryRouteRequest(topic=topic, endpoints=endpoints),
        "QueryAssignment": messages.QueryAssignmentRequest(
            topic=topic, group=group, endpoints=endpoints
        ),
        "Heartbeat": messages.HeartbeatRequest(group=group, client_type=3),
        "SendMessage": messages.SendMessageRequest(messages=[full]),
        "ReceiveMessage": receive,
        "AckMessage": ack,
        "ChangeInvisibleDuration": change,
        "ForwardMessageToDeadLetterQueue": messages.ForwardMessageToDeadLetterQueueRequest(
            group=group, topic=topic, receipt_handle=HANDLE, message_id="id"
        ),
        "EndTransaction": messages.EndTransactionRequest(
            topic=topic, message_id="id", transaction_id="YSAwIDAgeA==", resolution=1
        ),
        "RecallMessage": messages.RecallMessageRequest(topic=topic, recall_handle="eA=="),
        "PullMessage": messages.PullMessageRequest(group=group, message_queue=queue, batch_size=1),
        "UpdateOffset": messages.UpdateOffsetRequest(group=group, message_queue=queue),
        "GetOffset": messages.GetOffsetRequest(group=group, message_queue=queue),
        "QueryOffset": messages.QueryOffsetRequest(message_queue=queue),
        "NotifyClientTermination": messages.NotifyClientTerminationRequest(group=group),
    }
    assert made.keys() == {
        method.name
        for method in messages.POOL.FindServiceByName(messages.SERVICE).methods
        if method.name not in ("Telemetry", "SyncLiteSubscription")
    }
    return made


def spoiled(good: Any) -> Iterator[Any]:
    """Return copies of a message, each with one wrong or missing field."""
    for path, values in places(good):
        for value in values:
            copy = type(good)()
            copy.CopyFrom(good)
            if path(copy, value):
                yield copy


Spoil = Callable[[Any, Any], bool]


def places(
    found: Any, reach: Callable[[Any], Any] = lambda copy: copy
) -> Iterator[tuple[Spoil, Any]]:
    """Return, for every field at any depth, a function that sets it and the values to set."""
    for field in found.DESCRIPTOR.fields:
        name = field.name

        def clear(copy: Any, _: Any, name: str = name) -> bool:
            reach(copy).ClearField(name)
            return True

        yield clear, [None]
        value = getattr(found, name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            for key in TEXTS:
                yield _put(reach, name, key), [key]
        elif field.is_repeated:
            yield _repeat(reach, name), [2, 200]
            if field.message_type is not None and len(value):
                yield from places(value[0], lambda copy, name=name: getattr(reach(copy), name)[0])
        elif field.message_type is not None:
            if found.HasField(name):
                yield from places(value, lambda copy, name=name: getattr(reach(copy), name))
        else:
            yield _set(reach, name), _values(field)


def _values(field: Any) -> list[Any]:
    if field.type == field.TYPE_STRING:
        return TEXTS
    if field.type == field.TYPE_BYTES:
        return [b"", bytes(5 * 1024 * 1024)]
    if field.type == field.TYPE_BOOL:
        return [True, False]
    if field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
        return [0.0, -1.0, float("nan"), float("inf")]
    return NUMBERS if field.type in (field.TYPE_INT32, field.TYPE_ENUM) else LONG_NUMBERS


def _set(reach: Callable[[Any], Any], name: str) -> Spoil:
    def put(copy: Any, value: Any) -> bool:
        setattr(reach(copy), name, value)
        return True

    return put


def _put(reach: Callable[[Any], Any], name: str, key: str) -> Spoil:
    def put(copy: Any, value: Any) -> bool:
        getattr(reach(copy), name)[key] = value
        return True

    return put


def _repeat(reach: Callable[[Any], Any], name: str) -> Spoil:
    def repeat(copy: Any, count: Any) -> bool:
        items = getattr(reach(copy), name)
        if not len(items):
            return False
        for _ in range(count):
            items.append(items[0])
        return True

    return repeat


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[ProxiedBroker]:
    topics = {"topic": "MIXED"}
    async with proxied_broker(
        tmp_path / "store", proxy=QUICK, topics=topics, enableMixedMessageType="true"
    ) as running:
        yield running


async def _code(client: Client, name: str, request: Any) -> tuple[int, str]:
    if name in ("ReceiveMessage", "PullMessage"):
        read = messages.message_class(f"{name}Response").FromString
        answers = [read(data) async for data in client.stream(name, request, timeout=30)]
        assert answers[0].WhichOneof("content") == "status"
        return answers[0].status.code, answers[0].status.message
    answer = await client.call(name, request)
    return answer.status.code, answer.status.message


@pytest.mark.parametrize("name", good_requests())
async def test_a_wrong_field_gets_a_code_and_harms_nobody(broker: ProxiedBroker, name: str) -> None:
    good = good_requests()[name]
    async with Client(broker.grpc_port) as client, Client(broker.grpc_port) as bystander:
        await bystander.produce("topic")
        await client.consume("group", "topic")
        limit = asyncio.Semaphore(16)
        seen: set[int] = set()

        async def check(request: Any) -> None:
            async with limit:
                code, text = await _code(client, name, request)
            assert code in set(Code) - {Code.CODE_UNSPECIFIED}, request
            assert SERVERS_FAULT not in text, (request, text)
            assert text
            seen.add(code)

        requests = list(spoiled(good))
        assert len(requests) > 5
        await asyncio.gather(*map(check, [good, *requests]))
        # Heartbeats are judged by the settings that the client has sent, not by their own fields.
        assert len(seen) > 1 or name == "Heartbeat", "nothing was refused"
        # Another client's stream is as alive as before.
        await bystander.tell(
            messages.TelemetryCommand(settings=_settings(ClientType.PRODUCER, "publishing"))
        )
        assert (await bystander.hear()).status.code == Code.OK


def _settings(kind: ClientType, side: str) -> Any:
    settings = messages.Settings(client_type=kind)
    if side == "publishing":
        settings.publishing.topics.add(name="topic")
    else:
        settings.subscription.group.name = "group"
        entry = settings.subscription.subscriptions.add()
        entry.topic.name, entry.expression.expression = "topic", "*"
    settings.user_agent.hostname = "host"
    settings.access_point.addresses.add(host="h", port=1)
    settings.backoff_policy.exponential_backoff.initial.seconds = 1
    return settings


@pytest.mark.parametrize("side", ["publishing", "subscription"])
async def test_wrong_settings_end_their_own_stream_only(broker: ProxiedBroker, side: str) -> None:
    kind = ClientType.PRODUCER if side == "publishing" else ClientType.SIMPLE_CONSUMER
    limit = asyncio.Semaphore(8)
    ended: set[grpc.StatusCode] = set()

    async def check(settings: Any) -> bool:
        async with limit, Client(broker.grpc_port) as client:
            try:
                answer = await client.start(settings)
                assert answer.status.code in set(Code), settings
                assert SERVERS_FAULT not in answer.status.message, settings
                if answer.status.code == Code.OK:
                    return True
                await client.telemetry.read()
            except grpc.aio.AioRpcError as error:
                ended.add(error.code())
            return False

    outcomes = await asyncio.gather(*map(check, spoiled(_settings(kind, side))))
    assert set(outcomes) == {True, False}
    assert ended <= {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.INTERNAL}


async def test_bytes_that_are_no_message_and_calls_without_a_name(broker: ProxiedBroker) -> None:
    chance = random.Random(19)
    async with Client(broker.grpc_port) as client:
        for name in good_requests():
            for _ in range(5):
                data = chance.randbytes(chance.randrange(1, 60))
                code, text = await _code(client, name, data)
                assert code in set(Code) - {Code.CODE_UNSPECIFIED}
                assert SERVERS_FAULT not in text
        answer = await client.call("QueryRoute", messages.QueryRouteRequest(), metadata=())
        assert answer.status.code == Code.CLIENT_ID_REQUIRED
        for name in ("SyncLiteSubscription", "Nothing"):
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await client._channel.unary_unary(f"/{messages.SERVICE}/{name}")(b"")
            assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED
