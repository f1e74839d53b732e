"""The metric families of requests: their times, those that wait, and their connections."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from rocketpost.broker.request_times import (
    CREATION_BOUNDS_MS,
    LATENCY_BOUNDS_MS,
    RequestTimes,
    request_name,
    response_name,
)
from rocketpost.codec.codes import RequestCode
from rocketpost.server.metrics.exposition import (
    Family,
    Labels,
    Sample,
    counter,
    flag,
    gauge,
    histogram,
    single,
)
from rocketpost.server.routes.pools import Pool, PoolKind
from rocketpost.transport.room import Room

_RPC: Final = Labels("protocol_type", "request_code", "response_code", "is_long_polling", "result")
_TOPIC_CREATION: Final = Labels("invocation_status", "is_system")
_GROUP_CREATION: Final = Labels("invocation_status")
_PROCESSOR: Final = Labels("processor")
_LANE: Final = Labels("lane")
_POOLS: Final = {
    "async_put": PoolKind.MESSAGES,
    "client_manager": PoolKind.CLIENTS,
    "consumer_manager": PoolKind.ROUTES,
    "admin": PoolKind.ADMIN,
    "reply": PoolKind.REPLIES,
}
_ANSWERED_AT_ONCE: Final = (
    "send", "pull", "lite_pull", "ack", "query_message", "heartbeat", "transaction",
)  # fmt: skip


def request_families(times: RequestTimes) -> Iterator[Family]:
    """Return the times of requests."""
    yield histogram(
        "rocketmq_rpc_latency_milliseconds",
        "Time from the arrival of a request to its answer.",
        [
            (
                _RPC(
                    "remoting",
                    request_name(key.request),
                    response_name(key.response),
                    flag(key.is_held),
                    key.result.value,
                ),
                found,
            )
            for key, found in times.latencies()
        ],
        bounds=LATENCY_BOUNDS_MS,
    )
    creations: tuple[tuple[str, RequestCode, Labels, tuple[str, ...]], ...] = (
        ("topic", RequestCode.UPDATE_AND_CREATE_TOPIC, _TOPIC_CREATION, (flag(False),)),
        ("consumer_group", RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, _GROUP_CREATION, ()),
    )
    for noun, code, labels, more in creations:
        yield histogram(
            f"rocketmq_{noun}_create_execution_time_milliseconds",
            f"Time to create or change a {noun.replace('_', ' ')}.",
            [
                (labels("success" if is_done else "failure", *more), found)
                for is_done, found in times.creations(code)
            ],
            bounds=CREATION_BOUNDS_MS,
        )
    yield counter(
        "rocketpost_lane_requests_total",
        "Requests that a lane has served before they were decoded.",
        [Sample(_LANE("send"), times.sends.total), Sample(_LANE("pull"), times.pulls.total)],
    )


def waiting_families(pools: Mapping[PoolKind, Pool], more: Mapping[str, int]) -> Iterator[Family]:
    """Return the numbers of requests that wait, by the names of RocketMQ's thread pools.

    Args:
        pools: The tasks that serve requests.
        more: Numbers of requests that wait without a task.
    """
    counts = dict.fromkeys(_ANSWERED_AT_ONCE, 0)
    counts |= {name: len(pools[kind].tasks) for name, kind in _POOLS.items()} | dict(more)
    yield gauge(
        "rocketmq_processor_watermark",
        "Requests that wait.",
        [Sample(_PROCESSOR(name), count) for name, count in counts.items()],
    )


def connection_families(room: Room) -> Iterator[Family]:
    """Return the connections of clients, and the memory that they use."""
    yield gauge("rocketpost_connections", "Open connections.", single(room.connections))
    yield gauge("rocketpost_connections_max", "Most connections.", single(room.connections_max))
    yield gauge(
        "rocketpost_unread_answer_bytes",
        "Bytes of answers that clients have not read.",
        single(room.unwritten_bytes),
    )
    yield gauge(
        "rocketpost_partial_request_bytes",
        "Bytes of requests that are not complete.",
        single(room.partial_bytes),
    )
