"""Every field of every request wrong in turn: a known code each time, and the port serves on."""

from __future__ import annotations

import asyncio
import base64
import json
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from rocketpost.proxy.settings import read_proxy_settings
from rocketpost.proxy.wire import messages
from rocketpost.proxy.wire.enums import ClientType, Code, MessageType
from rocketpost.server.namesrv.process import NameServer, NamesrvConfig
from rocketpost.server.proxy.process import ProxyServer

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
SEED = 19
BYTES_MAX = 2**26
"""Most bytes of a request here; the library itself refuses those over 130 MiB."""
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


def variants(name: str) -> list[Any]:
    """Return requests for a method that take different ways through the server."""
    good = good_requests()[name]
    made = [good]
    if name == "SendMessage":
        for system in (
            {"deliver_in": 60},
            {"message_type": MessageType.TRANSACTION},
            {"message_group": "g"},
            {"priority": 3},
        ):
            made.append(messages.SendMessageRequest(messages=[message("topic", b"body", **system)]))
        half = made[2].messages[0].system_properties
        half.orphaned_transaction_recovery_duration.seconds = 10
        made.append(messages.SendMessageRequest(messages=[made[3].messages[0]] * 2))
    if name == "ReceiveMessage":
        made.append(receive_request("topic", "group", auto_renew=True))
    if name == "QueryOffset":
        timed = messages.QueryOffsetRequest(message_queue=good.message_queue)
        timed.query_offset_policy = 2
        timed.timestamp.seconds = 1_700_000_000
        made.append(timed)
    return [*made, filled(good)]


def filled(found: Any) -> Any:
    """Return a copy of a message that has something in every field, at any depth."""
    copy = type(found)()
    copy.CopyFrom(found)
    for field in copy.DESCRIPTOR.fields:
        name = field.name
        if field.is_repeated:
            if not len(getattr(copy, name)):
                _add_one(getattr(copy, name), field)
            if field.message_type is not None and not field.message_type.GetOptions().map_entry:
                first = getattr(copy, name)[0]
                first.CopyFrom(filled(first))
        elif field.containing_oneof is not None and copy.WhichOneof(field.containing_oneof.name):
            continue
        elif field.message_type is not None:
            getattr(copy, name).CopyFrom(filled(getattr(copy, name)))
        elif not getattr(copy, name):
            setattr(copy, name, _values(field)[-1] if field.type != field.TYPE_STRING else "x")
    return copy


def _add_one(items: Any, field: Any) -> None:
    if field.message_type is None:
        items.append("x" if field.type == field.TYPE_STRING else 1)
    elif field.message_type.GetOptions().map_entry:
        items["x"] = "y"
    else:
        items.add()


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
        if not len(items) or _size(items[0]) * count > BYTES_MAX:
            return False
        for _ in range(count):
            items.append(items[0])
        return True

    return repeat


def _size(item: Any) -> int:
    return int(item.ByteSize()) if hasattr(item, "ByteSize") else 1


@pytest.fixture(params=["in the broker", "apart"])
async def port(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[int]:
    """The port of a broker, or of a proxy in front of it."""
    async with _serving(tmp_path, is_apart=request.param == "apart") as found:
        yield found


@asynccontextmanager
async def _serving(directory: Path, *, is_apart: bool) -> AsyncIterator[int]:
    topics = {"topic": "MIXED"}
    if not is_apart:
        async with proxied_broker(
            directory / "store", proxy=QUICK, topics=topics, enableMixedMessageType="true"
        ) as running:
            yield running.grpc_port
        return
    config = NamesrvConfig(
        listen_port=0, bind_address="127.0.0.1", kv_config_path=str(directory / "kv.json")
    )
    async with AsyncExitStack() as stack:
        name_server = NameServer(config, tls={})
        await name_server.start()
        stack.push_async_callback(name_server.stop)
        address = f"127.0.0.1:{name_server.port}"
        broker = await stack.enter_async_context(
            proxied_broker(
                directory / "store",
                topics=topics,
                enableMixedMessageType="true",
                namesrvAddr=address,
            )
        )
        await broker._term.registration.wait_registered()  # type: ignore[attr-defined]
        settings = {"grpcServerPort": 0, "remotingListenPort": 0, "bindAddress": "127.0.0.1"}
        settings |= {"namesrvAddr": address, **json.loads(QUICK)}
        proxy = ProxyServer(read_proxy_settings(json.dumps(settings))[0])
        await proxy.start()
        stack.push_async_callback(proxy.stop)
        yield int(proxy.address.rpartition(":")[2])


async def _code(client: Client, name: str, request: Any) -> tuple[int, str]:
    if name in ("ReceiveMessage", "PullMessage"):
        read = messages.message_class(f"{name}Response").FromString
        answers = [read(data) async for data in client.stream(name, request, timeout=30)]
        assert answers[0].WhichOneof("content") == "status"
        return answers[0].status.code, answers[0].status.message
    answer = await client.call(name, request)
    return answer.status.code, answer.status.message


@pytest.mark.parametrize("name", good_requests())
async def test_a_wrong_field_gets_a_code_and_harms_nobody(port: int, name: str) -> None:
    async with Client(port) as client, Client(port) as bystander:
        await bystander.produce("topic")
        await client.consume("group", "topic")
        requests = [each for good in variants(name) for each in (good, *spoiled(good))]
        assert len(requests) > 5
        seen = await _judge_all(client, name, requests)
        # Heartbeats are judged by the settings that the client has sent, not by their own fields.
        assert len(seen) > 1 or name == "Heartbeat", "nothing was refused"
        # Another client's stream is as alive as before.
        await bystander.tell(
            messages.TelemetryCommand(settings=_settings(ClientType.PRODUCER, "publishing"))
        )
        heard = await bystander.hear()
        while heard.HasField("recover_orphaned_transaction_command"):
            heard = await bystander.hear()  # a good request was half of a transaction
        assert heard.status.code == Code.OK


async def _judge_all(client: Client, name: str, requests: list[Any]) -> set[int]:
    """Make calls; check that each gets a code and a text for users. Return the codes."""
    limit = asyncio.Semaphore(16)
    seen: set[int] = set()

    async def check(request: Any) -> None:
        async with limit:
            code, text = await _code(client, name, request)
        assert code in set(Code) - {Code.CODE_UNSPECIFIED}, request
        assert SERVERS_FAULT not in text, (request, text)
        assert text
        seen.add(code)

    await asyncio.gather(*map(check, requests))
    return seen


def test_no_field_of_a_request_is_left_out() -> None:
    reached = {field for name in good_requests() for good in variants(name) for field in _in(good)}
    wanted: set[str] = set()
    for method in messages.POOL.FindServiceByName(messages.SERVICE).methods:
        if method.name in good_requests():
            wanted |= _fields(method.input_type)
    assert wanted - reached == set()


def _in(found: Any) -> Iterator[str]:
    """Return the fields that ``places`` finds in a message."""
    for field in found.DESCRIPTOR.fields:
        yield field.full_name
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        if field.is_repeated:
            yield from (name for each in getattr(found, field.name)[:1] for name in _in(each))
        elif found.HasField(field.name):
            yield from _in(getattr(found, field.name))


def _fields(kind: Any) -> set[str]:
    found = {field.full_name for field in kind.fields}
    for field in kind.fields:
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            found |= _fields(field.message_type)
    return found


@pytest.mark.parametrize("name", good_requests())
async def test_several_wrong_fields_at_once(port: int, name: str) -> None:
    chance = random.Random(f"{SEED} {name}")
    requests = []
    for good in variants(name):
        found = list(places(good))
        for _ in range(25):
            copy = type(good)()
            copy.CopyFrom(good)
            for spoil, values in chance.sample(found, min(3, len(found))):
                try:
                    spoil(copy, chance.choice(values))
                except IndexError:
                    continue  # another one has removed the message that it is about
            requests.append(copy)
    async with Client(port) as client:
        await client.consume("group", "topic")
        await _judge_all(client, name, requests)


def _handles() -> dict[str, list[str]]:
    """Return texts that are almost handles, by the method that reads them."""
    words = HANDLE.split(" ")
    receipts = [
        " ".join([*words[:at], text, *words[at + 1 :]])
        for at in range(len(words))
        for text in (*TEXTS, "9" * 30, "1.5", "99999999999999999", "broker-b")
    ]
    receipts += [" ".join(words[:count]) for count in range(len(words))]
    found = {"receipt_handle": receipts}
    for field, texts in {
        "transaction_id": ["broker-a", "0", "0", "id"],
        "recall_handle": ["v1", "topic", "broker-a", "1900000000000", "id"],
    }.items():
        found[field] = []
        for at in range(len(texts)):
            for text in (*TEXTS, "9" * 30, "\udc80"):
                data = " ".join([*texts[:at], text, *texts[at + 1 :]]).encode(
                    "utf-8", "surrogateescape"
                )
                found[field].append(base64.urlsafe_b64encode(data).decode())
        whole = base64.urlsafe_b64encode(" ".join(texts).encode()).decode()
        found[field] += [whole, *(whole[:size] for size in range(len(whole)))]
    return found


@pytest.mark.parametrize("field", _handles())
async def test_handles_that_are_almost_right(port: int, field: str) -> None:
    async with Client(port) as client:
        await client.consume("group", "topic")
        for name, good in good_requests().items():
            owner = good.entries[0] if name == "AckMessage" else good
            if field not in owner.DESCRIPTOR.fields_by_name:
                continue
            requests = []
            for text in _handles()[field]:
                setattr(owner, field, text)
                copy = type(good)()
                copy.CopyFrom(good)
                requests.append(copy)
            await _judge_all(client, name, requests)


async def test_headers_that_are_wrong(port: int) -> None:
    """A client may call itself anything; no header ends a call with an error of gRPC."""
    request = good_requests()["QueryRoute"]
    values: list[Any] = ["", " ", "x" * 2000, "%", "../x", "\x7e", "-1", "GO,RUST", "v2 v3"]
    names = ("client-id", "language", "client-version", "date-time", "namespace", "session-token")
    async with Client(port) as client:
        for name in (*(f"x-mq-{each}" for each in names), "authorization", "x-mq-bytes-bin"):
            for value in values:
                wrong = value.encode() if name.endswith("-bin") else value
                headers = {"x-mq-client-id": client.client_id, name: wrong}
                answer = await client.call("QueryRoute", request, metadata=tuple(headers.items()))
                refused = name == "x-mq-client-id" and not 0 < len(value.strip()) <= 1024
                wanted = Code.CLIENT_ID_REQUIRED if refused else Code.OK
                assert answer.status.code == wanted, headers


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
async def test_wrong_settings_end_their_own_stream_only(port: int, side: str) -> None:
    kind = ClientType.PRODUCER if side == "publishing" else ClientType.SIMPLE_CONSUMER
    limit = asyncio.Semaphore(8)
    ended: set[grpc.StatusCode] = set()

    async def check(settings: Any) -> bool:
        async with limit, Client(port) as client:
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


async def test_bytes_that_are_no_message_and_calls_without_a_name(port: int) -> None:
    chance = random.Random(19)
    async with Client(port) as client:
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


@pytest.mark.long
async def test_commands_of_clients_that_nobody_asked_for(port: int) -> None:
    """A stream takes every command in every form; wrong bytes end that stream alone."""
    async with Client(port) as client, Client(port) as bystander:
        await client.produce("topic")
        await bystander.produce("topic")
        settings = messages.TelemetryCommand(settings=_settings(ClientType.PRODUCER, "publishing"))
        kinds = [
            field.name
            for field in messages.TelemetryCommand.DESCRIPTOR.oneofs_by_name["command"].fields
        ]
        for kind in kinds:
            if kind == "settings":
                continue
            command = messages.TelemetryCommand()
            getattr(command, kind).SetInParent()
            getattr(command, kind).CopyFrom(filled(getattr(command, kind)))
            command.status.code = Code.OK
            for wrong in (command, *spoiled(command)):
                if wrong.ByteSize() < 100_000:
                    await client.tell(wrong)
        await client.tell(settings)
        assert (await client.hear()).status.code == Code.OK
        await client.telemetry.write(b"\xff\xff\xff")
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await client.telemetry.read()
        assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        await bystander.tell(settings)
        assert (await bystander.hear()).status.code == Code.OK
