"""The broker's own settings, and their conversion from a properties file.

One file fills several settings classes by RocketMQ's keys. A key that no class knows stops the
start, unless ``server.settings.foreign_keys`` lists it with the reason why it does nothing.
"""

from __future__ import annotations

import enum
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rocketpost.broker.attributes import DEDUP_SECONDS_MAX
from rocketpost.broker.auto_created import PER_SECOND
from rocketpost.broker.topic import QUEUE_COUNT_MAX
from rocketpost.codec.frames import FRAME_BYTES_MAX
from rocketpost.errors import ConfigError
from rocketpost.model.names import TRACE_TOPIC, topic_problem
from rocketpost.server.settings.foreign_keys import (
    FIXED_PATHS,
    IGNORED,
    REFUSED_WHEN,
    RENAMED,
    refuse,
)
from rocketpost.server.settings.group import (
    GroupConfig,
    check_member,
    group_notes,
    with_group_defaults,
)
from rocketpost.server.settings.replication import ReplicationConfig
from rocketpost.server.settings.tls import TlsConfig
from rocketpost.settings import (
    adjustments,
    apply_clamps,
    build,
    keys_of,
    option,
    parse_properties,
    reject_unknown,
)
from rocketpost.store.config import StoreConfig

_INT_MAX: Final = 2**31 - 1
_UNWRITTEN_BYTES_MIN: Final = FRAME_BYTES_MAX
_ANSWER_BYTES_MAX: Final = FRAME_BYTES_MAX - 1024 * 1024
_COUNT_MAX: Final = 65_536
_HELD_MAX: Final = 1_000_000
_KEYS_MAX: Final = 10_000_000
_IDLE_SECONDS_MAX: Final = 366 * 86_400
_PATHS: Final[tuple[str, ...]] = ("storePathRootDir", "storePathCommitLog")


_OF_ADDRESS_SERVER: Final = (
    "rmqAddressServerDomain",
    "rmqAddressServerSubGroup",
    "fetchNamesrvAddrInterval",
)


class RequestModeName(enum.Enum):
    """Way in which a group gets messages."""

    PULL = enum.auto()
    POP = enum.auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig(ReplicationConfig):
    """Settings of the broker process. Keys are RocketMQ's, so an existing broker.conf works.

    Anyone who can reach the port may change the mutable ones, so each number has an upper limit.
    """

    cluster_name: str = option("brokerClusterName", "DefaultCluster", important=True)
    broker_name: str = option("brokerName", "", important=True)
    bind_address: str = option("bindAddress", "0.0.0.0", important=True)
    public_ip: str = option("brokerIP1", "", important=True)
    name_servers: str = option("namesrvAddr", "", important=True)
    ask_address_server: bool = option("fetchNamesrvAddrByAddressServer", False)
    address_server: str = option("rmqAddressServerDomain", "jmenv.tbsite.net")
    address_group: str = option("rmqAddressServerSubGroup", "nsaddr")
    address_server_poll_ms: int = option("fetchNamesrvAddrInterval", 10_000)
    idle_seconds: int = option("serverChannelMaxIdleTimeSeconds", 120)
    permission: int = option("brokerPermission", 6, mutable=True, important=True)
    default_topic_queue_nums: int = option("defaultTopicQueueNums", 8, mutable=True)
    auto_create_topic: bool = option("autoCreateTopicEnable", True, mutable=True, important=True)
    auto_create_group: bool = option(
        "autoCreateSubscriptionGroup", True, mutable=True, important=True
    )
    auto_create_per_second: int = option("autoCreatePerSecond", PER_SECOND, mutable=True)
    auto_created_expire_hours: int = option("autoCreatedExpireHours", 24, mutable=True)
    cluster_topic: bool = option("clusterTopicEnable", True)
    broker_topic: bool = option("brokerTopicEnable", True)
    trace_topic_enable: bool = option("traceTopicEnable", False)
    trace_topic: str = option("msgTraceTopicName", TRACE_TOPIC)
    trace_on: bool = option("traceOn", True, mutable=True)
    send_lane: bool = option("sendLaneEnable", True, mutable=True)
    pull_lane: bool = option("pullLaneEnable", True, mutable=True)
    store_replies: bool = option("storeReplyMessageEnable", True, mutable=True)
    region: str = option("regionId", "DefaultRegion")
    long_polling: bool = option("longPollingEnable", True, mutable=True)
    short_polling_ms: int = option("shortPollingTimeMills", 1000, mutable=True)
    lite_pull: bool = option("litePullMessageEnable", True, mutable=True)
    notify_members: bool = option("notifyConsumerIdsChangedEnable", True, mutable=True)
    server_side_reset: bool = option("useServerSideResetOffset", True, mutable=True)
    flush_offsets_ms: int = option("flushConsumerOffsetInterval", 5000)
    flush_delays_ms: int = option("flushDelayOffsetInterval", 10_000)
    register_period_ms: int = option("registerNameServerPeriod", 30_000, clamp=(10_000, 60_000))
    register_timeout_ms: int = option("registerBrokerTimeoutMills", 24_000)
    member_expiry_ms: int = option("channelExpiredTimeout", 120_000)
    lock_ms: int = option("rocketmq.broker.rebalance.lockMaxLiveTime", 60_000)
    accept_sends_from_ms: int = option("startAcceptSendRequestTimeStamp", 0, mutable=True)
    sync_flush_timeout_ms: int = option("syncFlushTimeout", 5000)
    memory_ratio: int = option("accessMessageInMemoryMaxRatio", 40)
    pull_bytes_in_memory: int = option("maxTransferBytesOnMessageInMemory", 262_144, mutable=True)
    pull_count_in_memory: int = option("maxTransferCountOnMessageInMemory", 32, mutable=True)
    pull_bytes_on_disk: int = option("maxTransferBytesOnMessageInDisk", 65_536, mutable=True)
    pull_count_on_disk: int = option("maxTransferCountOnMessageInDisk", 8, mutable=True)
    pull_count_max: int = option("pullBatchMaxMessageCount", 160, mutable=True)
    scan_bytes_max: int = option("maxFilterMessageSize", 16_000, mutable=True)
    property_filter: bool = option("enablePropertyFilter", True, mutable=True)
    filter_retries: bool = option("filterSupportRetry", False, mutable=True)
    filter_keep_ms: int = option("filterDataCleanTimeSpan", 24 * 3600 * 1000, mutable=True)
    named_filter: bool = option("namedFilterEnable", False, mutable=True)
    bloom_consumers: int = option("expectConsumerNumUseFilter", 32)
    bloom_error_percent: int = option("maxErrorRateOfBloomFilter", 20)
    query_count_max: int = option("maxMsgsNumBatch", 64, mutable=True)
    query_count_default: int = option("defaultQueryMaxNum", 32, mutable=True)
    transaction_timeout_ms: int = option("transactionTimeOut", 6000, mutable=True)
    transaction_check_max: int = option("transactionCheckMax", 15, mutable=True)
    transaction_check_interval_ms: int = option("transactionCheckInterval", 30_000, mutable=True)
    transaction_op_chars_max: int = option("transactionOpMsgMaxSize", 4096, mutable=True)
    transaction_op_interval_ms: int = option("transactionOpBatchInterval", 3000, mutable=True)
    topic_type_check: bool = option("enableTopicMessageTypeCheck", True, mutable=True)
    mixed_topics: bool = option("enableMixedMessageType", False, mutable=True)
    reject_transactions: bool = option("rejectTransactionMessage", False, mutable=True)
    dedup_seconds: int = option("dedupSeconds", 0, mutable=True)
    dedup_keys_max: int = option("dedupKeysMax", 200_000, mutable=True)
    idempotent_producers_max: int = option("idempotentProducersMax", 20_000, mutable=True)
    idempotent_idle_seconds: int = option("idempotentProducerIdleSeconds", 7 * 86_400, mutable=True)
    idempotent_save_ms: int = option("flushProducerStateInterval", 10_000)
    recall_enabled: bool = option("recallMessageEnable", False, mutable=True)
    recall_when_not_writable: bool = option("allowRecallWhenBrokerNotWriteable", True, mutable=True)
    held_pulls_max: int = option("pullThreadPoolQueueCapacity", 100_000, mutable=True)
    unwritten_bytes_max: int = option("unwrittenBytesMax", 0)
    held_of_one_max: int = option("connectionHeldMax", 16_384, mutable=True)
    held_pops_max: int = option("maxPopPollingSize", 100_000, mutable=True)
    held_pops_in_place_max: int = option("popPollingSize", 1024, mutable=True)
    retry_topic_v2: bool = option("enableRetryTopicV2", False, mutable=True)
    retry_topic_v1_read: bool = option("retrieveMessageFromPopRetryTopicV1", True, mutable=True)
    pop_retry_percent: int = option("popFromRetryProbability", 20, mutable=True)
    clears_retry_topics: bool = option("clearRetryTopicWhenDeleteTopic", True, mutable=True)
    pop_threshold: bool = option("enablePopMessageThreshold", False, mutable=True)
    pop_unacked_max: int = option("popInflightMessageThreshold", 10_000, mutable=True)
    server_load_balancer: bool = option("serverLoadBalancerEnable", True, mutable=True)
    default_request_mode: RequestModeName = option(
        "defaultMessageRequestMode", RequestModeName.PULL
    )
    default_pop_share: int = option("defaultPopShareQueueNum", -1, mutable=True)
    load_balance_poll_ms: int = option("loadBalancePollNameServerInterval", 30_000, mutable=True)

    def __post_init__(self) -> None:
        apply_clamps(self)
        for key, name in (
            ("brokerClusterName", self.cluster_name),
            ("brokerName", self.broker_name),
        ):
            if name and (problem := topic_problem(name)):
                raise ConfigError(f"{key}: it becomes a topic of its own, but {problem}")
        if not 0 <= self.listen_port <= 65535:
            raise ConfigError(f"listenPort={self.listen_port} is not a port")
        self.check_replication()
        self.check_metrics()
        self.check_access()
        self.check_logs()
        if not 0 <= self.permission <= 7:
            raise ConfigError(f"brokerPermission={self.permission} is not one of 0 to 7")
        if not 1 <= self.memory_ratio <= 100:
            raise ConfigError(
                f"accessMessageInMemoryMaxRatio={self.memory_ratio} is not a percentage"
            )
        if not 0 <= self.pop_retry_percent <= 100:
            raise ConfigError(
                f"popFromRetryProbability={self.pop_retry_percent} is not a percentage"
            )
        if not 0 <= self.dedup_seconds <= DEDUP_SECONDS_MAX:
            raise ConfigError(
                f"dedupSeconds={self.dedup_seconds} must be between 0 and {DEDUP_SECONDS_MAX}"
            )
        for key, value in (
            ("autoCreatePerSecond", self.auto_create_per_second),
            ("autoCreatedExpireHours", self.auto_created_expire_hours),
        ):
            if not 0 <= value <= _COUNT_MAX:
                raise ConfigError(f"{key}={value} must be between 0 and {_COUNT_MAX}")
        if self.unwritten_bytes_max and not self.unwritten_bytes_max >= _UNWRITTEN_BYTES_MIN:
            raise ConfigError(
                f"unwrittenBytesMax={self.unwritten_bytes_max} must be 0 or at least "
                f"{_UNWRITTEN_BYTES_MIN}, the size of one answer"
            )
        self._check_positive()

    def _check_positive(self) -> None:
        for key, value, most in (
            ("defaultTopicQueueNums", self.default_topic_queue_nums, QUEUE_COUNT_MAX),
            ("fetchNamesrvAddrInterval", self.address_server_poll_ms, _INT_MAX),
            ("serverChannelMaxIdleTimeSeconds", self.idle_seconds, _INT_MAX),
            ("flushConsumerOffsetInterval", self.flush_offsets_ms, _INT_MAX),
            ("flushDelayOffsetInterval", self.flush_delays_ms, _INT_MAX),
            ("shortPollingTimeMills", self.short_polling_ms, _INT_MAX),
            ("registerBrokerTimeoutMills", self.register_timeout_ms, _INT_MAX),
            ("channelExpiredTimeout", self.member_expiry_ms, _INT_MAX),
            ("rocketmq.broker.rebalance.lockMaxLiveTime", self.lock_ms, _INT_MAX),
            ("pullThreadPoolQueueCapacity", self.held_pulls_max, _HELD_MAX),
            ("transactionTimeOut", self.transaction_timeout_ms, _INT_MAX),
            ("transactionCheckMax", self.transaction_check_max, _INT_MAX),
            ("transactionCheckInterval", self.transaction_check_interval_ms, _INT_MAX),
            ("transactionOpMsgMaxSize", self.transaction_op_chars_max, _COUNT_MAX),
            ("transactionOpBatchInterval", self.transaction_op_interval_ms, _INT_MAX),
            ("syncFlushTimeout", self.sync_flush_timeout_ms, _INT_MAX),
            ("maxTransferBytesOnMessageInMemory", self.pull_bytes_in_memory, _ANSWER_BYTES_MAX),
            ("maxTransferCountOnMessageInMemory", self.pull_count_in_memory, _COUNT_MAX),
            ("maxTransferBytesOnMessageInDisk", self.pull_bytes_on_disk, _ANSWER_BYTES_MAX),
            ("maxTransferCountOnMessageInDisk", self.pull_count_on_disk, _COUNT_MAX),
            ("pullBatchMaxMessageCount", self.pull_count_max, _COUNT_MAX),
            ("maxFilterMessageSize", self.scan_bytes_max, _ANSWER_BYTES_MAX),
            ("filterDataCleanTimeSpan", self.filter_keep_ms, _INT_MAX),
            ("expectConsumerNumUseFilter", self.bloom_consumers, _COUNT_MAX),
            ("maxErrorRateOfBloomFilter", self.bloom_error_percent, 99),
            ("dedupKeysMax", self.dedup_keys_max, _KEYS_MAX),
            ("idempotentProducersMax", self.idempotent_producers_max, _KEYS_MAX),
            ("idempotentProducerIdleSeconds", self.idempotent_idle_seconds, _IDLE_SECONDS_MAX),
            ("flushProducerStateInterval", self.idempotent_save_ms, _INT_MAX),
            ("maxMsgsNumBatch", self.query_count_max, _COUNT_MAX),
            ("defaultQueryMaxNum", self.query_count_default, _COUNT_MAX),
            ("connectionHeldMax", self.held_of_one_max, _HELD_MAX),
            ("maxPopPollingSize", self.held_pops_max, _HELD_MAX),
            ("popPollingSize", self.held_pops_in_place_max, _HELD_MAX),
            ("popInflightMessageThreshold", self.pop_unacked_max, _INT_MAX),
            ("loadBalancePollNameServerInterval", self.load_balance_poll_ms, _INT_MAX),
        ):
            if not 0 < value <= most:
                raise ConfigError(f"{key}={value} must be between 1 and {most}")


_SECTIONS: Final = (BrokerConfig, StoreConfig, TlsConfig, GroupConfig)


def read_properties(path: str | os.PathLike[str]) -> dict[str, str]:
    """Read a properties file.

    Raises:
        ConfigError: The file cannot be read.
    """
    try:
        # Editors on Windows may add a byte order mark.
        return parse_properties(Path(path).read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the configuration file {path}: {error}") from None


def broker_settings(values: Mapping[str, str]) -> tuple[BrokerConfig, StoreConfig]:
    """Turn properties into the broker's settings; ``~`` in the paths of the store is expanded.

    Raises:
        ConfigError: A key is unknown, malformed or cannot be honoured; the text names it.
    """
    values = with_new_spellings(values)
    refuse(values, REFUSED_WHEN)
    _check_paths(values)
    check_member(values)
    values = with_group_defaults(values)
    acting = map(keys_of, _SECTIONS)
    reject_unknown(values, *acting, inactive=(*IGNORED, *REFUSED_WHEN, *FIXED_PATHS))
    paths = {key: os.path.expanduser(values[key].strip()) for key in _PATHS if key in values}
    values = {**values, **paths}
    return build(BrokerConfig, values), build(StoreConfig, values)


def name_of(config: BrokerConfig) -> str:
    """Return the broker's name: the one in its settings, or this host's."""
    if config.broker_name:
        return config.broker_name
    name = re.sub(r"[^a-zA-Z0-9_-]", "-", socket.gethostname())
    return name if name and topic_problem(name) is None else "broker"


def _check_paths(values: Mapping[str, str]) -> None:
    """Refuse paths that RocketMQ documents but never reads, unless they are the real ones."""
    root = os.path.expanduser(values.get("storePathRootDir", "").strip() or "~/store")
    for key, name in FIXED_PATHS.items():
        given = os.path.expanduser(values.get(key, "").strip())
        place = os.path.join(root, name)
        if given and os.path.abspath(given) != os.path.abspath(place):
            raise ConfigError(
                f"{key}={given} cannot be honoured: it lies at {place}, in RocketMQ as well, "
                "whatever this key says; remove the key, or mount another disk at that place"
            )


def with_new_spellings(values: Mapping[str, str]) -> dict[str, str]:
    """Return properties in which keys that RocketMQ renamed have their current names.

    Raises:
        ConfigError: A key is given under both names.
    """
    for old, new in RENAMED.items():
        if old in values and new in values:
            raise ConfigError(f"{old} is the old spelling of {new}: give one of them")
    return {RENAMED.get(key, key): value for key, value in values.items()}


def setting_notes(values: Mapping[str, str]) -> list[str]:
    """Return notes on a broker's properties: one for each key that is not used as given.

    Raises:
        ConfigError: As in :func:`broker_settings`.
    """
    broker, store = broker_settings(values)
    renamed = [f"{old} is taken as {RENAMED[old]}" for old in sorted(set(values) & set(RENAMED))]
    ignored = [f"{key} has no effect: {IGNORED[key]}" for key in sorted(set(values) & set(IGNORED))]
    values = with_new_spellings(values)
    adjusted = [*adjustments(broker, values), *adjustments(store, values)]
    window_ms = store.timer_roll_slots * store.timer_precision_ms
    if "timerRollWindowSlot" in values and store.timer_roll_window_ms < window_ms:
        slots = store.timer_roll_window_ms // store.timer_precision_ms
        adjusted.append(
            f"timerRollWindowSlot={store.timer_roll_slots} counts as {slots}, two thirds of "
            "fileReservedTime"
        )
    notes = [
        *_address_server_notes(values),
        *_replication_notes(values, broker),
        *group_notes(values),
    ]
    return renamed + adjusted + notes + ignored


def _replication_notes(values: Mapping[str, str], broker: BrokerConfig) -> list[str]:
    if values.get("haMasterAddress", "").strip() and not broker.is_slave:
        return [f"haMasterAddress has no effect if brokerRole={broker.broker_role.name}"]
    return []


def _address_server_notes(values: Mapping[str, str]) -> list[str]:
    given = [key for key in _OF_ADDRESS_SERVER if key in values]
    if values.get("fetchNamesrvAddrByAddressServer", "").strip().lower() != "true":
        return [f"{key} has no effect without fetchNamesrvAddrByAddressServer" for key in given]
    if values.get("namesrvAddr"):
        given.insert(0, "fetchNamesrvAddrByAddressServer")
        return [f"{key} has no effect: namesrvAddr names the name servers" for key in given]
    return []


def without_blanks(values: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of a broker's file without its own keys that have no value."""
    return {
        key: value
        for key, value in values.items()
        if value.strip() or not any(key in keys_of(each) for each in _SECTIONS)
    }
