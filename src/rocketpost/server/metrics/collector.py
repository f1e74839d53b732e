"""The metric families of a broker, by RocketMQ's names as a scrape of 5.5 shows them.

Numbers come from counters and tables that the broker keeps anyway. Only the times of requests are
measured for metrics alone, while they are served (``broker.request_times``). Features add their own
families (:meth:`Feature.metrics`). Names that RocketMQ does not have begin with ``rocketpost_``.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from rocketpost import VERSION
from rocketpost.broker.request_times import RequestTimes
from rocketpost.kernel import FORM
from rocketpost.server.context import BrokerContext
from rocketpost.server.metrics.clients import client_families
from rocketpost.server.metrics.exposition import (
    Family,
    Sample,
    counter,
    gauge,
    label_text,
    single,
)
from rocketpost.server.metrics.group_lags import StoreTimes
from rocketpost.server.metrics.requests import (
    connection_families,
    request_families,
    waiting_families,
)
from rocketpost.server.metrics.traffic import lag_families, traffic_families
from rocketpost.server.routes.pools import Pool, PoolKind
from rocketpost.server.term import Term
from rocketpost.transport.room import Room

_PAGE_BYTES: Final = resource.getpagesize()
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_STORAGE: Final = label_text({"storage_type": "local", "storage_medium": "disk"})


class DiskUse(NamedTuple):
    """Bytes of the partition that holds the commit log."""

    used: int
    free: int


class Reception(NamedTuple):
    """The parts of the broker that receive requests."""

    times: RequestTimes
    pools: Mapping[PoolKind, Pool]
    room: Room
    """Limits of all connections together."""


class BrokerMetrics:
    """Collects the metrics of one broker. Owned by the loop.

    Args:
        context: The state of the broker.
        term: Returns the current term.
        reception: The parts of the broker that receive requests.
    """

    def __init__(
        self, context: BrokerContext, *, term: Callable[[], Term], reception: Reception
    ) -> None:
        self._context = context
        self._term = term
        self._reception = reception
        self._times = StoreTimes()
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
        yield from traffic_families(self._context)
        yield from lag_families(self._context, self._term().popped_counts, self._times)
        yield from client_families(self._context.membership)
        yield from request_families(self._reception.times)
        yield from waiting_families(self._reception.pools, self._term().features.waiting_counts())
        yield from connection_families(self._reception.room)
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
