"""CPU of gRPC clients' calls, beside a service of the same library that does nothing.

The broker serves its gRPC port in its own process. ``send`` is a call of SendMessage with a
message of 1 KB. ``receive`` is a message of 1 KB, received among 32 and acknowledged by a call of
its own, as the official clients do; its floor is 32 messages streamed by the empty service, and as
many calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import statistics
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import grpc
from bench import BODY, HERE, LARGE_FILES, TOPIC, Bench, cpu_of
from grpc_echo import SERVICE as ECHO

from rocketpost.proxy.wire import messages
from rocketpost.proxy.wire.enums import ClientType, Code
from rocketpost.testing.process import ServerProcess, free_port

BATCH = 32
IN_FLIGHT = 16
STREAMS = 1000
STREAMS_MB_MAX = 100
RATIO_MAX = 2.5
GROUP = "BenchGroup"
BROKER = ("-m", "rocketpost.server", "mqbroker")
_IDS = itertools.count()

Step = Callable[[], Awaitable[None]]


class Caller:
    """Calls of one client."""

    def __init__(self, port: int, name: str) -> None:
        self.channel = grpc.aio.insecure_channel(
            f"127.0.0.1:{port}", options=[("grpc.use_local_subchannel_pool", 1)]
        )
        self._headers = (("x-mq-client-id", name), ("x-mq-language", "PYTHON"))
        self._send = self.method("SendMessage")
        self._ack = self.method("AckMessage")
        self._receive = self.channel.unary_stream(f"/{messages.SERVICE}/ReceiveMessage")

    def method(self, name: str) -> Callable[..., Awaitable[bytes]]:
        return self.channel.unary_unary(f"/{messages.SERVICE}/{name}")

    async def open_stream(self, settings: object) -> object:
        """Open a telemetry stream; return it once the settings are answered."""
        method = self.channel.stream_stream(f"/{messages.SERVICE}/Telemetry")
        stream = method(metadata=self._headers)
        command = messages.TelemetryCommand(settings=settings)
        await stream.write(command.SerializeToString())
        answer = messages.TelemetryCommand.FromString(await stream.read())
        assert answer.status.code == Code.OK, answer
        return stream

    async def send(self) -> None:
        request = messages.SendMessageRequest()
        message = request.messages.add(body=BODY)
        message.topic.name = TOPIC
        message.system_properties.message_id = f"ID{next(_IDS):030}"
        message.system_properties.body_encoding = 1
        data = await self._send(request.SerializeToString(), metadata=self._headers)
        answer = messages.SendMessageResponse.FromString(data)
        assert answer.status.code == Code.OK, answer

    async def receive(self) -> None:
        """Receive messages and acknowledge each."""
        request = messages.ReceiveMessageRequest(batch_size=BATCH)
        request.group.name = GROUP
        request.message_queue.topic.name = TOPIC
        request.message_queue.broker.name = "bench"
        request.filter_expression.expression = "*"
        request.invisible_duration.seconds = 60
        request.long_polling_timeout.seconds = 5
        parse = messages.ReceiveMessageResponse.FromString
        running = self._receive(request.SerializeToString(), metadata=self._headers, timeout=20)
        answers = [parse(data) async for data in running]
        found = [each.message for each in answers if each.WhichOneof("content") == "message"]
        assert len(found) == BATCH, answers[0]
        await asyncio.gather(*map(self._acknowledge, found))

    async def _acknowledge(self, message: messages.Message) -> None:
        request = messages.AckMessageRequest(topic=message.topic)
        request.group.name = GROUP
        system = message.system_properties
        request.entries.add(message_id=system.message_id, receipt_handle=system.receipt_handle)
        data = await self._ack(request.SerializeToString(), metadata=self._headers)
        answer = messages.AckMessageResponse.FromString(data)
        assert answer.status.code == Code.OK, answer


class EchoCaller:
    """The same calls to the empty service."""

    def __init__(self, port: int) -> None:
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
        self._send = self.channel.unary_unary(f"/{ECHO}/Send")
        self._receive = self.channel.unary_stream(f"/{ECHO}/Receive")

    async def send(self) -> None:
        await self._send(BODY)

    async def receive(self) -> None:
        assert len([data async for data in self._receive(b"x" * BATCH)]) == BATCH
        await asyncio.gather(*(self._send(b"x" * 200) for _ in range(BATCH)))


async def repeat(step: Step, count: int, in_flight: int) -> None:
    """Do something so many times, some of them at once."""
    left = iter(range(count))

    async def work() -> None:
        for _ in left:
            await step()

    await asyncio.gather(*(work() for _ in range(in_flight)))


async def spent(pid: int, step: Step, count: int, *, in_flight: int = IN_FLIGHT) -> float:
    """Return the CPU microseconds of a process for each of some steps."""
    before = cpu_of(pid)
    await repeat(step, count, in_flight)
    return (cpu_of(pid) - before) / count * 1e6


@contextlib.contextmanager
def echo_service() -> Iterator[tuple[int, int]]:
    """Run the empty service; yields its pid and port."""
    command = [sys.executable, str(HERE / "grpc_echo.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.pid, int(process.stdout.readline().split()[1])
        finally:
            process.kill()


def broker(directory: Path, port: int, **settings: object) -> ServerProcess:
    """Return a broker with a gRPC port and a topic, to be started."""
    directory.mkdir(parents=True, exist_ok=True)
    conf, proxy = directory / "broker.conf", directory / "rmq-proxy.json"
    values = {
        **LARGE_FILES,
        "brokerName": "bench",
        "listenPort": "0",
        "brokerIP1": "127.0.0.1",
        "storePathRootDir": str(directory / "store"),
    }
    conf.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    proxy.write_text(json.dumps({"grpcServerPort": port, **settings}))
    config = directory / "store" / "config"
    config.mkdir(parents=True)
    topic = {"topicName": TOPIC, "readQueueNums": 8, "writeQueueNums": 8, "perm": 6}
    (config / "topics.json").write_text(json.dumps({"topicConfigTable": {TOPIC: topic}}))
    arguments = ["-c", str(conf), "--enable-proxy", "-pc", str(proxy)]
    return ServerProcess(arguments, ready=rf"gRPC port {port}", program=BROKER)


def producer_settings() -> messages.Settings:
    settings = messages.Settings(client_type=ClientType.PRODUCER)
    settings.publishing.topics.add(name=TOPIC)
    return settings


def consumer_settings() -> messages.Settings:
    settings = messages.Settings(client_type=ClientType.SIMPLE_CONSUMER)
    settings.subscription.group.name = GROUP
    entry = settings.subscription.subscriptions.add()
    entry.topic.name, entry.expression.expression = TOPIC, "*"
    return settings


async def grpc_calls(bench: Bench, directory: Path) -> None:
    """Calls beside the empty service: at a plain port, and at one that serves TLS as well."""
    with echo_service() as (echo, echo_port):
        floor = EchoCaller(echo_port)
        await repeat(floor.send, bench.count(2000), IN_FLIGHT)
        for mode, name in (("disabled", "plain port"), ("permissive", "port with TLS")):
            port = free_port()
            with broker(directory / mode, port, tlsServerMode=mode) as server:
                await compare(bench, floor, echo, Caller(port, "bench"), server.pid, name)
                if mode == "permissive":
                    await streams(bench, port, server)
        await floor.channel.close()


async def compare(
    bench: Bench, floor: EchoCaller, echo: int, caller: Caller, server: int, name: str
) -> None:
    """Add the costs of a broker's calls, and of the floor's in the same rounds."""
    producing = await caller.open_stream(producer_settings())
    count = bench.count(4000)
    await repeat(caller.send, count, IN_FLIGHT)
    floors: dict[str, list[float]] = {"send": [], "receive": []}
    costs: dict[str, list[float]] = {"send": [], "receive": []}
    for _ in range(bench.rounds):
        floors["send"].append(await spent(echo, floor.send, count))
        costs["send"].append(await spent(server, caller.send, count))
        batches = count // BATCH
        one = await spent(echo, floor.receive, batches, in_flight=2)
        floors["receive"].append(one / BATCH)
        one = await spent(server, caller.receive, batches, in_flight=2)
        costs["receive"].append(one / BATCH)
    for step, values in costs.items():
        pairs = zip(values, floors[step], strict=True)
        ratio = statistics.median(mine / theirs for mine, theirs in pairs)
        label = f"gRPC {step} 1 KB, {name}"
        bench.add(f"{label}, empty service", statistics.median(floors[step]), "us/message")
        bench.add(label, statistics.median(values), "us/message")
        bench.add(f"{label}, to empty service", ratio, "x", most=RATIO_MAX)
    del producing
    await caller.channel.close()


async def streams(bench: Bench, port: int, server: ServerProcess) -> None:
    """Add the memory of many idle clients."""
    before = server.memory_bytes("RssAnon")
    callers = [Caller(port, f"idle-{number}") for number in range(STREAMS)]
    opened = [await caller.open_stream(consumer_settings()) for caller in callers]
    grown = (server.memory_bytes("RssAnon") - before) / 2**20
    bench.add(f"memory of {len(opened)} telemetry streams", grown, "MB", most=STREAMS_MB_MAX)
    for caller in callers:
        await caller.channel.close()
