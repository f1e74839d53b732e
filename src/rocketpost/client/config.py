"""Settings of producers and consumers: frozen dataclasses, checked on construction.

Times are in seconds, sizes in bytes. Defaults are those of RocketMQ's Java client; a field names
its Java property where the names differ much.
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
from rocketpost.transport.tls_contexts import ClientTls

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
"""Refusals after which a send is tried at another broker."""


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
    """Settings of every kind of client.

    Attributes:
        name_servers: ``host:port;host:port``. If empty, the environment variable ``NAMESRV_ADDR``
            counts, and then the HTTP address server.
        address_server: Host, or host:port, of the HTTP address server.
        address_group: The last part of its path.
        unit_name: Part of the client id and of the address server's path, if not empty.
        instance_name: Part of the client id; the process id and a timestamp if empty. Clients of
            the same name share their connections, and each needs its own group.
        client_ip: Part of the client id and of message ids; this host's address if empty.
        call_timeout: Timeout of routes, heartbeats and group queries (``mqClientApiTimeout``).
        route_seconds: Interval of route refreshes (``pollNameServerInterval``).
        heartbeat_seconds: Interval of heartbeats (``heartbeatBrokerInterval``).
        credentials: Keys to sign requests with, for brokers with access control.
        tls: TLS for all connections; plain ones if None.
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
    tls: ClientTls | None = None

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
        send_timeout: Time limit of one send with all its retries (``sendMsgTimeout``).
        attempt_timeout: Time limit of one attempt while more remain; 0 for none
            (``sendMsgMaxTimeoutPerRequest``).
        retries: Attempts after the first (``retryTimesWhenSendFailed``).
        retry_codes: Response codes after which a send is retried.
        retry_not_stored_ok: Whether a status other than SEND_OK is retried
            (``retryAnotherBrokerWhenNotStoreOK``).
        message_bytes_max: Maximum size of a body before compression, and of a batch.
        batch_count_max: Maximum number of messages per batch request; larger batches become several
            requests, since brokers take long over very many messages and answer with an id for
            each.
        compress_bytes_min: Minimum size of a body to compress; 0 for never.
        auto_create_topic: The template of topics that their first send creates
            (``createTopicKey``); such sends go to the brokers that have it.
        auto_create_queues: Number of queues of such a topic (``defaultTopicQueueNums``).
        in_flight_max: Maximum number of unanswered messages; beyond it senders wait.
        in_flight_bytes_max: Maximum size of their bodies. Java's 100 MiB would exceed what one
            connection may queue here.
        avoid_slow_brokers: Whether to choose queues by the brokers' latency
            (``sendLatencyEnable``).
        auto_batch: Whether to send messages of about the same time together (``autoBatch``):
            cheaper for many small ones, with some delay for each.
        auto_batch_bytes: Size at which such a batch is sent (``batchMaxBytes``).
        auto_batch_seconds: Maximum wait of a message for others (``batchMaxDelayMs``).
        enable_trace: Whether to write a trace of every message (``enableTrace``).
        trace_topic: Topic of the traces (``traceTopic``).
        enable_spans: Whether sends are spans of OpenTelemetry, whose context travels with the
            messages; needs ``rocketpost[spans]``.
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
    enable_spans: bool = False

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
        pull_timeout: Timeout of a pull that does not wait (``consumerPullTimeoutMillis``).
        hold_seconds: Maximum time that the broker holds a waiting pull
            (``brokerSuspendMaxTimeMillis``).
        hold_timeout: Timeout of a pull that waits (``consumerTimeoutMillisWhenSuspend``).
        model: Place of the group's offsets (``messageModel``): on the brokers, or, for a
            broadcasting member, in its own file, as for a push consumer.
        offset_directory: Directory of that file; ``~/.rocketmq_offsets`` if None.
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
        model: Whether members share the messages or each gets all (``messageModel``). A
            broadcasting member's ``instance_name`` is DEFAULT unless given, so that it finds its
            offsets again.
        offset_directory: Directory of the offsets of broadcasting members;
            ``~/.rocketmq_offsets`` if None (``rocketmq.client.localOffsetStoreDir``).
        start_from: Start in a queue that the group has never consumed.
        start_timestamp_ms: For :attr:`StartFrom.TIMESTAMP`; half an hour ago if None.
        concurrency: Number of handlers that run at the same time (``consumeThreadMin``).
        batch_max: Maximum of messages per call of a batch handler
            (``consumeMessageBatchMaxSize``).
        pull_count_max: Maximum of messages per pull (``pullBatchSize``).
        pull_bytes_max: Maximum of bytes per pull (``pullBatchSizeInBytes``).
        pull_interval: Pause after a pull that found messages, before the next one of its queue; 0
            for none (``pullInterval``).
        cached_count_max: Maximum of fetched, unfinished messages of a queue; fetching pauses
            beyond it.
        cached_bytes_max: The same in bytes of their bodies.
        cached_span_max: The same for the distance between the first and the last of them.
        topic_count_max: Maximum of fetched, unfinished messages of a topic, divided among our
            queues of it; each gets at least one. None for no such bound
            (``pullThresholdForTopic``).
        topic_bytes_max: The same in bytes of their bodies (``pullThresholdSizeForTopic``).
        hold_seconds: Maximum time that the broker holds a pull that finds nothing.
        pull_timeout: Timeout of a pull.
        error_seconds: Pause after a failed pull (``pullTimeDelayMillsWhenException``).
        retry_max: Deliveries after the first until the dead-letter topic; -1 means 16, or no limit
            for orderly handlers.
        record_failures: Whether a message that is sent back carries the exception of its handler:
            the class and the first 256 characters of the text.
        suspend_seconds: Delay until a message is handled again after its orderly handler raised
            (``suspendCurrentQueueTimeMillis``).
        local_retry_seconds: Delay until a message that could not be sent back is handled again
            here.
        consume_timeout: Maximum time of a handler with the message that holds back its queue's
            offset; then the message is sent back and counts as finished (``consumeTimeout``).
        client_rebalance: Whether members assign the queues themselves; otherwise brokers do, and
            say whether to pull or to pop them (``clientRebalance``). Orderly and broadcasting
            members always do it themselves.
        pop_count_max: Maximum of messages per pop (``popBatchNums``).
        pop_invisible_seconds: Invisible time of popped messages (``popInvisibleTime``).
        pop_threshold: Maximum of popped, unfinished messages of a queue; popping pauses beyond it
            (``popThresholdForQueue``).
        rebalance_seconds: Interval of rebalance rounds.
        lock_renew_seconds: Interval of renewals of the locks of orderly queues
            (``rocketmq.client.rebalance.lockInterval``).
        lock_trust_seconds: Validity of such a lock without renewal; well below the brokers' 60 s
            (``rocketmq.client.rebalance.lockMaxLiveTime``).
        persist_seconds: Interval of offset reports to the brokers.
        stop_seconds: Time for running handlers to finish when the consumer stops.
        by_priority: Whether fetched messages wait for a handler in order of priority. Only fetched
            messages are compared, so a smaller ``cached_count_max`` makes the order stricter.
        enable_trace: Whether to write a trace of every message (``enableTrace``).
        trace_topic: Topic of the traces (``traceTopic``).
        enable_spans: Whether handlers run in spans of OpenTelemetry, as children of the spans that
            sent the messages; needs ``rocketpost[spans]``.
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
    enable_spans: bool = False

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
        model: Whether members share the messages or each gets all (``messageModel``). A
            broadcasting member keeps its offsets in its own file, like a push consumer.
        offset_directory: Directory of that file; ``~/.rocketmq_offsets`` if None.
        start_from: Start in a queue that the group has never consumed.
        start_timestamp_ms: For :attr:`StartFrom.TIMESTAMP`; half an hour ago if None.
        auto_commit: Whether polls commit what earlier polls returned.
        commit_seconds: Interval of such commits (``autoCommitIntervalMillis``).
        pull_count_max: Maximum of messages per pull, and so per poll.
        pull_bytes_max: Maximum of bytes per pull.
        cached_count_max: Maximum of messages of a queue that are fetched and not polled; fetching
            pauses beyond it.
        cached_bytes_max: The same in bytes of their bodies.
        cached_span_max: The same for the distance between the first and the last of them.
        topic_count_max: The same for all queues of a topic (``pullThresholdForAll``).
        hold_seconds: Maximum time that the broker holds a pull that finds nothing.
        pull_timeout: Timeout of a pull.
        error_seconds: Pause after a failed pull.
        rebalance_seconds: Interval of rebalance rounds.
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
        """Return the corresponding settings of a push consumer, checked."""
        same = {field.name for field in fields(PushConsumerConfig)}
        names = [field.name for field in fields(self) if field.name in same]
        return PushConsumerConfig(**{name: getattr(self, name) for name in names})


_RESERVED_GROUPS = frozenset({"DEFAULT_PRODUCER", "DEFAULT_CONSUMER"})
C = TypeVar("C", bound=ClientConfig)
M = TypeVar("M", PushConsumerConfig, LitePullConsumerConfig, PullConsumerConfig)


def check_group(group: str) -> None:
    """Check the name of a group.

    Raises:
        ConfigError: The name is illegal or reserved.
    """
    check_text("group", group)
    problem = group_problem(group)
    if problem is None and group in _RESERVED_GROUPS:
        problem = f"the group {group} is a reserved name; choose your own"
    if problem is not None:
        raise ConfigError(problem)


def parse_addresses(text: str) -> list[str]:
    """Split ``host:port;host:port``; take host and port of an ``http://`` endpoint."""
    parts = (part.strip().rstrip("/").rpartition("/")[2] for part in text.split(";"))
    return list(dict.fromkeys(part for part in parts if part))


def check_address(address: str, kind: str = "name server") -> None:
    """Raise unless the ``address`` of a server of some kind is a host and a port.

    Raises:
        ConfigError: It is not a host and a port.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(f"the {kind} {address!r} is not host:port")


def with_name_servers(config: C, name_servers: str | None, kind: type[C] | None = None) -> C:
    """Return settings with separately given name servers, which take precedence.

    Raises:
        ConfigError: The settings belong to another kind of client, or a name server is not an
            address.
    """
    if kind is not None and not isinstance(config, kind):
        raise ConfigError(f"config must be a {kind.__name__}, not {config!r}")
    return config if name_servers is None else replace(config, name_servers=name_servers)


def with_stable_name(config: M) -> M:
    """Return settings whose client id, which names a file, stays the same after a restart."""
    if config.model is MessageModel.BROADCASTING and not config.instance_name:
        return replace(config, instance_name=STABLE_INSTANCE)
    return config


def check_positive(name: str, value: float) -> None:
    """Raise unless ``value`` is over zero.

    Raises:
        ConfigError: It is zero or less.
    """
    if not value > 0:
        raise ConfigError(f"{name} must be over 0, not {value}")


def check_range(name: str, value: int, low: int, high: int) -> None:
    """Raise unless ``value`` is between ``low`` and ``high``, inclusive.

    Raises:
        ConfigError: It is outside this range.
    """
    if not low <= value <= high:
        raise ConfigError(f"{name} must lie between {low} and {high}, not {value}")


def check_trace_topic(topic: str) -> None:
    """Raise unless ``topic`` is a legal topic for traces.

    Raises:
        ConfigError: The name is illegal.
    """
    if problem := topic_problem(topic):
        raise ConfigError(f"trace_topic: {problem}")
