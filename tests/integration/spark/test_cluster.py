"""Source, sink and a pipeline on a standalone cluster: the package works where no driver is."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rocketpost.spark.lake.lake import open_lake
from rocketpost.testing.cluster import Cluster
from rocketpost.testing.feeder import TOPIC, feed, write_number
from rocketpost.testing.link import BrokerLink
from rocketpost.testing.process import ServerProcess
from rocketpost.testing.spark_cluster import READY_SECONDS, SparkCluster
from rocketpost.testing.spark_job import DONE, READY, Job

pytestmark = pytest.mark.long

MESSAGES = 2000
QUEUES = 4


async def bodies(cluster: Cluster, topic: str) -> Counter[bytes]:
    broker_session = await BrokerLink.connect(cluster.broker_addresses[0])
    found: Counter[bytes] = Counter()
    for queue_id in range(QUEUES):
        end = await broker_session.max_offset(topic, queue_id)
        found.update(bytes(r.body) for r in await broker_session.read(topic, queue_id, 0, end))
    broker_session.close()
    return found


async def test_a_topic_is_copied_and_archived_by_two_workers(
    cluster: Cluster, tmp_path: Path
) -> None:
    broker_session = await BrokerLink.connect(cluster.broker_addresses[0])
    for topic in (TOPIC, "Copied"):
        await broker_session.create_topic(topic, QUEUES)
    broker_session.close()
    write_number(tmp_path / "target", MESSAGES)
    (tmp_path / "stop").touch()
    await feed(cluster.addresses, tmp_path)
    with SparkCluster(tmp_path / "spark", workers=2) as spark:
        job = Job(
            name_servers=cluster.addresses,
            source=TOPIC,
            target="Copied",
            directory=str(tmp_path),
            delivery="exactlyOnce",
            offsets_max=1000,
            rate=10_000,
            master=spark.master,
            options={"spark.executor.memory": "512m", "spark.task.maxFailures": "4"},
        )
        job.write(tmp_path / "job.json")
        with ServerProcess(
            [str(tmp_path / "job.json")],
            ready=READY,
            environment=spark.environment,
            program=["-m", "rocketpost.testing.spark_job"],
        ) as driver:
            driver.wait_for(DONE, seconds=READY_SECONDS)
        logs = [[*folder.glob("app-*/*/stderr")] for folder in spark.folders]
    texts = [[log.read_text() for log in each] for each in logs]
    assert all(any("Finished task" in text for text in each) for each in texts)
    unchecked = "-Darrow.enable_unsafe_memory_access=true"  # first of all, a log has the command
    assert all(unchecked in text for each in texts for text in each)
    fed = await bodies(cluster, TOPIC)
    assert fed == Counter(b"%d" % number for number in range(MESSAGES))
    assert await bodies(cluster, "Copied") == fed
    lake = open_lake(job.lake)
    assert lake.find_flaws() == []
    kept: Counter[bytes] = Counter()
    for uri in [lake.uri_for(file.path) for file in lake.snapshot().files]:
        kept.update(pq.ParquetFile(uri).read(columns=["body"]).column("body").to_pylist())
    assert kept == fed
