"""The metrics of a live broker: as Apache's 5.5, and enough for our dashboards and alert rules."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families as parse

from rocketpost.client import Message, Producer, PullConsumer, PushConsumer
from rocketpost.client.admin import AdminClient
from rocketpost.codec.bodies.group_status import GroupStatus, MemberState
from rocketpost.server.metrics.exposition import Writer
from rocketpost.server.metrics.replication import (
    group_families,
    master_families,
    slave_families,
)
from rocketpost.server.replication.status import MasterStatus, ReplicaStatus, SlaveStatus
from rocketpost.server.up import SingleNode

from .metrics_load import POPPED, TOPIC, make_load, scrape
from .promql import problems

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
GOLDEN = json.loads((ROOT / "tests/golden/apache-5.5.0-metrics.json").read_text())
ABSENT = {
    "rocketmq_pop_buffer_scan_time_consume_milliseconds": "there is no buffer that is scanned",
    "rocketmq_pop_revive_lag_milliseconds": "the revive topic is read at a start only",
    "rocketmq_pop_revive_latency_milliseconds": "the revive topic is read at a start only",
    "rocketmq_timer_message_snapshot": "the wheel would be read for every scrape",
}
SETTINGS = {
    "metricsExporterType": "PROM",
    "metricsPromExporterPort": "0",
    "mappedFileSizeCommitLog": "8388608",
}
LAG = {
    "rocketmq_consumer_lag_messages",
    "rocketmq_messages_out_total",
    "rocketmq_send_to_dlq_messages_total",
}
POPS = {"rocketmq_pop_revive_in_message_total", "rocketmq_pop_revive_retry_messages_total"}
CONNECTED = {"rocketmq_consumer_connections", "rocketmq_producer_connections"}
OTHER_LABELS = {
    # Apache's have them on some series only.
    "rocketmq_messages_out_total": {"is_retry"},
    "rocketmq_throughput_out_total": {"is_retry"},
}


class Scrape:
    """What a live broker serves after a little of everything."""

    def __init__(self, text: str, families: dict[str, dict[str, Any]]) -> None:
        self.families = families
        self.served: dict[str, dict[str, set[str]]] = {"up": {"job": {"rocketpost"}}}
        for family in parse(text):
            for sample in family.samples:
                labels = self.served.setdefault(sample.name, {})
                for name, value in sample.labels.items():
                    labels.setdefault(name, set()).add(value)


def replicated() -> str:
    """Return the metrics that only brokers with replicas have."""
    member = MemberState(name="n1", address="h:1", is_known=True)
    status = GroupStatus(group="g", member="n0", role="LEADER", members=[member])
    families = [
        *group_families(status),
        *master_families(MasterStatus([ReplicaStatus("h:2", 5, 5)]), 10),
        *slave_families(SlaveStatus(last_read_ms=1), now_ms=2),
    ]
    common = 'cluster="c",node_type="broker",node_id="b"'
    return b"".join(Writer(common=common, series_max=100).slices(families)).decode()


def series_of(text: str, **labels: str) -> set[str]:
    """Return the names of all samples that have these labels."""
    return {
        sample.name
        for family in parse(text)
        for sample in family.samples
        if labels.items() <= sample.labels.items()
    }


async def fetch(url: str) -> str:
    def get() -> str:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return str(answer.read(), "utf-8")

    return await asyncio.to_thread(get)


async def test_the_series_of_deleted_groups_and_topics_vanish(tmp_path: Path) -> None:
    node = SingleNode(tmp_path, settings=SETTINGS)
    await node.start()
    assert node.broker is not None
    url = f"http://127.0.0.1:{node.broker.monitor.port}/metrics"
    try:
        await make_load(node.address, node.broker.address)
        async with AdminClient(name_servers=node.address) as admin:
            before = await fetch(url)
            assert series_of(before, consumer_group="readers") >= LAG
            assert series_of(before, consumer_group="poppers") >= POPS
            assert "rocketmq_timing_messages" in series_of(before, topic=TOPIC)
            assert "rocketmq_half_messages" in series_of(before, topic=TOPIC)
            for group in ("readers", "poppers"):  # their offsets are kept
                await admin.groups.delete(node.broker.address, group)
            without_groups = await fetch(url)
            for group in ("readers", "poppers"):
                assert series_of(without_groups, consumer_group=group) == set()
            assert "rocketmq_messages_in_total" in series_of(without_groups, topic=TOPIC)
            for topic in (TOPIC, POPPED):
                await admin.topics.delete(topic, [node.broker.address])
            without_topics = await fetch(url)
            for topic in (TOPIC, POPPED):
                assert series_of(without_topics, topic=topic) == set()
    finally:
        await node.stop()


async def test_lag_is_exact(tmp_path: Path) -> None:
    node = SingleNode(tmp_path, settings=SETTINGS)
    await node.start()
    assert node.broker is not None
    url = f"http://127.0.0.1:{node.broker.monitor.port}/metrics"

    async def shown() -> tuple[float, float, float]:
        text = await fetch(url)
        ready, in_flight, lag = (
            value_of(text, f"rocketmq_consumer_{name}_messages", "counting")
            for name in ("ready", "inflight", "lag")
        )
        return ready, in_flight, lag

    try:
        async with (
            Producer("golden", name_servers=node.address) as producer,
            PullConsumer("counting", name_servers=node.address) as consumer,
        ):
            counts = Counter(
                [(await producer.send(Message("Exact", b"x"))).queue for _ in range(40)]
            )
            for number, queue in enumerate(counts):
                await consumer.commit_offset(queue, number)
            left = sum(count - number for number, count in enumerate(counts.values()))
            assert await shown() == (left, 0, left)
            first = next(iter(counts))
            pulled = await consumer.pull(first, 0, count_max=3)
            assert len(pulled.messages) == 3
            assert await shown() == (left - 3, 3, left)
            await consumer.commit_offset(first, 2)
            assert await shown() == (left - 3, 1, left - 2)
            await producer.send(Message("Exact", b"more"))
            assert await shown() == (left - 2, 1, left - 1)
    finally:
        await node.stop()


def value_of(text: str, name: str, group: str) -> float:
    """Return the value of the only sample of a group."""
    [value] = [
        sample.value
        for family in parse(text)
        for sample in family.samples
        if sample.name == name and sample.labels["consumer_group"] == group
    ]
    return value


async def ignore(message: object) -> None:
    """Consume a message."""


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scrape]:
    async def load() -> Scrape:
        node = SingleNode(tmp_path_factory.mktemp("live"), settings=SETTINGS)
        await node.start()
        assert node.broker is not None
        try:
            await make_load(node.address, node.broker.address)
            url = f"http://127.0.0.1:{node.broker.monitor.port}/metrics"
            consumer = PushConsumer("readers", name_servers=node.address)
            consumer.subscribe(TOPIC, ignore)
            families: dict[str, dict[str, Any]] = {}
            producer = Producer("golden", name_servers=node.address)
            async with producer, consumer, asyncio.timeout(30):
                await producer.send(Message(TOPIC, b"one more"))
                while not families.keys() >= CONNECTED:
                    families = await asyncio.to_thread(scrape, url)
                with await asyncio.to_thread(urllib.request.urlopen, url) as answer:
                    text = answer.read().decode()
        finally:
            await node.stop()
        return Scrape(text + replicated(), families)

    return asyncio.run(load())


@pytest.mark.parametrize("name", sorted(GOLDEN))
def test_a_metric_of_apache_has_the_same_type_and_labels(live: Scrape, name: str) -> None:
    ours = live.families.get(name)
    if name in ABSENT:
        assert ours is None
        return
    assert ours is not None, f"{name} is not served"
    wanted = GOLDEN[name]
    assert ours["type"] == wanted["type"]
    other = OTHER_LABELS.get(name, set())
    ignored = other | {"otel_scope_version", "otel_scope_schema_url"}
    assert set(ours["labels"]) - ignored == set(wanted["labels"]) - ignored


def test_our_own_metrics_do_not_take_names_of_rocketmq(live: Scrape) -> None:
    others = {name for name in live.families if not name.startswith(("rocketmq_", "process_"))}
    assert all(name.startswith("rocketpost_") for name in others)


def dashboards() -> Any:
    spec = importlib.util.spec_from_file_location(
        "make_dashboards", DEPLOY / "grafana" / "make_dashboards.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MAKER = dashboards()


@pytest.mark.parametrize("name", sorted(MAKER.DASHBOARDS))
def test_every_expression_of_a_dashboard_finds_metrics(live: Scrape, name: str) -> None:
    text = (DEPLOY / "grafana" / f"rocketpost-{name}.json").read_text()
    dashboard = json.loads(text)
    assert dashboard == MAKER.make_dashboard(name), "run deploy/grafana/make_dashboards.py"
    found = {
        target["expr"]: problems(target["expr"], live.served)
        for panel in dashboard["panels"]
        for target in panel["targets"]
    }
    assert len(found) >= 8
    assert {each: why for each, why in found.items() if why} == {}
    for variable in dashboard["templating"]["list"][1:]:
        selector, _, label = variable["query"][len("label_values(") : -1].rpartition(", ")
        assert problems(selector, live.served) == []
        assert label in live.served[selector.partition("{")[0]]


RULES = [
    rule
    for group in yaml.safe_load((DEPLOY / "prometheus/rocketpost-alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_every_alert_rule_finds_metrics(live: Scrape, rule: dict[str, Any]) -> None:
    assert problems(rule["expr"], live.served) == []
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert rule["annotations"]["summary"]


def test_there_are_about_twenty_rules_with_names_of_their_own() -> None:
    assert len(RULES) >= 20
    assert len({rule["alert"] for rule in RULES}) == len(RULES)


def test_the_check_notices_wrong_names() -> None:
    served = {"x_bucket": {"le": {"1"}, "topic": {"T"}}}
    assert problems('sum by (le, topic) (rate(x_bucket{topic="T"}[5m])) > 3', served) == []
    assert problems("rate(y[5m])", served) == ["there is no metric y"]
    assert problems('x_bucket{group="G"}', served) == ["x_bucket has no label group"]
    assert problems('x_bucket{topic="U"}', served) == ["x_bucket never has topic=U"]
    assert problems("sum by (group) (x_bucket)", served) == ["x_bucket has no label group"]
    with pytest.raises(ValueError, match="parenthesis"):
        problems("sum by (", served)
