"""Apache's rocketmq-exporter, which asks brokers by their usual port, with the servers under test.

It is not published as a package: ``ROCKETMQ_EXPORTER`` names its jar, built from its sources with
``mvn -DskipTests package`` (the one that ends with ``-exec.jar``).
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from integration.metrics_load import TOPIC, make_load
from interop.servers import SMALL_STORE, Cluster, Maker
from rocketpost.client import (
    Message,
    Producer,
    PushConsumer,
    PushConsumerConfig,
    ReceivedMessage,
    StartFrom,
)
from rocketpost.testing.process import free_port

JAR = os.environ.get("ROCKETMQ_EXPORTER")
pytestmark = [
    pytest.mark.interop,
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.skipif(JAR is None, reason="ROCKETMQ_EXPORTER does not name the exporter's jar"),
]
NAMES = set(
    (Path(__file__).parents[1] / "golden" / "apache-exporter-names.txt").read_text().split()
)
"""The names that it serves when it asks Apache's broker 5.3.3 under the same load."""
JOBS = (
    "collectTopicOffset", "collectProducer", "collectConsumerOffset", "collectBrokerStatsTopic",
    "collectBrokerStats", "collectBrokerRuntimeStats",
)  # fmt: skip
SECONDS_MAX = 120


async def test_it_serves_the_names_that_it_has_of_apaches_broker(
    java: None, target: Maker, tmp_path: Path
) -> None:
    assert JAR is not None
    settings = {**SMALL_STORE, "autoCreateTopicEnable": "true", "timerWheelEnable": "true"}
    with Cluster(tmp_path / "cluster", target, settings=settings) as cluster:
        await make_load(cluster.namesrv, cluster.broker)
        with run_exporter(JAR, cluster.namesrv, tmp_path) as port:
            found = await scrape_under_traffic(cluster.namesrv, port)
    assert NAMES - found == set()


@contextmanager
def run_exporter(jar: str, name_servers: str, directory: Path) -> Iterator[int]:
    """Run the exporter, and give the port of its metrics."""
    port = free_port()
    command = [
        "java", "-Xmx256m", f"-Duser.home={directory}", "-jar", jar, f"--server.port={port}",
        f"--grpc.server.port={free_port()}", f"--rocketmq.config.namesrvAddr={name_servers}",
        *(f"--task.{name}.cron=0/5 * * * * ?" for name in JOBS),
    ]  # fmt: skip
    with (directory / "exporter.log").open("w") as log:
        exporter = subprocess.Popen(command, stdout=log, stderr=log, cwd=directory)
    try:
        yield port
    finally:
        exporter.kill()
        exporter.wait()


async def scrape_under_traffic(name_servers: str, port: int) -> set[str]:
    """Send and consume until every name was served, or the time is over."""

    async def handle(message: ReceivedMessage) -> None:
        pass

    config = PushConsumerConfig(start_from=StartFrom.FIRST)
    consumer = PushConsumer("watched", name_servers=name_servers, config=config)
    consumer.subscribe(TOPIC, handle)
    found: set[str] = set()
    async with consumer, Producer("golden", name_servers=name_servers) as producer:
        for _ in range(SECONDS_MAX):
            await producer.send(Message(TOPIC, b"x" * 50))
            await asyncio.sleep(1)  # the exporter asks every five seconds
            found |= await asyncio.to_thread(scrape_blocking, port)
            if found >= NAMES:
                break
    return found


def scrape_blocking(port: int) -> set[str]:
    """Return the names that are served now; nothing while the exporter starts."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
    except (urllib.error.URLError, ConnectionError):
        return set()
    return set(re.findall(r"^(rocketmq_\w+)[{ ]", text, re.MULTILINE))
