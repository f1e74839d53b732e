"""Settings of producers and consumers: frozen dataclasses, checked when they are made.

Times are seconds, sizes bytes. Defaults are those of RocketMQ's Java client; each field names the
Java property it stands for when the names differ much.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, fields, replace
from typing import Final, TypeVar

from rocketpost.client.checks import check_field_types, check_seconds, check_text
from rocketpost.client.credentials import Credentials
from rocketpost.codec.codes import ResponseCode
from rocketpost.errors import ConfigError
from rocketpost.model.names import AUTO_CREATE_TOPIC, TRACE_TOPIC, group_problem, topic_problem

RETRY_CODES: Final = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.NO_PERMISSION,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.GO_AWAY,
    }
)
"""Refusals after which another broker is worth a try."""


class Compression(enum.Enum):
    """Compression of large message bodies."""

    ZLIB = "ZLIB"
    LZ4 = "LZ4"
    ZSTD = "ZSTD"


class StartFrom(enum.Enum):
    """Start of a group in a queue that it has never consumed."""

    LAST = "CONSUME_FROM_LAST_OFFSET"
    FIRST = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


STABLE_INSTANCE: Final = "DEFAULT"
"""The instance name of broadcasting members, which must be the same after a restart."""


class MessageModel(enum.Enum):
    """Distribution of messages among the members of a group."""

    CLUSTERING = "CLUSTERING"
    """One member; the members share the queues."""
    BROADCASTING = "BROADCASTING"
    """Every member; each keeps its own offsets, in a local file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """Settings that every kind of client has.

    Attributes:
        name_servers: ``host:port;host:port``. Without it ``NAMESRV_ADDR`` is read from the
            environment, and then the HTTP address server is asked.
        address_server: Host, or host:port, of the HTTP address server.
        address_group: The last part of its path.
        unit_name: Part of the client id and of the address server's path, if not empty.
        instance_name: Part of the client id; the process id and a time stamp if empty. Clients of
            one name share their connections, and each needs a group of its own.
        client_ip: Part of the client id and of message ids; found out if empty.
        call_timeout: For routes, heartbeats and group queries (``mqClientApiTimeout``).
        route_seconds: Between refreshes of the routes (``pollNameServerInterval``).
        heartbeat_seconds: Between heartbeats (``heartbeatBrokerInterval``).
        credentials: With which every request is signed, for brokers that control access.
    """

    name_servers: str | None = None
    address_server: str = "jmenv.tbsite.net"
    address_group: str = "nsaddr"
    unit_name: str = ""
    instance_name: str = ""
    client_ip: str = ""
    call_timeout: float = 3.0
    route_seconds: float = 30.0
    heartbeat_seconds: float = 30.0
    credentials: Credentials | None = None

    def __post_init__(self) -> None:
        check_field_types(self)
        for address in parse_addresses(self.name_servers or ""):
            check_address(address)
        for name in ("call_timeout", "route_seconds", "heartbeat_seconds"):
            check_positive(name, getattr(self, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig(ClientConfig):
    """Settings of a producer.

    Attributes:
        send_timeout: Budget of one send with all its retries (``sendMsgTimeout``).
        attempt_timeout: Bound of one attempt while more remain; 0 means none
            (``sendMsgMaxTimeoutPerRequest``).
        retries: More attempts after the first (``retryTimesWhenSendFailed``).
        retry_codes: Response codes after which another attempt is made.
        retry_not_stored_ok: Whether a status other than SEND_OK is retried
            (``retryAnotherBrokerWhenNotStoreOK``).
        message_bytes_max: Largest body, before compression; also of one batch.
        batch_count_max: Most messages of one batch request; larger batches become several requests,
            since brokers take long over very many messages and answer with an id for each.
        compress_bytes_min: Bodies of at least this size are compressed; 0 means never.
        auto_create_topic: The topic that new ones are made after by their first send
            (``createTopicKey``); they are sent to the brokers that have it.
        auto_create_queues: How many queues such a topic is to have (``defaultTopicQueueNums``).
        in_flight_max: Messages sent and not yet answered; a sender waits when there are more.
        in_flight_bytes_max: The same for the bytes of their bodies. Java has 100 MiB, beyond what
            one connection may hold back here.
        avoid_slow_brokers: Whether the latency table steers the choice of queues
            (``sendLatencyEnable``).
        auto_batch: Whether messages that are sent at about the same time travel together
            (``autoBatch``): less work for many small ones, for some delay of each.
        auto_batch_bytes: When such a batch is large enough (``batchMaxBytes``).
        auto_batch_seconds: How long a message waits for others at most (``batchMaxDelayMs``).
        enable_trace: Whether a trace of every message is written (``enableTrace``).
        trace_topic: Where traces go (``traceTopic``).
    """

    send_timeout: float = 3.0
    attempt_timeout: float = 0.0
    retries: int = 2
    retry_codes: frozenset[int] = RETRY_CODES
    retry_not_stored_ok: bool = False
    message_bytes_max: int = 4 * 1024 * 1024
    batch_count_max: int = 1000
    compress_bytes_min: int = 4096
    compression: Compression = Compression.ZLIB
    compression_level: int = 5
    auto_create_topic: str = AUTO_CREATE_TOPIC
    auto_create_queues: int = 4
    in_flight_max: int = 1024
    in_flight_bytes_max: int = 32 * 1024 * 1024
    avoid_slow_brokers: bool = False
    auto_batch: bool = False
    auto_batch_bytes: int = 32 * 1024
    auto_batch_seconds: float = 0.01
    enable_trace: bool = False
    trace_topic: str = TRACE_TOPIC

    def __post_init__(self) -> None:
        # Zero-argument super() does not work in a dataclass with slots.
        ClientConfig.__post_init__(self)
        for name in ("send_timeout", "message_bytes_max", "batch_count_max", "auto_create_queues",
                     "in_flight_max", "in_flight_bytes_max"):  # fmt: skip
            check_positive(name, getattr(self, name))
        check_range("retries", self.retries, 0, 100)
        check_trace_topic(self.trace_topic)
        if problem := topic_problem(self.auto_create_topic):
            raise ConfigError(f"auto_create_topic: {problem}")
        check_range("auto_batch_bytes", self.auto_batch_bytes, 1, 2 * 1024 * 1024)
        if not 0.001 <= self.auto_batch_seconds <= 30.0:
            raise ConfigError("auto_batch_seconds must lie between 0.001 and 30")
        check_range("compression_level", self.compression_level, 1, 22)
        if self.compression is Compression.ZLIB:
            check_range("compression_level", self.compression_level, 1, 9)


@dataclass(frozen=True, slots=True, kw_only=True)
class PullConsumerConfig(ClientConfig):
    """Settings of a pull consumer.

    Attributes:
        pull_timeout: For a pull that does not wait (``consumerPullTimeoutMillis``).
        hold_seconds: How long the broker holds a waiting pull (``brokerSuspendMaxTimeMillis``).
        hold_timeout: For a pull that waits (``consumerTimeoutMillisWhenSuspend``).
        model: Where the group's offsets are kept (``messageModel``): with the brokers, or, of a
            broadcasting member, in a file of its own, as a push consumer keeps them.
        offset_directory: Where that file lies; ``~/.rocketmq_offsets`` if None.
    """

    model: MessageModel = MessageModel.CLUSTERING
    offset_directory: str | None = None
    pull_timeout: float = 10.0
    hold_seconds: float = 20.0
    hold_timeout: float = 30.0

    def __post_init__(self) -> None:
        ClientConfig.__post_init__(self)
        for name in ("pull_timeout", "hold_seconds", "hold_timeout"):
            check_positive(name, getattr(self, name))
        if self.hold_timeout < self.hold_seconds:
            raise ConfigError("hold_timeout must not be below hold_seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class PushConsumerConfig(ClientConfig):
    """Settings of a push consumer.

    Attributes:
        model: Whether the members share the messages, or each gets all (``messageModel``). A
            broadcasting member's ``instance_name`` is DEFAULT unless given, so that it finds its
            offsets again.
        offset_directory: Where broadcasting members keep their offsets; ``~/.rocketmq_offsets``
            if None (``rocketmq.client.localOffsetStoreDir``).
        start_from: Where to start in a queue that the group has never consumed.
        start_timestamp_ms: For :attr:`StartFrom.TIMESTAMP`; half an hour ago if None.
        concurrency: Handlers at work at the same time (``consumeThreadMin``).
        batch_max: Messages handed to one call of a batch handler (``consumeMessageBatchMaxSize``).
        pull_count_max: Messages asked for with one pull (``pullBatchSize``).
        pull_bytes_max: Bytes asked for with one pull (``pullBatchSizeInBytes``).
        pull_interval: Rest after a pull that found messages, before the next one of its queue; 0
            for none (``pullInterval``).
        cached_count_max: Fetched, unfinished messages of a queue beyond which fetching rests.
        cached_bytes_max: The same in bytes of their bodies.
        cached_span_max: The same as distance between the first and the last of them.
        topic_count_max: Fetched, unfinished messages of a topic; divided among its queues that
            are ours, each of which gets one at least. None for no such bound
            (``pullThresholdForTopic``).
        topic_bytes_max: The same in bytes of their bodies (``pullThresholdSizeForTopic``).
        hold_seconds: How long the broker holds a pull that finds nothing.
        pull_timeout: How long the client waits for it.
        error_seconds: Rest after a failed pull (``pullTimeDelayMillsWhenException``).
        retry_max: Deliveries after the first until the dead-letter topic; -1 means 16, and without
            end for orderly handlers.
        record_failures: Whether a message that is sent back carries what its handler raised: the
            class and the first 256 characters of the text.
        suspend_seconds: Until a message whose orderly handler raised comes again
            (``suspendCurrentQueueTimeMillis``).
        local_retry_seconds: Until a message that could not be sent back is consumed again here.
        consume_timeout: How long a handler may take over the message that holds its queue's offset
            back; then the message is sent back and counts as finished (``consumeTimeout``).
        client_rebalance: Whether members share out the queues themselves; else brokers do, and say
            whether to pull or to pop them (``clientRebalance``). Orderly and broadcasting members
            always do it themselves.
        pop_count_max: Messages asked for with one pop (``popBatchNums``).
        pop_invisible_seconds: How long popped messages are ours (``popInvisibleTime``).
        pop_threshold: Popped, unfinished messages of a queue beyond which popping rests
            (``popThresholdForQueue``).
        rebalance_seconds: Between rounds of sharing out the queues.
        lock_renew_seconds: Between renewals of the locks of queues that are handled in order
            (``rocketmq.client.rebalance.lockInterval``).
        lock_trust_seconds: How long such a lock counts without renewal; well below the brokers'
            60 s (``rocketmq.client.rebalance.lockMaxLiveTime``).
        persist_seconds: Between reports of the offsets to the brokers.
        stop_seconds: How long handlers get to finish when the consumer stops.
        by_priority: Whether fetched messages that wait for a handler go by their priority. Smaller
            ``cached_count_max`` make that truer: what is not fetched is not compared.
        enable_trace: Whether a trace of every message is written (``enableTrace``).
        trace_topic: Where traces go (``traceTopic``).
    """

    model: MessageModel = MessageModel.CLUSTERING
    offset_directory: str | None = None
    start_from: StartFrom = StartFrom.LAST
    start_timestamp_ms: int | None = None
    concurrency: int = 20
    batch_max: int = 1
    pull_count_max: int = 32
    pull_bytes_max: int = 256 * 1024
    pull_interval: float = 0.0
    cached_count_max: int = 1000
    cached_bytes_max: int = 100 * 1024 * 1024
    cached_span_max: int = 2000
    topic_count_max: int | None = None
    topic_bytes_max: int | None = None
    hold_seconds: float = 15.0
    pull_timeout: float = 30.0
    error_seconds: float = 1.0
    retry_max: int = -1
    record_failures: bool = True
    suspend_seconds: float = 1.0
    local_retry_seconds: float = 5.0
    consume_timeout: float = 15 * 60.0
    client_rebalance: bool = True
    pop_count_max: int = 32
    pop_invisible_seconds: float = 60.0
    pop_threshold: int = 96
    rebalance_seconds: float = 20.0
    lock_renew_seconds: float = 20.0
    lock_trust_seconds: float = 30.0
    persist_seconds: float = 5.0
    stop_seconds: float = 5.0
    by_priority: bool = False
    enable_trace: bool = False
    trace_topic: str = TRACE_TOPIC

    def __post_init__(self) -> None:
        ClientConfig.__post_init__(self)
        check_trace_topic(self.trace_topic)
        check_range("concurrency", self.concurrency, 1, 1000)
        check_range("batch_max", self.batch_max, 1, 1024)
        check_range("pull_count_max", self.pull_count_max, 1, 1024)
        check_range("cached_count_max", self.cached_count_max, 1, 65535)
        check_range("cached_span_max", self.cached_span_max, 1, 65535)
        check_range("retry_max", self.retry_max, -1, 2**31 - 1)
        check_range("pop_count_max", self.pop_count_max, 1, 32)
        check_range("pop_threshold", self.pop_threshold, 1, 65535)
        check_seconds("pull_interval", self.pull_interval, zero=True)
        if not 5 <= self.pop_invisible_seconds <= 300:
            raise ConfigError("pop_invisible_seconds must lie between 5 and 300")
        for name in ("pull_bytes_max", "cached_bytes_max", "hold_seconds", "pull_timeout",
                     "error_seconds", "rebalance_seconds", "persist_seconds", "lock_renew_seconds",
                     "consume_timeout", "suspend_seconds"):  # fmt: skip
            check_positive(name, getattr(self, name))
        for name in ("topic_count_max", "topic_bytes_max"):
            check_positive(name, 1 if getattr(self, name) is None else getattr(self, name))
        if self.pull_timeout < self.hold_seconds:
            raise ConfigError("pull_timeout must not be below hold_seconds")
        if self.lock_trust_seconds <= self.lock_renew_seconds:
            raise ConfigError("lock_trust_seconds must be over lock_renew_seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class LitePullConsumerConfig(ClientConfig):
    """Settings of a lite pull consumer.

    Attributes:
        model: Whether the members share the messages, or each gets all (``messageModel``). A
            broadcasting member keeps its offsets in a file of its own, as a push consumer does.
        offset_directory: Where it keeps them; ``~/.rocketmq_offsets`` if None.
        start_from: Where to start in a queue that the group has never consumed.
        start_timestamp_ms: For :attr:`StartFrom.TIMESTAMP`; half an hour ago if None.
        auto_commit: Whether polls commit what earlier polls returned.
        commit_seconds: Between such commits (``autoCommitIntervalMillis``).
        pull_count_max: Messages asked for with one pull, which is what a poll returns at most.
        pull_bytes_max: Bytes asked for with one pull.
        cached_count_max: Messages of a queue fetched and not polled beyond which fetching rests.
        cached_bytes_max: The same in bytes of their bodies.
        cached_span_max: The same as distance between the first and the last of them.
        topic_count_max: The same for all queues of a topic (``pullThresholdForAll``).
        hold_seconds: How long the broker holds a pull that finds nothing.
        pull_timeout: How long the client waits for it.
        error_seconds: Rest after a failed pull.
        rebalance_seconds: Between rounds of sharing out the queues.
    """

    model: MessageModel = MessageModel.CLUSTERING
    offset_directory: str | None = None
    start_from: StartFrom = StartFrom.LAST
    start_timestamp_ms: int | None = None
    auto_commit: bool = True
    commit_seconds: float = 5.0
    pull_count_max: int = 10
    pull_bytes_max: int = 256 * 1024
    cached_count_max: int = 1000
    cached_bytes_max: int = 100 * 1024 * 1024
    cached_span_max: int = 2000
    topic_count_max: int = 10_000
    hold_seconds: float = 20.0
    pull_timeout: float = 30.0
    error_seconds: float = 1.0
    rebalance_seconds: float = 20.0

    def __post_init__(self) -> None:
        ClientConfig.__post_init__(self)
        check_positive("commit_seconds", self.commit_seconds)
        self.fetching()

    def fetching(self) -> PushConsumerConfig:
        """Return the settings that a push consumer has for the same things, checked."""
        same = {field.name for field in fields(PushConsumerConfig)}
        names = [field.name for field in fields(self) if field.name in same]
        return PushConsumerConfig(**{name: getattr(self, name) for name in names})


_RESERVED_GROUPS = frozenset({"DEFAULT_PRODUCER", "DEFAULT_CONSUMER"})
C = TypeVar("C", bound=ClientConfig)
M = TypeVar("M", PushConsumerConfig, LitePullConsumerConfig, PullConsumerConfig)


def check_group(group: str) -> None:
    """Check the name of a group.

    Raises:
        ConfigError: It is illegal or a reserved one.
    """
    check_text("group", group)
    problem = group_problem(group)
    if problem is None and group in _RESERVED_GROUPS:
        problem = f"the group {group} is a reserved name; choose your own"
    if problem is not None:
        raise ConfigError(problem)


def parse_addresses(text: str) -> list[str]:
    """Split ``host:port;host:port``; of an ``http://`` endpoint only the host and port count."""
    parts = (part.strip().rstrip("/").rpartition("/")[2] for part in text.split(";"))
    return list(dict.fromkeys(part for part in parts if part))


def check_address(address: str) -> None:
    """Raise unless ``address`` is a host and a port.

    Raises:
        ConfigError: It is not.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(f"the name server {address!r} is not host:port")


def with_name_servers(config: C, name_servers: str | None, kind: type[C] | None = None) -> C:
    """Return settings in which separately given name servers win.

    Raises:
        ConfigError: The settings are another client's, or the name servers are no addresses.
    """
    if kind is not None and not isinstance(config, kind):
        raise ConfigError(f"config must be a {kind.__name__}, not {config!r}")
    return config if name_servers is None else replace(config, name_servers=name_servers)


def with_stable_name(config: M) -> M:
    """Return settings whose client id is the same after a restart, where it names a file."""
    if config.model is MessageModel.BROADCASTING and not config.instance_name:
        return replace(config, instance_name=STABLE_INSTANCE)
    return config


def check_positive(name: str, value: float) -> None:
    """Raise unless ``value`` is over zero.

    Raises:
        ConfigError: It is not.
    """
    if not value > 0:
        raise ConfigError(f"{name} must be over 0, not {value}")


def check_range(name: str, value: int, low: int, high: int) -> None:
    """Raise unless ``value`` lies between ``low`` and ``high``, both included.

    Raises:
        ConfigError: It does not.
    """
    if not low <= value <= high:
        raise ConfigError(f"{name} must lie between {low} and {high}, not {value}")


def check_trace_topic(topic: str) -> None:
    """Raise unless traces may go to ``topic``.

    Raises:
        ConfigError: The name is illegal.
    """
    if problem := topic_problem(topic):
        raise ConfigError(f"trace_topic: {problem}")
