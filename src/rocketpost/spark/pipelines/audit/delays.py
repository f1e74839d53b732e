"""Delayed and timed messages: sent, but not yet in their topics."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from rocketpost.client.admin import AdminClient
from rocketpost.client.config import ClientConfig
from rocketpost.client.credentials import environment_credentials
from rocketpost.client.tls import environment_tls_blocking
from rocketpost.errors import RouteNotFound
from rocketpost.model import properties as names
from rocketpost.model.delay_levels import parse_delay_levels
from rocketpost.model.names import SCHEDULE_TOPIC, TIMER_TOPIC
from rocketpost.model.route import MASTER_ID
from rocketpost.spark.broker_session import BrokerSession
from rocketpost.spark.client_group import ClientGroup
from rocketpost.spark.options import SourceOptions
from rocketpost.spark.pipelines.audit.config import AuditConfig

_LEVELS: Final = "messageDelayLevel"
_COLUMNS: Final = (
    "brokerName string, uniqKey string, keys string, storeTimestamp timestamp, "
    "properties map<string,string>"
)
_DELIVERY_MS: Final = 10_000
"""The time that brokers may need to deliver a due message."""


class _Brokers(ClientGroup):
    """Blocking requests to brokers for their settings."""

    def __init__(self, name_servers: str) -> None:
        keys = environment_credentials()
        self._admin = AdminClient(
            config=ClientConfig(
                name_servers=name_servers, credentials=keys, tls=environment_tls_blocking()
            )
        )
        super().__init__(self._admin)

    def delays_ms(self, broker: str) -> tuple[int, ...]:
        """Return the delays of the delay levels, in order."""
        return self._thread.call(self._delays_ms(broker))

    async def _delays_ms(self, broker: str) -> tuple[int, ...]:
        addresses = await self._admin.cluster.broker_addresses(broker)
        address = addresses.get(MASTER_ID) or next(iter(addresses.values()))
        return parse_delay_levels((await self._admin.brokers.config(address))[_LEVELS])


def read_not_due(spark: SparkSession, config: AuditConfig, at_ms: int) -> DataFrame | None:
    """Return the ids of messages not due at a time or shortly before; None without brokers."""
    if not config.name_servers:
        return None
    sources = {topic: _source_options(config, topic) for topic in (SCHEDULE_TOPIC, TIMER_TOPIC)}
    brokers = {topic: _list_brokers(source) for topic, source in sources.items()}
    kept = [topic for topic in sources if brokers[topic]]
    if not kept:
        return None
    levels = _make_level_table(spark, config, brokers[SCHEDULE_TOPIC])
    frames = [_read_waiting(spark, sources[topic], levels) for topic in kept]
    frame = frames[0] if len(frames) == 1 else frames[0].unionByName(frames[1])
    is_ours = f.col("properties")[names.REAL_TOPIC].isin(*config.topics)
    due = frame.filter(is_ours & (f.col("dueMs") > at_ms - _DELIVERY_MS))
    return due.select(f.col(config.identified_by).alias("id"))


def _source_options(config: AuditConfig, topic: str) -> SourceOptions:
    return SourceOptions(name_servers=config.name_servers, topic=topic)


def _list_brokers(source: SourceOptions) -> frozenset[str]:
    """Return the brokers that have a topic; empty if there are no such messages."""
    try:
        with BrokerSession(source) as broker_session:
            return frozenset(queue.broker for queue in broker_session.queues())
    except RouteNotFound:
        return frozenset()


def _make_level_table(
    spark: SparkSession, config: AuditConfig, brokers: frozenset[str]
) -> DataFrame:
    """Return the delays of all brokers: brokerName, level, delayMs."""
    rows: list[tuple[str, int, int]] = []
    with _Brokers(config.name_servers) as line:
        for broker in sorted(brokers):
            delays = enumerate(line.delays_ms(broker), start=1)
            rows += [(broker, level, delay_ms) for level, delay_ms in delays]
    return spark.createDataFrame(rows, "brokerName string, level int, delayMs bigint")


def _read_waiting(spark: SparkSession, source: SourceOptions, levels: DataFrame) -> DataFrame:
    """Return the waiting messages of a topic: uniqKey, keys, properties, dueMs."""
    reader = spark.read.format("rocketmq").schema(_COLUMNS).options(**source.given_values())
    given = f.col("properties")
    rows = reader.load().withColumn("level", given[names.DELAY_LEVEL].try_cast("int"))
    known = rows.join(f.broadcast(levels), ["brokerName", "level"], "left")
    due = f.coalesce(
        given[names.TIMER_OUT_MS].try_cast("bigint"),
        f.unix_millis("storeTimestamp") + f.col("delayMs"),
    )
    return known.select("uniqKey", "keys", "properties", due.alias("dueMs"))
