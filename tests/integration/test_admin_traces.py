"""Traces through real servers, and ``mqadmin queryMsgTraceById`` that reads them."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from rocketpost.admin.main import mqadmin
from rocketpost.client import (
    Message,
    Producer,
    ProducerConfig,
    PushConsumer,
    PushConsumerConfig,
    ReceivedMessage,
    Retry,
    StartFrom,
    TransactionProducer,
    TransactionState,
)
from rocketpost.testing.cluster import Cluster

pytestmark = pytest.mark.slow

_numbers = itertools.count(1)
_run = f"{os.getpid()}-{int(time.time())}"


@pytest.fixture(scope="module")
def name_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    given = os.environ.get("ROCKETPOST_NAMESRV")
    if given:
        yield given
        return
    settings = {"traceTopicEnable": "true", "messageDelayLevel": "1s 1s 1s 1s"}
    with Cluster(tmp_path_factory.mktemp("cluster"), settings=settings) as cluster:
        yield cluster.addresses


def run(name_servers: str, *words: str) -> Any:
    return CliRunner().invoke(mqadmin, words, env={"NAMESRV_ADDR": name_servers})


async def steps(name_servers: str, *words: str, count: int) -> list[dict[str, Any]]:
    """Ask until there are ``count`` steps: the index of a broker may follow its log."""
    async with asyncio.timeout(30):
        while True:
            command = ("queryMsgTraceById", *words, "--json")
            result = await asyncio.to_thread(run, name_servers, *command)
            found: list[dict[str, Any]] = json.loads(result.stdout) if not result.exit_code else []
            if len(found) >= count:
                return found
            await asyncio.sleep(0.1)


async def test_the_history_of_a_message_can_be_read_back(name_servers: str) -> None:
    topic, seen = f"Traced-{_run}", 0
    done = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        nonlocal seen
        seen += 1
        if seen == 1:
            raise Retry(1)
        done.set()

    config = ProducerConfig(name_servers=name_servers, enable_trace=True)
    async with Producer(f"tracing-{_run}", config=config) as producer:
        sent = await producer.send(Message(topic, b"hello", tags="A", keys="order-17"))
    consumer = PushConsumer(
        f"traced-{_run}",
        config=PushConsumerConfig(
            name_servers=name_servers, start_from=StartFrom.FIRST, enable_trace=True
        ),
    )
    consumer.subscribe(topic, handle)
    async with consumer, asyncio.timeout(30):
        await done.wait()
    pub, first, second = await steps(name_servers, "-i", sent.message_id, count=3)
    assert (pub["what"], pub["group"], pub["outcome"]) == ("Pub", f"tracing-{_run}", "success")
    assert pub["detail"].startswith(f"{topic}, on ")
    assert "tags A, keys order-17" in pub["detail"]
    assert (first["what"], first["group"], first["outcome"]) == ("Sub", f"traced-{_run}", "failed")
    assert (second["outcome"], second["detail"]) == ("success", "retry 1")
    assert pub["timeMs"] <= first["timeMs"] <= second["timeMs"]
    shown = await asyncio.to_thread(run, name_servers, "queryMsgTraceById", "-i", sent.message_id)
    assert len(shown.stdout.strip().splitlines()) == 4


async def test_another_topic_may_hold_the_traces(name_servers: str) -> None:
    topic = f"MyTraces-{_run}"
    config = ProducerConfig(name_servers=name_servers, enable_trace=True, trace_topic=topic)
    async with Producer(f"tracing-{_run}", config=config) as producer:
        batch = [Message(f"Traced-{_run}", b"%d" % n) for n in range(3)]
        results = await producer.send_batch(batch)
    for result in results:
        [pub] = await steps(name_servers, "-i", result.message_id, "-t", topic, count=1)
        assert pub["outcome"] == "success"


def test_a_message_sent_by_hand_can_be_traced(name_servers: str) -> None:
    words = ("sendMessage", "-t", f"Traced-{_run}", "-p", "x", "-m", "true", "--json")
    [sent] = json.loads(run(name_servers, *words).stdout)
    assert asyncio.run(steps(name_servers, "-i", sent["msgId"], count=1))


def test_a_message_without_traces_is_a_clear_failure(name_servers: str) -> None:
    result = run(name_servers, "queryMsgTraceById", "-i", "00", "-t", f"Traced-{_run}")
    assert result.exit_code == 1
    assert "has no trace of 00" in result.stderr


async def test_a_transaction_and_its_end_are_shown(name_servers: str) -> None:
    async def book(message: Message, transaction_id: str) -> TransactionState:
        return TransactionState.COMMIT

    async def look_up(message: ReceivedMessage) -> TransactionState:
        return TransactionState.UNKNOWN

    config = ProducerConfig(name_servers=name_servers, enable_trace=True)
    producer = TransactionProducer(f"booking-{_run}", checker=look_up, config=config)
    async with producer:
        result = await producer.send_in_transaction(Message(f"Traced-{_run}", b"x", keys="k"), book)
    pub, end = await steps(name_servers, "-i", result.sent.message_id, count=2)
    assert (pub["what"], pub["outcome"]) == ("Pub", "success")
    assert "transaction half" in pub["detail"]
    assert (end["what"], end["outcome"]) == ("EndTransaction", "COMMIT_MESSAGE")
