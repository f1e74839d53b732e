"""The metric families of a broker, by RocketMQ's names as a scrape of 5.5 shows them.

Numbers come from counters and tables that the broker keeps anyway, so requests cost nothing more.
Features add their own families (:meth:`Feature.metrics`). Names that RocketMQ does not have begin
with ``rocketpost_``.
"""

from __future__ import annotations

import os
import resource
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, cast

from rocketpost import VERSION
from rocketpost.broker.attributes import MESSAGE_TYPE
from rocketpost.kernel import FORM
from rocketpost.model.client_version import version_text
from rocketpost.model.names import RETRY_PREFIX, is_retry_or_dlq, is_system_group
from rocketpost.server.context import BrokerContext
from rocketpost.server.metrics.exposition import (
    Family,
    Sample,
    counter,
    gauge,
    label_text,
    single,
)
from rocketpost.server.metrics.group_lags import GroupLag, LagQueue, group_lags
from rocketpost.server.term import Term

_PAGE_BYTES: Final = resource.getpagesize()
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_MODES: Final = {"CONSUME_PASSIVELY": "push", "CONSUME_ACTIVELY": "pull", "CONSUME_POP": "pop"}
_STORAGE: Final = label_text({"storage_type": "local", "storage_medium": "disk"})


class DiskUse(NamedTuple):
    """Bytes of the partition that holds the commit log."""

    used: int
    free: int


class BrokerMetrics:
    """Collects the metrics of one broker. Owned by the loop.

    Args:
        context: The state of the broker.
        term: Returns the current term.
    """

    def __init__(self, context: BrokerContext, *, term: Callable[[], Term]) -> None:
        self._context = context
        self._term = term
        self.common_labels = label_text(
            {
                "cluster": context.identity.cluster,
                "node_type": "broker",
                "node_id": context.identity.name,
                "otel_scope_name": "broker-meter",
            }
        )

    def families(self, *, disk: DiskUse, is_ready: bool) -> Iterator[Family]:
        """Return all families; each is collected when it is asked for."""
        yield from self._process(is_ready)
        yield from self._messages()
        yield from self._groups()
        yield from self._clients()
        yield from self._tables()
        yield from self._storage(disk)
        for feature in self._term().features:
            yield from feature.metrics()

    def _process(self, is_ready: bool) -> Iterator[Family]:
        build = label_text({"version": VERSION, "kernel": FORM.word})
        yield gauge("rocketpost_build_info", "Version of the broker.", [Sample(build, 1)])
        yield gauge("rocketpost_ready", "Whether the broker is ready.", single(int(is_ready)))
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        yield counter(
            "process_cpu_seconds_total",
            "CPU time of the process in seconds.",
            single((int(fields[11]) + int(fields[12])) / _TICKS),
        )
        yield gauge(
            "process_resident_memory_bytes",
            "Memory of the process that is in RAM.",
            single(int(fields[21]) * _PAGE_BYTES),
        )
        yield gauge(
            "process_open_fds",
            "Open file descriptors of the process.",
            single(len(os.listdir("/proc/self/fd"))),
        )

    def _messages(self) -> Iterator[Family]:
        stats, topics = self._context.stats, self._context.tables.topics
        stored = [
            (self._topic_labels(topic), meter)
            for topic, meter in stats.topics()
            if not is_retry_or_dlq(topic)
        ]
        yield counter(
            "rocketmq_messages_in_total",
            "Messages stored.",
            [Sample(labels, meter.count) for labels, meter in stored],
        )
        yield counter(
            "rocketmq_throughput_in_total",
            "Bytes of messages stored.",
            [Sample(labels, meter.size) for labels, meter in stored],
        )
        taken = [
            (
                label_text(
                    {
                        "topic": topic,
                        "consumer_group": group,
                        "is_system": _flag(topics.is_system(topic) or is_system_group(group)),
                    }
                ),
                meter,
            )
            for topic, group, meter in stats.groups()
        ]
        yield counter(
            "rocketmq_messages_out_total",
            "Messages given to consumers.",
            [Sample(labels, meter.count) for labels, meter in taken],
        )
        yield counter(
            "rocketmq_throughput_out_total",
            "Bytes of messages given to consumers.",
            [Sample(labels, meter.size) for labels, meter in taken],
        )

    def _topic_labels(self, topic: str) -> str:
        config = self._context.tables.topics.find(topic)
        kind = "" if config is None else config.attributes.get(MESSAGE_TYPE, "")
        return label_text(
            {
                "topic": topic,
                "message_type": kind.lower() or "normal",
                "is_system": _flag(self._context.tables.topics.is_system(topic)),
            }
        )

    def _groups(self) -> Iterator[Family]:
        context, now_ms = self._context, self._context.clock.now_ms()
        lags = [
            (self._lag_labels(lag), lag)
            for lag in group_lags(
                context.tables.offsets,
                cast(Callable[[str], list[LagQueue]], context.store.queues_of),
                self._term().popped_count,
                now_ms=now_ms,
            )
        ]

        def family(name: str, text: str, value: Callable[[GroupLag], int]) -> Family:
            samples = [Sample(labels, value(lag)) for labels, lag in lags]
            return gauge(f"rocketmq_consumer_{name}", text, samples)

        yield family("lag_messages", "Messages that are not consumed.", lambda each: each.lag)
        yield family(
            "inflight_messages",
            "Messages that a group was given and has not consumed.",
            lambda each: each.in_flight,
        )
        yield family(
            "ready_messages", "Messages that a group was not given yet.", lambda each: each.ready
        )
        yield family(
            "lag_latency_milliseconds",
            "Age of the oldest message that is not consumed.",
            lambda each: each.lag_ms,
        )
        yield family(
            "queueing_latency_milliseconds",
            "Age of the oldest message that a group was not given yet.",
            lambda each: each.queueing_ms,
        )

    def _lag_labels(self, lag: GroupLag) -> str:
        is_system = self._context.tables.topics.is_system(lag.topic) or is_system_group(lag.group)
        return label_text(
            {
                "consumer_group": lag.group,
                "topic": lag.topic,
                "is_retry": _flag(lag.topic.startswith(RETRY_PREFIX)),
                "is_system": _flag(is_system),
            }
        )

    def _clients(self) -> Iterator[Family]:
        membership = self._context.membership
        producers = Counter(
            (member.client.language.lower(), version_text(member.client.version).lower())
            for members in membership.producers.values()
            for member in members.values()
        )
        yield gauge(
            "rocketmq_producer_connections",
            "Connected producers.",
            [
                Sample(
                    label_text(
                        {"language": language, "version": version, "protocol_type": "remoting"}
                    ),
                    count,
                )
                for (language, version), count in producers.items()
            ],
        )
        consumers = Counter(
            (
                name,
                member.client.language.lower(),
                version_text(member.client.version).lower(),
                _MODES.get(group.consume_type, "unknown"),
            )
            for name, group in membership.consumers.items()
            for member in group.members.values()
        )
        yield gauge(
            "rocketmq_consumer_connections",
            "Connected consumers.",
            [
                Sample(
                    label_text(
                        {
                            "consumer_group": group,
                            "language": language,
                            "version": version,
                            "consume_mode": mode,
                            "protocol_type": "remoting",
                            "is_system": _flag(is_system_group(group)),
                        }
                    ),
                    count,
                )
                for (group, language, version, mode), count in consumers.items()
            ],
        )

    def _tables(self) -> Iterator[Family]:
        tables = self._context.tables
        yield gauge(
            "rocketmq_broker_permission",
            "Permission of the broker: 4 is reading, 2 is writing.",
            single(self._context.broker_config.permission),
        )
        yield gauge(
            "rocketmq_topic_number", "Number of topics.", single(len(tables.topics.configs))
        )
        yield gauge(
            "rocketmq_consumer_group_number",
            "Number of consumer groups.",
            single(len(tables.groups.configs)),
        )

    def _storage(self, disk: DiskUse) -> Iterator[Family]:
        store, now_ms = self._context.store, self._context.clock.now_ms()
        end = store.end_position
        first_ms = store.store_time_at(store.first_position)
        for name, text, value in (
            ("size_bytes", "Used bytes of the partition.", disk.used),
            ("flush_behind_bytes", "Bytes not on disk yet.", end - store.durable_position),
            ("dispatch_behind_bytes", "Bytes not visible yet.", end - store.confirmed_position),
            (
                "message_reserve_time_milliseconds",
                "Age of the oldest message.",
                max(0, now_ms - first_ms) if first_ms > 0 else 0,
            ),
        ):
            yield gauge(f"rocketmq_storage_{name}", text, [Sample(_STORAGE, value)])
        yield gauge("rocketpost_disk_free_bytes", "Free bytes of the partition.", single(disk.free))
        yield counter(
            "rocketpost_log_syncs_total", "Syncs of the commit log.", single(store.sync_count)
        )
        yield gauge(
            "rocketpost_log_writable",
            "Whether messages can be stored.",
            single(int(store.writable)),
        )


def _flag(value: bool) -> str:
    return "true" if value else "false"
