"""Settings of metrics, and what Prometheus and health checks get from a whole broker."""

from __future__ import annotations

import asyncio
import errno
import gzip
import json
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from rocketpost.codec.bodies.stats import decode_key_values
from rocketpost.codec.codes import RequestCode as Code
from rocketpost.errors import ConfigError
from rocketpost.server.settings.broker import broker_settings
from rocketpost.store.files import RealFiles

from .harness import Peer, broker

PROM = {"metricsExporterType": "PROM", "metricsPromExporterPort": 0}


async def fetch(
    peer: Peer,
    path: str = "/metrics",
    *,
    method: str = "GET",
    host: str = "127.0.0.1",
    head: str = "",
) -> tuple[int, str, bytes]:
    """Return status, headers and body of an answer."""
    port = peer.server.monitor.port
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\n{head}\r\n".encode())
    answer = await reader.read()
    writer.close()
    headers, _, body = answer.partition(b"\r\n\r\n")
    return int(headers.split()[1]), headers.decode(), body


async def values(peer: Peer, name: str) -> dict[str, float]:
    """Return the values of a metric by the label that tells its samples apart."""
    status, _, body = await fetch(peer)
    assert status == 200
    return {
        each.labels.get("topic", ""): each.value
        for family in parse(body.decode())
        for each in family.samples
        if each.name == name
    }


async def test_metricsExporterType(tmp_path: Path) -> None:
    async with broker(tmp_path / "off", metricsPromExporterPort=0) as peer:
        assert not peer.server.monitor.is_on
    async with broker(tmp_path / "on", **PROM) as peer:
        await peer.topic("T")
        for _ in range(3):
            await peer.send("T")
        await peer.pull("T")
        fields = {"consumerGroup": "G", "topic": "T", "queueId": 0, "commitOffset": 1}
        await peer.ok(Code.UPDATE_CONSUMER_OFFSET, **fields)
        assert (await values(peer, "rocketmq_messages_in_total"))["T"] == 3
        assert (await values(peer, "rocketmq_messages_out_total"))["T"] == 3
        assert (await values(peer, "rocketmq_consumer_lag_messages"))["T"] == 2
        assert (await values(peer, "rocketmq_consumer_inflight_messages"))["T"] == 2
        assert (await values(peer, "rocketmq_topic_number"))[""] >= 1
        # The series of a deleted topic vanish.
        await peer.ok(Code.DELETE_TOPIC_IN_BROKER, topic="T")
        assert "T" not in await values(peer, "rocketmq_messages_in_total")
        assert "T" not in await values(peer, "rocketmq_consumer_lag_messages")


def test_an_exporter_that_is_missing_is_refused() -> None:
    with pytest.raises(ConfigError, match="metricsExporterType"):
        broker_settings({"metricsExporterType": "LOG"})


async def test_the_port_and_host_of_metrics(tmp_path: Path) -> None:
    async with broker(tmp_path, **PROM, metricsPromExporterHost="127.0.0.5") as peer:
        status, _, _ = await fetch(peer, host="127.0.0.5")
        assert status == 200
        with pytest.raises(ConnectionRefusedError):
            await fetch(peer)
        taken = {**PROM, "metricsPromExporterPort": peer.server.monitor.port}
        with pytest.raises(ConfigError, match="change metricsPromExporterHost"):
            async with broker(tmp_path / "second", **taken, metricsPromExporterHost="127.0.0.5"):
                pass


async def test_metricsLabel(tmp_path: Path) -> None:
    async with broker(tmp_path, **PROM, metricsLabel="zone:a, env:prod") as peer:
        _, _, body = await fetch(peer)
        found = [each for family in parse(body.decode()) for each in family.samples]
        assert found
        assert all(each.labels["zone"] == "a" and each.labels["env"] == "prod" for each in found)
    with pytest.raises(ConfigError, match="is not name:value"):
        broker_settings({"metricsLabel": "zone"})


async def test_metricsOtelCardinalityLimit(tmp_path: Path) -> None:
    async with broker(tmp_path, **PROM, metricsOtelCardinalityLimit=2) as peer:
        for topic in ("A", "B", "C", "D"):
            await peer.topic(topic)
            await peer.send(topic)
        found = await values(peer, "rocketmq_messages_in_total")
        assert found == {"A": 1, "B": 1, "": 2}


async def test_health_and_readiness(tmp_path: Path) -> None:
    async with broker(tmp_path, **PROM) as peer:
        for path in ("/-/healthy", "/livez", "/healthz", "/-/ready", "/readyz"):
            status, _, _ = await fetch(peer, path)
            assert status == 200, path
        peer.server._context.store.set_disk_full("the disk is 99 % full")
        status, _, body = await fetch(peer, "/-/ready")
        assert status == 503
        assert "the disk is 99 % full" in json.loads(body)["reasons"][0]
        assert (await values(peer, "rocketpost_ready"))[""] == 0


class NoRoomForSegments(RealFiles):
    """Real files on a disk that has no room for a segment."""

    def fallocate(self, fd: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


async def test_a_refused_segment_is_reported_and_small_records_are_stored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    large = b"x" * 900_000
    async with broker(tmp_path, **PROM, recallMessageEnable="true") as peer:
        await peer.topic("T")
        handle = (await peer.send("T", TIMER_DELAY_SEC="600")).fields["recallHandle"]
        allocator = peer.server._context.store._allocator
        files, allocator._files = allocator._files, NoRoomForSegments()
        for _ in range(10):
            answer = await peer.send("T", large)
            if answer.code:
                break
        assert (answer.code, "cannot allocate" in (answer.remark or "")) == (14, True)
        assert (await peer.send("T", large)).code == 14
        status, _, body = await fetch(peer, "/-/ready")
        assert status == 503
        [reason] = [each for each in json.loads(body)["reasons"] if "stored" in each]
        assert "No space left on device" in reason
        known = decode_key_values((await peer.ok(Code.GET_BROKER_RUNTIME_INFO)).body)
        assert (known["storeWritable"], known["ready"]) == ("false", "false")
        assert "cannot allocate" in known["storeNotWritableReason"]
        assert (await values(peer, "rocketpost_log_writable"))[""] == 0
        errors = [each for each in caplog.records if "are refused" in each.getMessage()]
        assert len(errors) == 1

        assert (await peer.send("T")).code == 0, "it fits in the present segment"
        await peer.ok(Code.RECALL_MESSAGE, topic="T", recallHandle=handle, producerGroup="P")
        assert await peer.records("T")
        fields = {"consumerGroup": "G", "topic": "T", "queueId": 0, "commitOffset": 1}
        await peer.ok(Code.UPDATE_CONSUMER_OFFSET, **fields)

        allocator._files = files
        assert (await peer.send("T", large)).code == 0
        known = decode_key_values((await peer.ok(Code.GET_BROKER_RUNTIME_INFO)).body)
        assert (known["storeWritable"], known["storeNotWritableReason"]) == ("true", "")
        assert (await values(peer, "rocketpost_log_writable"))[""] == 1


async def test_other_requests_get_clear_answers(tmp_path: Path) -> None:
    async with broker(tmp_path, **PROM) as peer:
        assert (await fetch(peer, "/secret"))[0] == 404
        assert (await fetch(peer, method="POST"))[0] == 405
        status, headers, body = await fetch(peer, method="HEAD")
        assert (status, body) == (200, b"")
        assert "Content-Length" in headers
        assert (await fetch(peer, "/\x01 bad"))[0] == 400
        assert (await fetch(peer, head="x: " + "y" * 50_000 + "\r\n"))[0] == 431


async def test_answers_are_zipped_if_the_client_accepts_that(tmp_path: Path) -> None:
    async with broker(tmp_path, **PROM) as peer:
        accepted = "Accept-Encoding: gzip\r\nAccept: application/openmetrics-text\r\n"
        _, headers, body = await fetch(peer, head=accepted)
        assert "application/openmetrics-text" in headers
        assert gzip.decompress(body).endswith(b"# EOF\n")
