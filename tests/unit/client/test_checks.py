"""Wrong arguments are refused at the call that has them, in both faces of the SDK."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from client.brokers import NAMESRV, QueueBroker, network_of, route_of
from client.network import FakeNetwork
from rocketpost.client import (
    Average,
    ClientConfig,
    ConfigError,
    LitePullConsumer,
    LitePullConsumerConfig,
    Message,
    MessageQueue,
    MessageRefused,
    Producer,
    ProducerConfig,
    PullConsumer,
    PushConsumer,
    PushConsumerConfig,
    Retry,
    SimpleConsumer,
    TransactionProducer,
    blocking,
)

A = "a:1"
Q = MessageQueue("a", 0, "T")
OTHER = MessageQueue("a", 0, "Other")
M = Message("T", b"x")
Use = Callable[[FakeNetwork], FakeNetwork]


def handle(message: object) -> None:
    """Do nothing with a message."""


async def handle_soon(message: object) -> None:
    """Do nothing with a message, later."""


async def yielding(message: object) -> AsyncIterator[int]:
    yield 1


def generating(message: object) -> Iterator[int]:
    yield 1


def nothing() -> None:
    """Take no argument."""


async def book(message: Message, transaction_id: str) -> None:
    """Book nothing."""


SUBSCRIPTIONS: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
    (("T", handle), {"tags": "a", "sql": "b = 1"}, "tags or sql, not both"),
    (("T", "notcallable"), {}, "must be a function"),
    (("T", nothing), {}, "must take one argument"),
    (("T", yielding), {}, "must return, not yield"),
    (("T", generating), {}, "must return, not yield"),
    (("a topic", handle), {}, "characters other than"),
    ((7, handle), {}, "topic must be a string"),
    (("T", handle), {"tags": 7}, "tags must be a string"),
    (("T", handle), {"tags": None}, "tags must be a string"),
    (("T", handle), {"sql": 7}, "sql must be a string"),
    (("T", handle), {"sql": "a >"}, "at character"),
    (("T", handle), {"auto_commit": False}, "only orderly handlers"),
]


@pytest.mark.parametrize(("arguments", "options", "said"), SUBSCRIPTIONS)
@pytest.mark.parametrize("kind", [PushConsumer, blocking.PushConsumer])
@pytest.mark.parametrize("method", ["subscribe", "subscribe_batches"])
def test_subscriptions(
    kind: type[Any], method: str, arguments: tuple[Any, ...], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        getattr(kind("G"), method)(*arguments, **options)


def test_good_subscriptions() -> None:
    class Callable_:  # noqa: N801
        async def __call__(self, message: object) -> None:
            return None

    for kind in (PushConsumer, blocking.PushConsumer):
        consumer: Any = kind("G")
        for good in (handle, handle_soon, Callable_(), print, lambda message, more=1: None):
            consumer.subscribe("T", good, tags="a || b")
        consumer.subscribe("T", handle, sql="a > 1")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tags": "a", "sql": "b = 1"}, "not both"),
        ({"sql": "a >"}, "at character"),
        ({"tags": 5}, "must be a string"),
    ],
)
@pytest.mark.parametrize("kind", [LitePullConsumer, blocking.LitePullConsumer])
def test_subscriptions_of_lite_pull_consumers(
    kind: type[Any], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        kind("G").subscribe("T", **options)


KINDS: dict[str, dict[str, Any]] = {
    "Producer": {},
    "TransactionProducer": {"checker": handle},
    "PullConsumer": {},
    "LitePullConsumer": {},
    "PushConsumer": {},
    "SimpleConsumer": {},
}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("face", ["async", "blocking"])
def test_every_client_refuses_wrong_names_and_settings(name: str, face: str) -> None:
    import rocketpost.client as public

    kind: Any = getattr(public if face == "async" else blocking, name)
    others = KINDS[name]
    for group in (7, "", "a group", "DEFAULT_PRODUCER"):
        with pytest.raises(ConfigError):
            kind(group, **others)
    for servers in ("localhost", "localhost:x", "host:99999", ":9876"):
        with pytest.raises(ConfigError, match="is not host:port"):
            kind("G", name_servers=servers, **others)
    with pytest.raises(ConfigError, match="must be"):
        kind("G", name_servers=9876, **others)
    wrong = ProducerConfig() if "Consumer" in name else PushConsumerConfig()
    if name != "SimpleConsumer":
        with pytest.raises(ConfigError, match="config must be a"):
            kind("G", config=wrong, **others)
    kind("G", name_servers="http://endpoint:8080;[::1]:9876", **others)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (ClientConfig, {"call_timeout": "3"}),
        (ClientConfig, {"call_timeout": float("nan")}),
        (ClientConfig, {"instance_name": None}),
        (ClientConfig, {"name_servers": ["a:1"]}),
        (ProducerConfig, {"retries": 1.5}),
        (ProducerConfig, {"retries": True}),
        (ProducerConfig, {"compression": "ZLIB"}),
        (ProducerConfig, {"auto_batch": 1}),
        (PushConsumerConfig, {"start_from": "CONSUME_FROM_FIRST_OFFSET"}),
        (PushConsumerConfig, {"concurrency": "20"}),
        (LitePullConsumerConfig, {"model": "BROADCASTING"}),
    ],
)
def test_settings_have_types(kind: type[Any], options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(ConfigError, match=f"{name} must be"):
        kind(**options)


def test_the_rest_of_the_constructors() -> None:
    for face in (PushConsumer, blocking.PushConsumer, LitePullConsumer, blocking.LitePullConsumer):
        kind: Any = face
        for strategy, said in ((Average, r"Average\(\)"), (print, "needs a name"), (7, "function")):
            with pytest.raises(ConfigError, match=said):
                kind("G", strategy=strategy)
    for face in (TransactionProducer, blocking.TransactionProducer):
        kind = face
        with pytest.raises(ConfigError, match="checker must be a function"):
            kind("G", checker="no")
        with pytest.raises(ConfigError, match="not the text"):
            kind("G", checker=handle, topics="Orders")
        with pytest.raises(MessageRefused):
            kind("G", checker=handle, topics=["a topic"])
    for level in (-2, 19, "3"):
        with pytest.raises(ConfigError):
            Retry(level)  # type: ignore[arg-type]


SENDS: list[tuple[Any, dict[str, Any], str]] = [
    ("text", {}, "a Message can be sent"),
    (None, {}, "a Message can be sent"),
    (Message("T", "text"), {}, "not bytes"),  # type: ignore[arg-type]
    (Message(7, b"x"), {}, "topic must be a string"),  # type: ignore[arg-type]
    (M, {"queue": "a"}, "must be a MessageQueue"),
    (M, {"queue": OTHER}, "one of Other"),
    (M, {"selector": "a"}, "must be a function"),
    (M, {"selector": handle}, "must take 2 arguments"),
    (M, {"selector": book}, "plain function"),
    (M, {"queue": Q, "selector": lambda queues, message: Q}, "not both"),
    (M, {"selector": lambda queues, message: 0}, "selector returns must be"),
    (M, {"timeout": 0}, "must be over 0"),
    (M, {"timeout": -1}, "must be over 0"),
    (M, {"timeout": "3"}, "number of seconds"),
    (M, {"sequence": 1}, "idempotent=True"),
]


def network(use_network: Use) -> FakeNetwork:
    return use_network(network_of({"T": route_of({"a": A})}, {A: QueueBroker().serve}))


@pytest.mark.parametrize(("message", "options", "said"), SENDS)
def test_sends(use_network: Use, message: Any, options: dict[str, Any], said: str) -> None:
    network(use_network)
    errors = (ConfigError, MessageRefused)

    async def main() -> None:
        async with Producer("G", name_servers=NAMESRV) as producer:
            for send in (producer.send, producer.send_soon):
                with pytest.raises(errors, match=said):
                    await send(message, **options)

    asyncio.run(main())
    with blocking.Producer("G", name_servers=NAMESRV) as producer:
        with pytest.raises(errors, match=said):
            producer.send(message, **options)
        with pytest.raises(errors, match=said):
            producer.send_soon(message, **options).result()


def test_batches_and_transactions(use_network: Use) -> None:
    network(use_network)
    with blocking.Producer("G", name_servers=NAMESRV) as producer:
        for wrong in (M, [b"x"], [M, "y"]):
            with pytest.raises(MessageRefused):
                producer.send_batch(wrong)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="timeout"):
            producer.send_batch([M], timeout=0)
    with blocking.TransactionProducer("G", checker=handle, name_servers=NAMESRV) as booking:
        with pytest.raises(ConfigError, match="plain function here"):
            booking.send_in_transaction(M, book)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="must take 2"):
            booking.send_in_transaction(M, handle)  # type: ignore[arg-type, misc]


CALLS: list[tuple[type[Any], str, tuple[Any, ...], dict[str, Any]]] = [
    (PullConsumer, "pull", ("T", 0), {}),
    (PullConsumer, "pull", (Q, -1), {}),
    (PullConsumer, "pull", (Q, "0"), {}),
    (PullConsumer, "pull", (Q, 0), {"count_max": 0}),
    (PullConsumer, "pull", (Q, 0), {"hold_seconds": 5}),
    (PullConsumer, "pull", (Q, 0), {"hold": True, "hold_seconds": -5}),
    (PullConsumer, "pull", (Q, 0), {"timeout": 0}),
    (PullConsumer, "pull", (Q, 0), {"tags": "a", "sql": "a = 1"}),
    (PullConsumer, "min_offset", ("T",), {}),
    (PullConsumer, "commit_offset", (Q, -1), {}),
    (SimpleConsumer, "receive", (0,), {}),
    (SimpleConsumer, "receive", (33,), {}),
    (SimpleConsumer, "receive", (), {"await_seconds": -1}),
    (SimpleConsumer, "receive", (), {"invisible_seconds": "30"}),
    (SimpleConsumer, "ack", (M,), {}),
    (SimpleConsumer, "change_invisible_duration", (M, 5), {}),
    (SimpleConsumer, "subscribe", ("T", "a"), {"sql": "a = 1"}),
    (LitePullConsumer, "poll", (-1,), {}),
    (LitePullConsumer, "poll", ("5",), {}),
    (LitePullConsumer, "assign", (Q,), {}),
    (LitePullConsumer, "assign", (["T"],), {}),
    (LitePullConsumer, "assign", ([],), {}),
    (LitePullConsumer, "seek", (Q, -1), {}),
    (LitePullConsumer, "seek", ("T", 1), {}),
    (LitePullConsumer, "commit", ({Q: -1},), {}),
    (LitePullConsumer, "pause", (Q,), {}),
    (LitePullConsumer, "resume", (["T"],), {}),
]


@pytest.mark.parametrize(("kind", "method", "arguments", "options"), CALLS)
def test_calls_of_consumers(
    use_network: Use,
    kind: type[Any],
    method: str,
    arguments: tuple[Any, ...],
    options: dict[str, Any],
) -> None:
    network(use_network)

    async def main() -> None:
        async with kind("G", name_servers=NAMESRV) as consumer:

            async def call() -> None:
                result = getattr(consumer, method)(*arguments, **options)
                if inspect.isawaitable(result):
                    await result

            with pytest.raises(ConfigError):
                await call()

    asyncio.run(main())
