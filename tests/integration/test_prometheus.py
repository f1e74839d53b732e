"""Prometheus itself: it scrapes a live broker, runs every expression, and fires every alert.

Skipped where ``prometheus`` and ``promtool`` are not installed; ``test_served_metrics`` compares
names and labels everywhere.
"""

from __future__ import annotations

import asyncio
import http.server
import json
import shutil
import subprocess
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from rocketpost.client import Message, Producer, PushConsumer
from rocketpost.server.up import SingleNode
from rocketpost.testing.process import free_port

from .metrics_load import TOPIC, make_load
from .test_served_metrics import DEPLOY, MAKER, RULES, ignore, replicated

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("prometheus") is None or shutil.which("promtool") is None,
        reason="prometheus and promtool are not installed",
    ),
]
RULE_FILE = DEPLOY / "prometheus" / "rocketpost-alerts.yml"
ALL = {"$cluster": ".*", "$broker": ".*", "$topic": ".*", "$group": ".*"}
SILENT = {
    "rocketmq_processor_watermark": "nothing waits",
    "rocketmq_send_to_dlq_messages_total": "counted once, before the first scrape",
}
SECONDS_MAX = 60.0


class Prometheus:
    """A running Prometheus."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def get(self, path: str, **fields: str) -> Any:
        """Return the data of an answer of its API."""
        query = urllib.parse.urlencode(fields)
        with urllib.request.urlopen(f"{self._url}/api/v1/{path}?{query}", timeout=10) as answer:
            found = json.load(answer)
        assert found["status"] == "success"
        return found["data"]

    def query(self, expression: str) -> list[Any]:
        """Return the series that an expression finds."""
        result: list[Any] = self.get("query", query=expression)["result"]
        return result

    async def wait(self, expression: str) -> None:
        """Wait until an expression finds something."""
        async with asyncio.timeout(SECONDS_MAX):
            while True:
                try:
                    if await asyncio.to_thread(self.query, expression):
                        return
                except OSError:
                    pass  # it is starting
                await asyncio.sleep(0.1)


@contextmanager
def served(text: str) -> Iterator[int]:
    """Serve metrics that only brokers with replicas have."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def prometheus(directory: Path, ports: list[int]) -> Iterator[Prometheus]:
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULE_FILE)],
        "scrape_configs": [
            {
                "job_name": "rocketpost",
                "static_configs": [{"targets": [f"127.0.0.1:{port}" for port in ports]}],
            }
        ],
    }
    file = directory / "prometheus.yml"
    file.write_text(yaml.safe_dump(config))
    port = free_port()
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={file}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        yield Prometheus(port)
    finally:
        process.terminate()
        process.wait(30)


def expressions() -> dict[str, str]:
    """Return all expressions of dashboards, with every choice at their top set to all."""
    found = {}
    for name in MAKER.DASHBOARDS:
        board = json.loads((DEPLOY / "grafana" / f"rocketpost-{name}.json").read_text())
        for panel in board["panels"]:
            for target in panel["targets"]:
                text = target["expr"]
                for variable, value in ALL.items():
                    text = text.replace(variable, value)
                found[f"{name}: {panel['title']}: {text}"] = text
    return found


@pytest.mark.timeout(240)
async def test_prometheus_runs_every_expression(tmp_path: Path) -> None:
    settings = {
        "metricsExporterType": "PROM",
        "metricsPromExporterPort": "0",
        "mappedFileSizeCommitLog": "8388608",
    }
    node = SingleNode(tmp_path / "node", settings=settings)
    await node.start()
    assert node.broker is not None
    try:
        with (
            served(replicated()) as other,
            prometheus(tmp_path, [node.broker.monitor.port, other]) as found,
        ):
            await found.wait("count(up == 1) == 2")
            await make_load(node.address, node.broker.address)
            consumer = PushConsumer("readers", name_servers=node.address)
            consumer.subscribe(TOPIC, ignore)
            async with Producer("golden", name_servers=node.address) as producer, consumer:
                await producer.send(Message(TOPIC, b"one more"))
                for kind in ("producer", "consumer"):
                    await found.wait(f"rocketmq_{kind}_connections")
                await found.wait("min(count_over_time(up[1m])) > 5")
                results = {
                    place: await asyncio.to_thread(found.query, text)
                    for place, text in expressions().items()
                }
                rules = await asyncio.to_thread(found.get, "rules")
    finally:
        await node.stop()
    empty = [each for each, result in results.items() if not result]
    assert [each for each in empty if not any(name in each for name in SILENT)] == []
    states = {
        rule["name"]: (rule["health"], rule.get("lastError", ""))
        for group in rules["groups"]
        for rule in group["rules"]
    }
    assert len(states) == len(RULES)
    assert {name: why for name, why in states.items() if why != ("ok", "")} == {}


def test_the_rules_are_well_formed() -> None:
    done = subprocess.run(
        ["promtool", "check", "rules", str(RULE_FILE)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"SUCCESS: {len(RULES)} rules found" in done.stdout


BROKER = 'cluster="c",node_type="broker",node_id="b",instance="i:1",job="rocketpost"'
SLAVE = BROKER.replace("i:1", "i:2")
DISK = 'storage_type="local",storage_medium="disk"'
GROUP = 'consumer_group="g",topic="t",is_retry="false",is_system="false"'


def bad(name: str, value: str, more: str = "", *, of: str = BROKER) -> dict[str, str]:
    """Return a series of a broker; ``value`` is in promtool's notation."""
    return {"series": f"{name}{{{of}{',' if more else ''}{more}}}", "values": value}


def slow(name: str, more: str = "") -> list[dict[str, str]]:
    """Return a histogram whose values are all in the highest bucket."""
    before = f"{more}," if more else ""
    return [
        bad(f"{name}_bucket", "0+0x60", f'{before}le="0.1"'),
        bad(f"{name}_bucket", "0+100x60", f'{before}le="3000"'),
        bad(f"{name}_bucket", "0+100x60", f'{before}le="+Inf"'),
    ]


FIRING: dict[str, list[dict[str, str]]] = {
    "RocketpostBrokerDown": [bad("up", "0x60")],
    "RocketpostBrokerNotReady": [bad("rocketpost_ready", "0x60")],
    "RocketpostLogNotWritable": [bad("rocketpost_log_writable", "0x60")],
    # A master and a slave have the same node_id.
    "RocketpostDiskAlmostFull": [
        bad("rocketpost_disk_free_bytes", "10x60"),
        bad("rocketmq_storage_size_bytes", "90x60", DISK),
        bad("rocketpost_disk_free_bytes", "80x60", of=SLAVE),
        bad("rocketmq_storage_size_bytes", "20x60", DISK, of=SLAVE),
    ],
    "RocketpostFlushBehind": [bad("rocketmq_storage_flush_behind_bytes", "300000000x60", DISK)],
    "RocketpostDispatchBehind": [
        bad("rocketmq_storage_dispatch_behind_bytes", "70000000x60", DISK)
    ],
    "RocketpostEventLoopLate": slow("rocketpost_event_loop_delay_seconds"),
    "RocketpostSendsSlow": slow(
        "rocketmq_rpc_latency_milliseconds", 'request_code="send_message_v2"'
    ),
    "RocketpostRequestsRefused": [
        bad("rocketmq_rpc_latency_milliseconds_count", "0+600x60", 'response_code="system_busy"')
    ],
    "RocketpostConnectionsNearLimit": [
        bad("rocketpost_connections", "95x60"),
        bad("rocketpost_connections_max", "100x60"),
    ],
    "RocketpostRestarted": [
        bad("process_cpu_seconds_total", "0 9 1 9 1 9 1 9 1 9 1 9 1 9 1 9 1 9 1 9 1 9 1 9 1 9 1")
    ],
    "RocketpostLoginsFail": [bad("rocketpost_access_refused_total", "0+600x60", 'reason="login"')],
    "RocketpostGroupFarBehind": [bad("rocketmq_consumer_lag_messages", "200000x60", GROUP)],
    "RocketpostGroupLate": [bad("rocketmq_consumer_lag_latency_milliseconds", "700000x60", GROUP)],
    "RocketpostGroupWithoutMembers": [
        bad("rocketmq_consumer_lag_messages", "1x60", GROUP),
        bad("rocketmq_consumer_connections", "1x60", 'consumer_group="other"'),
    ],
    "RocketpostDeadLetters": [bad("rocketmq_send_to_dlq_messages_total", "0 0 0+1x60", GROUP)],
    "RocketpostPoppedOverdue": [bad("rocketpost_popped_overdue_seconds", "70x60")],
    "RocketpostTimedMessagesLate": [
        bad("rocketmq_timer_dequeue_latency_milliseconds", "11000x60", DISK)
    ],
    "RocketpostTransactionsPending": [bad("rocketmq_half_messages", "20000x60", 'topic="t"')],
    "RocketpostReplicaBehind": [
        bad("rocketpost_replica_behind_bytes", "300000000x60", 'replica="h:1"')
    ],
    "RocketpostSlaveAlone": [bad("rocketpost_follows_master", "0x60")],
    "RocketpostGroupWithoutLeader": [
        bad("rocketpost_group_has_leader", "0x60"),
        bad("rocketpost_group_has_leader", "0x60", of=SLAVE),
    ],
    "RocketpostGroupMemberUnreachable": [
        bad("rocketpost_group_member_unreachable", "1x60", 'member="n1"')
    ],
    "RocketpostGroupMemberSuspect": [bad("rocketpost_group_suspect", "1x60")],
}
"""Series for which each alert must fire."""
HEALTHY = [
    bad("up", "1x60"),
    bad("rocketpost_ready", "1x60"),
    bad("rocketpost_log_writable", "1x60"),
    bad("rocketpost_disk_free_bytes", "90x60"),
    bad("rocketmq_storage_size_bytes", "10x60", DISK),
    bad("rocketmq_consumer_lag_messages", "5x60", GROUP),
    bad("rocketmq_consumer_connections", "1x60", 'consumer_group="g"'),
    bad("rocketmq_send_to_dlq_messages_total", "7x60", GROUP),
    bad("process_cpu_seconds_total", "0+1x60"),
    bad("rocketpost_follows_master", "1x60"),
    bad("rocketpost_group_has_leader", "1x60"),
    bad("rocketpost_group_has_leader", "0x60", of=SLAVE),
]
"""Series of brokers without problems."""


def evaluate(directory: Path, series: list[dict[str, str]], alerts: dict[str, int]) -> str:
    """Run the rules over half an hour; return what promtool has to say about the alerts."""
    checks = [
        {
            "eval_time": "30m",
            "alertname": alert,
            "exp_alerts": [{"exp_labels": {"unknown": "x"}}] * count,
        }
        for alert, count in alerts.items()
    ]
    test = {
        "rule_files": [str(RULE_FILE)],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": series, "alert_rule_test": checks}],
    }
    file = directory / "test.yml"
    file.write_text(yaml.safe_dump(test))
    done = subprocess.run(
        ["promtool", "test", "rules", str(file)], capture_output=True, text=True, check=False
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.parametrize("alert", [rule["alert"] for rule in RULES])
def test_an_alert_fires(tmp_path: Path, alert: str) -> None:
    # promtool compares all labels; it is enough that it finds one alert, of the right severity.
    said = evaluate(tmp_path, FIRING[alert], {alert: 1})
    _, _, got = said.partition("got:[")
    assert got.count("Labels:") == 1, said
    severity = next(rule["labels"]["severity"] for rule in RULES if rule["alert"] == alert)
    assert f'severity="{severity}"' in got
    assert "<no value>" not in got, "the summary names a label that the alert does not have"


def test_no_alert_fires_for_healthy_brokers(tmp_path: Path) -> None:
    assert evaluate(tmp_path, HEALTHY, {rule["alert"]: 0 for rule in RULES}) == ""
