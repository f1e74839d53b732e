"""From nothing to a cluster with TLS, with the commands of the guide."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from rocketpost.client import (
    Message,
    Producer,
    ProducerConfig,
    PushConsumer,
    PushConsumerConfig,
    ReceivedMessage,
    RocketpostError,
    StartFrom,
)
from rocketpost.client.tls import read_tls_file_blocking
from rocketpost.server.up import SingleNode, settings_of
from rocketpost.testing.waiting import until
from rocketpost.transport.tls_contexts import ClientTls


@pytest.mark.slow
async def test_one_command_makes_a_cluster_with_tls(tmp_path: Path) -> None:
    made = tmp_path / "secure"
    command = "from rocketpost.cli import rocketpost; rocketpost()"
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", command, "secure", "init", "--directory", str(made)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    settings = await asyncio.to_thread(settings_of, made / "broker.conf", None)
    node = SingleNode(tmp_path / "data", settings=settings)
    await node.start()
    try:
        tls = await asyncio.to_thread(read_tls_file_blocking, str(made / "tls.properties"))
        got: list[bytes] = []

        async def handle(message: ReceivedMessage) -> None:
            got.append(message.body)

        config = PushConsumerConfig(name_servers=node.address, tls=tls, start_from=StartFrom.FIRST)
        consumer = PushConsumer("G", config=config)
        consumer.subscribe("T", handle)
        producer = Producer("P", config=ProducerConfig(name_servers=node.address, tls=tls))
        async with producer:
            await producer.send(Message("T", b"secret"))
            async with consumer:
                await until(lambda: got == [b"secret"])
        for stranger in (None, ClientTls(trusted=str(made / "ca.pem"))):
            config = ProducerConfig(name_servers=node.address, tls=stranger)
            with pytest.raises(RocketpostError):
                async with Producer("P", config=config) as other:
                    await other.send(Message("T", b"x"), timeout=1)
        assert got == [b"secret"]
    finally:
        await node.stop()
