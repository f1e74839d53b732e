"""JSON bodies about the state of a broker: statistics, runtime values, queue entries, replicas."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from rocketpost.codec.bodies.leniency import decode_body
from rocketpost.codec.lenient_json import encode
from rocketpost.model.group import Subscription


class WindowStats(msgspec.Struct, frozen=True, kw_only=True):
    """A counter over a span of time: average per call, sum, sum per second."""

    avgpt: float = 0.0
    sum: int = 0
    tps: float = 0.0


class StatsBody(msgspec.Struct, rename="camel", kw_only=True):
    """Answer to VIEW_BROKER_STATS_DATA."""

    stats_day: WindowStats = WindowStats()
    stats_hour: WindowStats = WindowStats()
    stats_minute: WindowStats = WindowStats()


class KeyValues(msgspec.Struct):
    """A table of strings; the answer to GET_BROKER_RUNTIME_INFO."""

    table: dict[str, str] = {}


class QueueEntry(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """One entry of a consume queue."""

    bit_map: str | None = None
    eval: bool
    extend_data_json: str | None = None
    msg: str | None = None
    physic_offset: int
    physic_size: int
    tags_code: int


class QueueEntries(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """Answer to QUERY_CONSUME_QUEUE."""

    filter_data: str | None = None
    judged: bool = False
    """Whether ``eval`` is final even for an expression; RocketMQ never sets this."""
    max_queue_index: int
    min_queue_index: int
    queue_data: list[QueueEntry]
    subscription_data: Subscription | None = None


class UpstreamInfo(msgspec.Struct, rename="camel", kw_only=True):
    """The state of a slave's connection to its master; zeros on a master."""

    last_read_timestamp: int = 0
    last_write_timestamp: int = 0
    master_addr: str | msgspec.UnsetType = msgspec.UNSET
    """Address of the master's log stream; absent on a master, and if it is not known."""
    master_flush_offset: int = 0
    max_offset: int = 0
    """End of the slave's own log."""
    transferred_byte_in_second: int = 0
    problem: str | msgspec.UnsetType = msgspec.UNSET
    """Our own: reason why the slave cannot follow its master."""


class ReplicaInfo(msgspec.Struct, rename="camel", kw_only=True):
    """One connected slave, as ``haStatus`` shows it."""

    addr: str = ""
    diff: int = 0
    in_sync: bool = False
    slave_ack_offset: int = 0
    transfer_from_where: int = 0
    transferred_byte_in_second: int = 0
    broker_id: int | msgspec.UnsetType = msgspec.UNSET
    """Our own, like the next; absent if the slave has not told its id."""
    problem: str | msgspec.UnsetType = msgspec.UNSET
    """Reason why the slave can never follow its master."""


class ReplicationState(msgspec.Struct, rename="camel", kw_only=True):
    """Answer to GET_BROKER_HA_STATUS: by a master about its slaves, or by a slave about itself."""

    ha_client_runtime_info: UpstreamInfo = msgspec.field(default_factory=UpstreamInfo)
    ha_connection_info: list[ReplicaInfo] = []
    in_sync_slave_nums: int = 0
    master: bool = True
    master_commit_log_max_offset: int = 0


class Epoch(msgspec.Struct, rename="camel", kw_only=True):
    """A part of the log that one master has written."""

    end_offset: int = 0
    epoch: int = 0
    start_offset: int = 0


class EpochList(msgspec.Struct, rename="camel", kw_only=True):
    """Answer to GET_BROKER_EPOCH_CACHE; only brokers under a controller have epochs."""

    broker_id: int = 0
    broker_name: str = ""
    cluster_name: str = ""
    epoch_list: list[Epoch] = []
    max_offset: int = 0


def encode_key_values(table: Mapping[str, str]) -> bytes:
    """Return a table of strings, sorted by key."""
    return encode(KeyValues(dict(sorted(table.items()))))


def decode_key_values(data: bytes | memoryview) -> dict[str, str]:
    """Read a table of strings.

    Raises:
        RemoteProtocolError: The body is malformed.
    """
    return decode_body(data, KeyValues).table
