"""Spark reads and writes topics of a cluster with TLS and access control."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from rocketpost.testing.process import ServerProcess, free_port


class Secured:
    """A cluster that ``rocketpost secure init`` has made."""

    def __init__(self, made: Path, address: str) -> None:
        self.made = made
        self.address = address
        self.options = {
            "nameServer": address,
            "tls": "true",
            "tlsConfigFile": str(made / "tls.properties"),
        }


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    root = tmp_path_factory.mktemp("secured")
    made = root / "secure"
    script = str(Path(sys.executable).parent / "rocketpost")
    subprocess.run([script, "secure", "init", "--directory", str(made)], check=True, timeout=60)
    port = free_port()
    ports = ["--namesrv-port", str(port), "--broker-port", str(free_port())]
    words = ["up", "-c", str(made / "broker.conf"), "--data", str(root / "data"), *ports]
    program = ("-c", "from rocketpost.cli import rocketpost; rocketpost()")
    with ServerProcess(words, ready="Clients connect to", program=program):
        yield Secured(made, f"127.0.0.1:{port}")


@pytest.mark.slow
def test_tables_with_tls_and_a_certificate_as_login(secured: Secured, spark: SparkSession) -> None:
    rows = spark.createDataFrame([(f"body {number}",) for number in range(20)], "body string")
    for delivery in ("atLeastOnce", "effectivelyOnce"):
        writer = rows.write.format("rocketmq").mode("append").options(**secured.options)
        writer.options(topic="Encrypted", delivery=delivery, sinkId="tls").save()
    read = spark.read.format("rocketmq").options(**secured.options)
    found = read.option("topic", "Encrypted").load().select("body").collect()
    assert len(found) == 40
    assert {bytes(row.body) for row in found} == {f"body {n}".encode() for n in range(20)}


@pytest.mark.slow
@pytest.mark.parametrize("given", [{}, {"tls": "true"}], ids=["plain", "unknown authority"])
def test_nothing_is_read_without_tls_or_trust(
    secured: Secured, spark: SparkSession, given: dict[str, str]
) -> None:
    read = spark.read.format("rocketmq").option("nameServer", secured.address)
    with pytest.raises(PySparkException):
        read.options(topic="Encrypted", outageTimeoutMs="1000", **given).load().count()
