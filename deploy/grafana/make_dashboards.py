"""Makes the four Grafana dashboards beside this file: overview, broker, topic, group.

Run as ``python deploy/grafana/make_dashboards.py``. A test compares the files with the result, and
every expression with a scrape of a live broker.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, NamedTuple

HERE: Final = Path(__file__).parent
BROKER: Final = 'cluster=~"$cluster",node_id=~"$broker"'
TOPIC: Final = f'{BROKER},topic=~"$topic"'
GROUP: Final = f'{BROKER},consumer_group=~"$group"'


class Panel(NamedTuple):
    """One graph: its title, its unit, and its expressions with their legends."""

    title: str
    unit: str
    lines: dict[str, str]


def quantile(part: str, name: str, labels: str, by: str = "") -> str:
    """Return the expression of a quantile of a histogram."""
    kept = f"le,{by}" if by else "le"
    return f"histogram_quantile({part}, sum by ({kept}) (rate({name}_bucket{{{labels}}}[5m])))"


OVERVIEW: Final = [
    Panel("Messages in", "ops", {
        f"sum by (node_id) (rate(rocketmq_messages_in_total{{{BROKER}}}[1m]))": "{{node_id}}"}),
    Panel("Messages out", "ops", {
        f"sum by (node_id) (rate(rocketmq_messages_out_total{{{BROKER}}}[1m]))": "{{node_id}}"}),
    Panel("Lag of groups", "short", {
        f'topk(10, sum by (consumer_group) (rocketmq_consumer_lag_messages{{{BROKER},is_system="false"}}))':
            "{{consumer_group}}"}),
    Panel("Oldest message not consumed", "ms", {
        f'topk(10, max by (consumer_group) (rocketmq_consumer_lag_latency_milliseconds{{{BROKER},is_system="false"}}))':
            "{{consumer_group}}"}),
    Panel("Ready", "short", {f"rocketpost_ready{{{BROKER}}}": "{{node_id}}"}),
    Panel("Disk free", "bytes", {f"rocketpost_disk_free_bytes{{{BROKER}}}": "{{node_id}}"}),
    Panel("Clients", "short", {
        f"sum by (node_id) (rocketmq_producer_connections{{{BROKER}}})": "producers {{node_id}}",
        f"sum by (node_id) (rocketmq_consumer_connections{{{BROKER}}})": "consumers {{node_id}}"}),
    Panel("Replicas behind", "bytes", {
        f"rocketpost_replica_behind_bytes{{{BROKER}}}": "{{node_id}} {{replica}}",
        f"rocketpost_group_member_behind_bytes{{{BROKER}}}": "{{node_id}} {{member}}"}),
    Panel("Dead letters", "ops", {
        f"sum by (consumer_group) (rate(rocketmq_send_to_dlq_messages_total{{{BROKER}}}[5m]))":
            "{{consumer_group}}"}),
]  # fmt: skip
BROKERS: Final = [
    Panel("Request time, 99 %", "ms", {
        quantile("0.99", "rocketmq_rpc_latency_milliseconds", f'{BROKER},is_long_polling="false"', "request_code"):
            "{{request_code}}"}),
    Panel("Requests", "ops", {
        f"sum by (request_code) (rate(rocketmq_rpc_latency_milliseconds_count{{{BROKER}}}[1m]))":
            "{{request_code}}"}),
    Panel("Refused requests", "ops", {
        f'sum by (request_code, response_code) (rate(rocketmq_rpc_latency_milliseconds_count{{{BROKER},response_code!~"success|pull_.*"}}[5m]))':
            "{{request_code}} {{response_code}}",
        f"sum by (reason) (rate(rocketpost_access_refused_total{{{BROKER}}}[5m]))": "access {{reason}}"}),
    Panel("Requests that wait", "short", {
        f"rocketmq_processor_watermark{{{BROKER}}} > 0": "{{processor}}",
        f"rocketpost_waiting_sends{{{BROKER}}}": "sends for {{reason}}",
        f"rocketpost_held_pulls{{{BROKER}}}": "held pulls",
        f"rocketpost_held_pops{{{BROKER}}}": "held pops"}),
    Panel("Event loop delay", "s", {
        quantile("0.99", "rocketpost_event_loop_delay_seconds", BROKER, "node_id"): "99 % {{node_id}}"}),
    Panel("Part of requests served by lanes", "percentunit", {
        f"sum by (node_id) (rate(rocketpost_lane_requests_total{{{BROKER}}}[5m])) / "
        f"sum by (node_id) (rate(rocketmq_rpc_latency_milliseconds_count{{{BROKER}}}[5m]))": "{{node_id}}"}),
    Panel("Not on disk, not visible", "bytes", {
        f"rocketmq_storage_flush_behind_bytes{{{BROKER}}}": "not on disk {{node_id}}",
        f"rocketmq_storage_dispatch_behind_bytes{{{BROKER}}}": "not visible {{node_id}}"}),
    Panel("Syncs", "ops", {f"rate(rocketpost_log_syncs_total{{{BROKER}}}[1m])": "{{node_id}}"}),
    Panel("Connections", "short", {
        f"rocketpost_connections{{{BROKER}}}": "{{node_id}}",
        f"rocketpost_connections_max{{{BROKER}}}": "limit {{node_id}}"}),
    Panel("CPU", "percentunit", {f"rate(process_cpu_seconds_total{{{BROKER}}}[1m])": "{{node_id}}"}),
    Panel("Memory", "bytes", {f"process_resident_memory_bytes{{{BROKER}}}": "{{node_id}}"}),
    Panel("Reads that waited for the disk", "ops", {
        f"rate(rocketpost_cold_reads_total{{{BROKER}}}[5m])": "{{node_id}}"}),
]  # fmt: skip
TOPICS: Final = [
    Panel("Messages in", "ops", {
        f"sum by (topic) (rate(rocketmq_messages_in_total{{{TOPIC}}}[1m]))": "{{topic}}"}),
    Panel("Bytes in", "Bps", {
        f"sum by (topic) (rate(rocketmq_throughput_in_total{{{TOPIC}}}[1m]))": "{{topic}}"}),
    Panel("Message size", "bytes", {
        quantile("0.5", "rocketmq_message_size", TOPIC, "topic"): "half {{topic}}",
        quantile("0.99", "rocketmq_message_size", TOPIC, "topic"): "99 % {{topic}}"}),
    Panel("Messages out", "ops", {
        f"sum by (topic, consumer_group) (rate(rocketmq_messages_out_total{{{TOPIC}}}[1m]))":
            "{{topic}} {{consumer_group}}"}),
    Panel("Timed messages that wait", "short", {
        f"sum by (topic) (rocketmq_timing_messages{{{TOPIC}}})": "{{topic}}"}),
    Panel("Timed messages", "ops", {
        f"sum by (topic) (rate(rocketmq_timer_enqueue_total{{{TOPIC}}}[5m]))": "taken {{topic}}",
        f"sum by (topic) (rate(rocketmq_timer_dequeue_total{{{TOPIC}}}[5m]))": "delivered {{topic}}"}),
    Panel("Transactions", "ops", {
        f"sum by (topic) (rate(rocketmq_commit_messages_total{{{TOPIC}}}[5m]))": "committed {{topic}}",
        f"sum by (topic) (rate(rocketmq_rollback_messages_total{{{TOPIC}}}[5m]))": "rolled back {{topic}}"}),
    Panel("Pending transactions", "short", {
        f"sum by (topic) (rocketmq_half_messages{{{TOPIC}}})": "{{topic}}"}),
]  # fmt: skip
GROUPS: Final = [
    Panel("Lag", "short", {
        f"sum by (consumer_group, topic) (rocketmq_consumer_lag_messages{{{GROUP}}})":
            "{{consumer_group}} {{topic}}"}),
    Panel("Not given yet", "short", {
        f"sum by (consumer_group) (rocketmq_consumer_ready_messages{{{GROUP}}})": "{{consumer_group}}"}),
    Panel("Given, not consumed", "short", {
        f"sum by (consumer_group) (rocketmq_consumer_inflight_messages{{{GROUP}}})": "{{consumer_group}}"}),
    Panel("Oldest message not consumed", "ms", {
        f"max by (consumer_group, topic) (rocketmq_consumer_lag_latency_milliseconds{{{GROUP}}})":
            "{{consumer_group}} {{topic}}"}),
    Panel("Oldest message not given", "ms", {
        f"max by (consumer_group, topic) (rocketmq_consumer_queueing_latency_milliseconds{{{GROUP}}})":
            "{{consumer_group}} {{topic}}"}),
    Panel("Messages out", "ops", {
        f"sum by (consumer_group, topic) (rate(rocketmq_messages_out_total{{{GROUP}}}[1m]))":
            "{{consumer_group}} {{topic}}"}),
    Panel("Members", "short", {
        f"sum by (consumer_group, language, version) (rocketmq_consumer_connections{{{GROUP}}})":
            "{{consumer_group}} {{language}} {{version}}"}),
    Panel("Dead letters", "ops", {
        f"sum by (consumer_group, topic) (rate(rocketmq_send_to_dlq_messages_total{{{GROUP}}}[5m]))":
            "{{consumer_group}} {{topic}}"}),
    Panel("Popped messages delivered again", "ops", {
        f"sum by (consumer_group) (rate(rocketmq_pop_revive_retry_messages_total{{{GROUP}}}[5m]))":
            "{{consumer_group}}"}),
]  # fmt: skip
VARIABLES: Final = {
    "cluster": "label_values(rocketpost_ready, cluster)",
    "broker": 'label_values(rocketpost_ready{cluster=~"$cluster"}, node_id)',
    "topic": 'label_values(rocketmq_messages_in_total{is_system="false"}, topic)',
    "group": 'label_values(rocketmq_consumer_lag_messages{is_system="false"}, consumer_group)',
}
DASHBOARDS: Final = {
    "overview": ("Rocketpost: overview", OVERVIEW, ()),
    "broker": ("Rocketpost: broker", BROKERS, ()),
    "topic": ("Rocketpost: topic", TOPICS, ("topic",)),
    "group": ("Rocketpost: consumer group", GROUPS, ("group",)),
}


def make_dashboard(name: str) -> dict[str, Any]:
    """Return a dashboard in the form that Grafana imports."""
    title, panels, variables = DASHBOARDS[name]
    return {
        "uid": f"rocketpost-{name}",
        "title": title,
        "tags": ["rocketpost", "rocketmq"],
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus"},
                *(make_variable(each) for each in ("cluster", "broker", *variables)),
            ]
        },
        "panels": [make_panel(at, panel) for at, panel in enumerate(panels)],
    }


def make_variable(name: str) -> dict[str, Any]:
    """Return a choice at the top of a dashboard."""
    return {
        "name": name,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": VARIABLES[name],
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
        "refresh": 2,
        "sort": 1,
    }


def make_panel(at: int, panel: Panel) -> dict[str, Any]:
    """Return a graph at its place: three in a row."""
    source = {"type": "prometheus", "uid": "${datasource}"}
    return {
        "id": at + 1,
        "type": "timeseries",
        "title": panel.title,
        "datasource": source,
        "gridPos": {"h": 8, "w": 8, "x": at % 3 * 8, "y": at // 3 * 8},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "datasource": source,
                "expr": text,
                "legendFormat": legend,
            }
            for number, (text, legend) in enumerate(panel.lines.items())
        ],
    }


def main() -> None:
    """Write all dashboards."""
    for name in DASHBOARDS:
        text = json.dumps(make_dashboard(name), indent=1) + "\n"
        (HERE / f"rocketpost-{name}.json").write_text(text)


if __name__ == "__main__":
    main()
