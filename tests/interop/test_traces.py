"""Traces of Java clients read by our tool, and ours by Apache's."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from click.testing import CliRunner

from interop.peer import Peer, named
from interop.servers import Cluster
from rocketpost.admin.main import mqadmin
from rocketpost.client import (
    Message,
    ProducerConfig,
    PushConsumer,
    PushConsumerConfig,
    ReceivedMessage,
    StartFrom,
    TransactionProducer,
    TransactionState,
)

pytestmark = pytest.mark.interop


async def steps(cluster: Cluster, message_id: str, count: int) -> list[dict[str, Any]]:
    words = ["queryMsgTraceById", "-i", message_id, "--json"]
    async with asyncio.timeout(30):
        while True:  # Apache's index follows its log
            env = {"NAMESRV_ADDR": cluster.namesrv}
            result = await asyncio.to_thread(CliRunner().invoke, mqadmin, words, env=env)
            found: list[dict[str, Any]] = json.loads(result.stdout) if not result.exit_code else []
            if len(found) >= count:
                return found
            await asyncio.sleep(0.2)


async def test_our_tool_reads_the_traces_of_java(peer: Peer, cluster: Cluster, topic: str) -> None:
    # A Java client writes traces every 5 s, and may lose at its stop what is under way then.
    common: dict[str, object] = {"namesrv": cluster.namesrv, "topic": topic, "trace": 1}
    common["linger"] = 6000
    group = f"java-traced-{topic}"
    [sent] = named(await asyncio.to_thread(peer.run, "send", **common, tags="A", keys="k1"), "sent")
    await asyncio.to_thread(peer.run, "push", **common, group=group, count=1)
    pub, sub = await steps(cluster, sent["msgId"], 2)
    assert (pub["what"], pub["outcome"]) == ("Pub", "success")
    assert f"{topic}, on " in pub["detail"]
    assert "tags A, keys k1" in pub["detail"]
    assert (sub["what"], sub["group"], sub["outcome"]) == ("Sub", group, "success")


async def test_apaches_tool_reads_our_traces(peer: Peer, cluster: Cluster, topic: str) -> None:
    done = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        done.set()

    async def commit(message: object, transaction_id: str = "") -> TransactionState:
        return TransactionState.COMMIT

    producing = ProducerConfig(name_servers=cluster.namesrv, enable_trace=True)
    producer = TransactionProducer(f"sdk-tracing-{topic}", checker=commit, config=producing)
    async with producer:
        sent = (await producer.send_in_transaction(Message(topic, b"hello"), commit)).sent
    consuming = PushConsumerConfig(
        name_servers=cluster.namesrv, start_from=StartFrom.FIRST, enable_trace=True
    )
    consumer = PushConsumer(f"sdk-traced-{topic}", config=consuming)
    consumer.subscribe(topic, handle)
    async with consumer, asyncio.timeout(30):
        await done.wait()
    await steps(cluster, sent.message_id, 3)
    printed = await asyncio.to_thread(
        peer.mqadmin, cluster.namesrv, f"queryMsgTraceById -i {sent.message_id}"
    )
    lines = [line.split() for line in printed.splitlines()]
    [pub] = [line for line in lines if line[:1] == ["Pub"]]
    [sub] = [line for line in lines if line[:1] == ["Sub"]]
    assert (pub[1], pub[-1]) == (f"sdk-tracing-{topic}", "success")
    assert (sub[1], sub[-1]) == (f"sdk-traced-{topic}", "success")
