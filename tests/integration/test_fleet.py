"""Several brokers under one command: real processes that clients use as one cluster."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from rocketpost.client import (
    Message,
    Producer,
    ProducerConfig,
    PushConsumer,
    PushConsumerConfig,
    ReceivedMessage,
    StartFrom,
)
from rocketpost.client.admin import AdminClient
from rocketpost.server.up import SingleNode
from rocketpost.settings import format_properties
from rocketpost.testing.cluster import SMALL_STORE
from rocketpost.testing.process import ServerFailed, ServerProcess, free_port
from rocketpost.testing.waiting import until

pytestmark = pytest.mark.slow

OLD, NEW = "Old", "New"
RUNNING = r"2 brokers run: (?P<names>\S+ pid \d+, \S+) pid (?P<last_pid>\d+)"
UP = ("-c", "from rocketpost.cli import rocketpost; rocketpost()", "up")


async def fill(address: str, topic: str) -> list[tuple[str, str]]:
    """Send to a topic until both brokers have some of it; return brokers and texts."""
    sent: list[tuple[str, str]] = []
    config = ProducerConfig(name_servers=address, send_timeout=20.0, retries=5)
    async with Producer("producers", config=config) as producer:
        while len(Counter(broker for broker, _ in sent)) < 2 or len(sent) % 8:
            assert len(sent) < 64, f"all messages went to one broker: {sent[0]}"
            text = f"{topic} {len(sent)}"
            result = await producer.send(Message(topic, text.encode()))
            sent.append((result.queue.broker_name, text))
    return sent


async def consume(address: str, topics: tuple[str, ...], wanted: set[str]) -> Counter[str]:
    """Return the texts of all messages that a new group gets."""
    seen: Counter[str] = Counter()
    complete = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        seen[message.body.decode()] += 1
        if wanted <= seen.keys():
            complete.set()

    config = PushConsumerConfig(name_servers=address, start_from=StartFrom.FIRST)
    consumer = PushConsumer("consumers", config=config)
    for topic in topics:
        consumer.subscribe(topic, handle)
    async with consumer, asyncio.timeout(60):
        await complete.wait()
    return seen


def open_stores(folder: Path) -> list[Path]:
    """Return the marks of stores that are open or were not closed in order."""
    return list(folder.rglob("abort"))


def write_settings(folder: Path) -> str:
    values = {
        "brokerName": "broker-a",
        "bindAddress": "127.0.0.1",
        "brokerIP1": "127.0.0.1",
        "listenPort": "0",
        "storePathRootDir": str(folder / "store"),
        **SMALL_STORE,
    }
    path = folder / "broker.conf"
    path.write_text(format_properties(values))
    return str(path)


async def test_a_broker_grows_to_two_and_loses_nothing_when_one_is_killed(tmp_path: Path) -> None:
    alone = SingleNode(tmp_path)
    await alone.start()
    async with Producer("producers", name_servers=alone.address) as producer:
        await producer.send(Message(OLD, b"before"))
    await alone.stop()

    name_server, broker_port = free_port(), free_port()
    address = f"127.0.0.1:{name_server}"
    options = ["--data", str(tmp_path), "--brokers", "2"]
    options += ["--namesrv-port", str(name_server), "--broker-port", str(broker_port)]
    server = ServerProcess(options, ready=RUNNING, program=UP)
    with contextlib.ExitStack() as stack:
        stack.callback(server.kill)
        running = await asyncio.to_thread(server.start)
        assert "broker-a pid" in running["names"]
        assert running["names"].endswith("broker-a-1")

        async with AdminClient(name_servers=address) as admin:
            old = await admin.cluster.route(OLD)
            assert [each.broker_name for each in old.queue_datas] == ["broker-a"]
        sent = await fill(address, NEW)
        assert {broker for broker, _ in sent} == {"broker-a", "broker-a-1"}

        os.kill(int(running["last_pid"]), signal.SIGKILL)
        for line in (
            "ended: name=broker-a-1 .* how=killed by SIGKILL",
            "restarted: name=broker-a-1",
        ):
            await asyncio.to_thread(server.wait_for, f"broker {line}", seconds=60)
        wanted = {"before"} | {text for _, text in sent}
        assert await consume(address, (OLD, NEW), wanted) >= Counter(wanted)
        assert await asyncio.to_thread(server.stop) == 0
    ends = [line for line in server.output if "stopped: clean=true" in line]
    assert sorted(line.partition(" ")[0] for line in ends)[1:] == ["[broker-a-1]", "[broker-a]"]
    assert not open_stores(tmp_path)


def test_brokers_stop_cleanly_when_their_command_is_killed(tmp_path: Path) -> None:
    arguments = ["mqbroker", "-c", write_settings(tmp_path), "--brokers", "2"]
    with ServerProcess(arguments, ready=RUNNING) as server:
        assert len(open_stores(tmp_path)) == 2
        server.kill()  # returns when no process has the pipe for output open any more
    assert sum("stopped: clean=true" in line for line in server.output) == 2
    assert not open_stores(tmp_path)


async def test_a_directory_in_use_is_refused_as_a_whole(tmp_path: Path) -> None:
    alone = SingleNode(tmp_path)
    await alone.start()
    try:
        arguments = ["mqbroker", "-c", write_settings(tmp_path), "--brokers", "2"]
        server = ServerProcess(arguments, ready=RUNNING)
        with pytest.raises(ServerFailed, match="is in use by another process"):
            await asyncio.to_thread(server.start)
        await until(lambda: not server.is_running)
        assert server.exit_code == 2
        assert "the broker broker-a did not start: exit code 2" in server.output[-1]
        assert not (tmp_path / "store" / "brokers").exists()
    finally:
        await asyncio.to_thread(server.kill)
        await alone.stop()
