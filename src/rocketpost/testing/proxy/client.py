"""A client of the gRPC port that says exactly what a test tells it."""

from __future__ import annotations

import itertools
import time
from typing import Any, Self

import grpc

from rocketpost.proxy.wire import messages
from rocketpost.proxy.wire.enums import ClientType, Code, FilterType

_IDS = itertools.count(1)
SECONDS = 10.0


class Client:
    """One client of a proxy; with ``trusted`` roots it speaks TLS."""

    def __init__(
        self,
        port: int,
        *,
        client_id: str = "",
        language: str = "PYTHON",
        headers: Any = (),
        trusted: bytes = b"",
    ) -> None:
        self.client_id = client_id or f"client-{next(_IDS)}"
        self._headers = (("x-mq-client-id", self.client_id), ("x-mq-language", language), *headers)
        target = f"127.0.0.1:{port}"
        if trusted:
            credentials = grpc.ssl_channel_credentials(trusted)
            self._channel = grpc.aio.secure_channel(target, credentials)
        else:
            self._channel = grpc.aio.insecure_channel(target)
        self.telemetry: Any = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        if self.telemetry is not None:
            self.telemetry.cancel()
        await self._channel.close(None)

    async def call(self, name: str, request: Any, **options: Any) -> Any:
        """Make a call with one answer."""
        answer = messages.message_class(f"{name}Response").FromString
        data = request if isinstance(request, bytes) else request.SerializeToString()
        method = self._channel.unary_unary(f"/{messages.SERVICE}/{name}")
        metadata = options.pop("metadata", self._headers)
        return answer(await method(data, metadata=metadata, timeout=SECONDS, **options))

    def stream(self, name: str, request: Any, *, timeout: float = SECONDS) -> Any:
        """Make a call with several answers; return the running call."""
        data = request if isinstance(request, bytes) else request.SerializeToString()
        method = self._channel.unary_stream(f"/{messages.SERVICE}/{name}")
        return method(data, metadata=self._headers, timeout=timeout)

    async def start(self, settings: Any) -> Any:
        """Open the telemetry stream, send settings, and return the answer."""
        method = self._channel.stream_stream(f"/{messages.SERVICE}/Telemetry")
        self.telemetry = method(metadata=self._headers)
        await self.tell(messages.TelemetryCommand(settings=settings))
        return await self.hear()

    async def tell(self, command: Any) -> None:
        """Send a command."""
        await self.telemetry.write(command.SerializeToString())

    async def hear(self) -> Any:
        """Return the next command of the server."""
        data = await self.telemetry.read()
        assert data is not grpc.aio.EOF, "the server has ended the stream"
        return messages.TelemetryCommand.FromString(data)

    # Shorthands.

    async def produce(self, *topics: str) -> Any:
        """Start as a producer."""
        settings = messages.Settings(client_type=ClientType.PRODUCER)
        settings.publishing.SetInParent()
        for topic in topics:
            settings.publishing.topics.add(name=topic)
        return await self.start(settings)

    async def consume(self, group: str, *topics: str, kind: ClientType | None = None) -> Any:
        """Start as a simple consumer, or as another kind."""
        settings = messages.Settings(client_type=kind or ClientType.SIMPLE_CONSUMER)
        settings.subscription.group.name = group
        for topic in topics:
            entry = settings.subscription.subscriptions.add()
            entry.topic.name = topic
            entry.expression.expression = "*"
        return await self.start(settings)

    async def send(self, topic: str, body: bytes, **system: Any) -> Any:
        """Send a message; return its entry of the answer."""
        request = messages.SendMessageRequest(messages=[message(topic, body, **system)])
        answer = await self.call("SendMessage", request)
        assert answer.status.code == Code.OK, answer.status
        assert len(answer.entries) == 1
        return answer.entries[0]

    async def receive(self, topic: str, group: str, **options: Any) -> list[Any]:
        """Receive messages; return them after checking the form of the answer."""
        code, found = await self.receive_raw(topic, group, **options)
        assert code in (Code.OK, Code.MESSAGE_NOT_FOUND), code
        assert bool(found) == (code == Code.OK)
        return found

    async def receive_raw(self, topic: str, group: str, **options: Any) -> tuple[int, list[Any]]:
        """Receive messages; return the code of the answer and the messages."""
        answers = await self.answers(receive_request(topic, group, **options))
        kinds = [answer.WhichOneof("content") for answer in answers]
        assert kinds == ["status", *["message"] * (len(kinds) - 2), "delivery_timestamp"]
        return answers[0].status.code, [answer.message for answer in answers[1:-1]]

    async def answers(self, request: Any) -> list[Any]:
        """Return all answers to a ReceiveMessage."""
        read = messages.ReceiveMessageResponse.FromString
        return [read(data) async for data in self.stream("ReceiveMessage", request, timeout=30)]

    async def ack(self, group: str, received: Any) -> int:
        """Acknowledge a message; return the code of the answer."""
        request = messages.AckMessageRequest(topic=received.topic)
        request.group.name = group
        system = received.system_properties
        request.entries.add(message_id=system.message_id, receipt_handle=system.receipt_handle)
        answer = await self.call("AckMessage", request)
        assert all(entry.status.code == answer.status.code for entry in answer.entries)
        code: int = answer.status.code
        return code

    async def change(self, group: str, received: Any, seconds: int) -> Any:
        """Change the invisible time of a message; return the answer."""
        system = received.system_properties
        request = messages.ChangeInvisibleDurationRequest(
            topic=received.topic,
            receipt_handle=system.receipt_handle,
            message_id=system.message_id,
        )
        request.group.name = group
        request.invisible_duration.seconds = seconds
        return await self.call("ChangeInvisibleDuration", request)


def receive_request(topic: str, group: str, **options: Any) -> Any:
    """Return a ReceiveMessage of a simple consumer, or of a push consumer with ``auto_renew``."""
    request = messages.ReceiveMessageRequest(
        batch_size=options.get("batch", 32), auto_renew=options.get("auto_renew", False)
    )
    request.group.name = group
    request.message_queue.topic.name = topic
    request.message_queue.broker.name = options.get("broker", "broker-a")
    request.filter_expression.type = options.get("filter_type", FilterType.TAG)
    request.filter_expression.expression = options.get("expression", "*")
    if not request.auto_renew:
        request.invisible_duration.seconds = options.get("invisible", 30)
    request.long_polling_timeout.seconds = options.get("poll", 5)
    if "attempt_id" in options:
        request.attempt_id = options["attempt_id"]
    return request


def message(topic: str, body: bytes, **system: Any) -> Any:
    """Return a message; keywords are system properties, or user properties as ``properties``."""
    user = system.pop("properties", {})
    made = messages.Message(body=body, user_properties=user)
    made.topic.name = topic
    made.system_properties.message_id = system.pop("message_id", f"ID{next(_IDS):030}")
    due = system.pop("deliver_in", None)
    if due is not None:
        messages.set_ms(
            made.system_properties.delivery_timestamp, time.time_ns() // 1_000_000 + due * 1000
        )
    for name, value in system.items():
        if isinstance(value, list):
            getattr(made.system_properties, name).extend(value)
        else:
            setattr(made.system_properties, name, value)
    return made
