"""The programs on the pages about Spark and README's query are run as printed, as one program.

Only addresses and directories are replaced: the servers have free ports, and the pages keep their
lakes, checkpoints and schemas in the root directory.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

from rocketpost.client import Message
from rocketpost.client.blocking import Producer
from rocketpost.testing import BrokerLink, Cluster

pytestmark = pytest.mark.long

REPOSITORY = Path(__file__).parents[3]
SITE = REPOSITORY / "mkdocs.yml"
PAGES = re.findall(r"guide/spark[\w-]*\.md$", SITE.read_text(), re.MULTILINE)
"""The pages in the order of the site's navigation; each builds on those before it."""
README = REPOSITORY / "README.md"
FENCED = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ROOTS = ("/schemas", "/checkpoints", "/lake", "/data/store")
PRELUDE = """
from rocketpost.spark.session import make_session

spark = make_session("page")
"""
EPILOGUE = """
for each in spark.streams.active:
    each.processAllAvailable()
    each.stop()
for frame in (log, orders, everything, yesterday):
    frame.count()
print("the page ended")
"""
ARCHIVE = """
from rocketpost.spark.options import SourceOptions
from rocketpost.spark.pipelines.archive import ArchiveConfig, archive

source = SourceOptions(name_servers="127.0.0.1:9876", topic="Orders")
archive(spark, ArchiveConfig(source=source, lake="/lake/orders", format="delta"))
"""


def write_schemas(folder: Path) -> None:
    """Write the two schemas that the page names."""
    folder.mkdir()
    files = descriptor_pb2.FileDescriptorSet()
    file = files.file.add(name="shop.proto", package="shop", syntax="proto3")
    order = file.message_type.add(name="Order")
    field = descriptor_pb2.FieldDescriptorProto
    order.field.add(name="customer", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    (folder / "shop.pb").write_bytes(files.SerializeToString())
    nullable = [
        {"name": "customer", "type": ["null", "string"]},
        {"name": "total", "type": ["null", "double"]},
    ]
    schema = {"type": "record", "name": "Total", "fields": nullable}
    (folder / "total.avsc").write_text(json.dumps(schema))


async def make_topics(address: str) -> None:
    broker_session = await BrokerLink.connect(address)
    try:
        for topic in ("Orders", "Enriched", "Totals", "OrderCounts", "OrdersAgain"):
            await broker_session.create_topic(topic, 4)
        await broker_session.commit_offset("billing", "Orders", 0, 0)
    finally:
        broker_session.close()


async def test_the_pages_run_as_printed(tmp_path: Path) -> None:
    write_schemas(tmp_path / "schemas")
    with Cluster(tmp_path) as cluster:
        await make_topics(cluster.broker_addresses[0])
        fill(cluster)
        query = [block for block in FENCED.findall(README.read_text()) if "spark.read" in block]
        assert len(query) == 1
        pages = "".join((REPOSITORY / "docs" / page).read_text() for page in PAGES)
        printed = [*query, *FENCED.findall(pages)]
        text = PRELUDE + ARCHIVE + "\n".join(printed) + EPILOGUE
        text = text.replace("127.0.0.1:9876", cluster.addresses)
        text = text.replace('"/data/store"', f'"{cluster.broker_directory()}/store"')
        for root in ROOTS:
            text = text.replace(f'"{root}/', f'"{tmp_path}{root}/')
        program = tmp_path / "page.py"
        program.write_text(text)
        done = await asyncio.to_thread(run, program)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.endswith("the page ended\n"), done.stdout


def run(program: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(program)], capture_output=True, text=True)


def fill(cluster: Cluster) -> None:
    with Producer("page", name_servers=cluster.addresses) as producer:
        for number in range(20):
            order = {"customer": f"c{number % 3}", "amount": 1.5, "lines": ["a"]}
            order["at"] = "2026-11-16T08:00:00Z"
            producer.send(
                Message("Orders", json.dumps(order).encode(), tags="paid", keys=f"order-{number}")
            )
