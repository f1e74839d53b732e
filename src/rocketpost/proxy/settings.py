"""Settings of the proxy, with the keys of RocketMQ's ``rmq-proxy.json``."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from typing import Any, Final

from rocketpost.errors import ConfigError
from rocketpost.model.delay_levels import parse_delay_levels
from rocketpost.proxy.foreign_keys import IGNORED, UNSERVED, refuse_unserved
from rocketpost.settings import build, keys_of, option, reject_unknown
from rocketpost.transport.entrance import TlsMode

PORT: Final = 8081
REMOTING_PORT: Final = 8080
_HOUR_MS: Final = 3_600_000

_MAY_BE_ZERO: Final = frozenset({"port", "remoting_port", "delay_ms_max", "renew_failures_max"})
_SIZE_MAX: Final = 2**31 - 1
"""The bound of a size whose setting says that there is none."""


class MetricMode(enum.Enum):
    """Modes of ``metricCollectorMode``: clients send no metrics, or send them to an address."""

    OFF = "off"
    ON = "on"
    PROXY = "proxy"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyConfig:
    """Settings of the gRPC port."""

    port: int = option("grpcServerPort", PORT)
    bind_address: str = option("bindAddress", "")
    remoting_port: int | None = option("remotingListenPort", None)
    remoting_host: str = option("remotingAccessAddr", "")
    cluster_name: str = option("rocketMQClusterName", "DefaultCluster")
    name_servers: str = option("namesrvAddr", "")
    address_server: str = option("namesrvDomain", "")
    address_group: str = option("namesrvDomainSubgroup", "")
    authentication_enabled: bool = option("authenticationEnabled", False)
    authorization_enabled: bool = option("authorizationEnabled", False)
    inner_credentials: str = option("innerClientAuthenticationCredentials", "", secret=True)
    public_address: str = option("localServeAddr", "")
    keeps_client_port: bool = option("useEndpointPortFromRequest", True)
    call_bytes_max: int = option("grpcMaxInboundMessageSize", 130 * 1024 * 1024)
    calls_max: int = option("grpcMaxConcurrentCallsPerConnection", 10_000)
    ping_interval_ms: int = option("grpcServerPermitKeepAliveTimeMillis", 10_000)
    allows_idle_pings: bool = option("grpcServerPermitKeepAliveWithoutCalls", True)
    idle_ms: int = option("grpcClientIdleTimeMills", 120_000)

    body_bytes_max: int = option("maxMessageSize", 4 * 1024 * 1024)
    refuses_empty_bodies: bool = option("enableMessageBodyEmptyCheck", True)
    properties_bytes_max: int = option("maxUserPropertySize", 16 * 1024)
    properties_max: int = option("userPropertyMaxNum", 128)
    message_group_bytes_max: int = option("maxMessageGroupSize", 64)
    delay_ms_max: int = option("maxDelayTimeMills", 24 * _HOUR_MS)
    recovery_seconds_max: int = option("maxTransactionRecoverySecond", 3600)
    checks_types: bool = option("enableTopicMessageTypeCheck", True)
    uses_delay_levels: bool = option("useDelayLevel", False)
    delay_levels: str = option(
        "messageDelayLevel", "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    )

    poll_ms_min: int = option("grpcClientConsumerMinLongPollingTimeoutMillis", 5_000)
    poll_ms_max: int = option("grpcClientConsumerMaxLongPollingTimeoutMillis", 20_000)
    answer_ms: int = option("longPollingReserveTimeInMillis", 100)
    batch_size: int = option("grpcClientConsumerLongPollingBatchSize", 32)
    invisible_ms: int = option("defaultInvisibleTimeMills", 60_000)
    invisible_ms_min: int = option("minInvisibleTimeMillsForRecv", 10_000)
    invisible_ms_max: int = option("maxInvisibleTimeMills", 12 * _HOUR_MS)
    renews: bool = option("enableProxyAutoRenew", True)
    renew_interval_ms: int = option("renewSchedulePeriodMillis", 5_000)
    renew_ahead_ms: int = option("renewAheadTimeMillis", 10_000)
    renew_ms_max: int = option("renewMaxTimeMillis", 3 * _HOUR_MS)
    renew_failures_max: int = option("maxRenewRetryTimes", 3)
    return_ms: int = option("invisibleTimeMillisWhenClear", 1_000)

    producer_attempts: int = option("grpcClientProducerMaxAttempts", 3)
    producer_backoff_ms: int = option("grpcClientProducerBackoffInitialMillis", 10)
    producer_backoff_ms_max: int = option("grpcClientProducerBackoffMaxMillis", 1_000)
    producer_backoff_factor: int = option("grpcClientProducerBackoffMultiplier", 2)
    client_expiry_ms: int = option("channelExpiredTimeout", 120_000)
    client_count_max: int = option("grpcClientCountMax", 50_000)
    command_seconds: int = option("grpcProxyRelayRequestTimeoutInSeconds", 5)
    metric_mode: MetricMode = option("metricCollectorMode", MetricMode.OFF)
    metric_address: str = option("metricCollectorAddress", "")

    route_seconds: int = option("topicRouteServiceCacheRefreshSeconds", 20)
    topic_seconds: int = option("topicConfigCacheRefreshSeconds", 20)
    topics_max: int = option("topicConfigCacheMaxNum", 20_000)
    group_seconds: int = option("subscriptionGroupConfigCacheRefreshSeconds", 20)
    groups_max: int = option("subscriptionGroupConfigCacheMaxNum", 20_000)
    announces_clients: bool = option("announceClients", True)
    heartbeat_seconds: int = option("transactionHeartbeatPeriodSecond", 20)

    tls_mode: TlsMode = option("tlsServerMode", TlsMode.PERMISSIVE)
    tls_test_mode: bool = option("tlsTestModeEnable", True)
    tls_key: str = option("tlsKeyPath", "")
    tls_key_password: str = option("tlsKeyPassword", "", secret=True)
    tls_certificate: str = option("tlsCertPath", "")

    def __post_init__(self) -> None:
        """Check what one value cannot show alone."""
        for name in ("body_bytes_max", "properties_bytes_max", "message_group_bytes_max"):
            if getattr(self, name) <= 0:  # no limit but that of a call, as in RocketMQ
                object.__setattr__(self, name, _SIZE_MAX)
        self._check_positive()
        assert self.delays_ms  # or it raises
        if self.metric_mode is MetricMode.PROXY:
            raise ConfigError(
                "metricCollectorMode=proxy is not supported: the proxy collects no metrics of "
                "clients; name a collector with metricCollectorMode=on and metricCollectorAddress"
            )
        if self.metric_mode is MetricMode.ON and not _is_address(self.metric_address):
            raise ConfigError("metricCollectorMode=on needs metricCollectorAddress=host:port")
        for low, high in (
            ("poll_ms_min", "poll_ms_max"),
            ("invisible_ms_min", "invisible_ms_max"),
        ):
            if not 0 < getattr(self, low) <= getattr(self, high):
                keys = {field.name: key for key, field in keys_of(type(self)).items()}
                raise ConfigError(f"{keys[low]} must be above 0 and at most {keys[high]}")
        if not 1 <= self.batch_size <= 32:
            raise ConfigError("grpcClientConsumerLongPollingBatchSize must be 1 to 32")
        if self.authorization_enabled and not self.authentication_enabled:
            raise ConfigError("authorizationEnabled=true needs authenticationEnabled=true")
        if bool(self.tls_key) != bool(self.tls_certificate):
            raise ConfigError("tlsKeyPath and tlsCertPath are needed together")

    def _check_positive(self) -> None:
        for key, field in keys_of(type(self)).items():
            value = getattr(self, field.name)
            if type(value) is int and field.name not in _MAY_BE_ZERO and value <= 0:
                raise ConfigError(f"{key}={value} must be above 0")

    @property
    def delays_ms(self) -> tuple[int, ...]:
        """The delay of each level."""
        return parse_delay_levels(self.delay_levels)


def _is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return bool(host) and port.isdecimal() and 0 < int(port) < 65_536


def read_proxy_settings(text: str) -> tuple[ProxyConfig, list[str]]:
    """Read the text of ``rmq-proxy.json``; return the settings, and notes for the user.

    Raises:
        ConfigError: The text is not a JSON object, or a setting is unknown or wrong.
    """
    try:
        document: Any = json.loads(text) if text.strip() else {}
    except ValueError as error:
        raise ConfigError(f"the proxy's settings are not JSON: {error}") from None
    if not isinstance(document, dict):
        raise ConfigError("the proxy's settings are not a JSON object")
    values = {str(key): _text_of(str(key), value) for key, value in document.items()}
    refuse_unserved(values)
    reject_unknown(values, keys_of(ProxyConfig), inactive=(*IGNORED, *UNSERVED))
    notes = [f"{key} has no effect: {IGNORED[key]}" for key in sorted(values.keys() & IGNORED)]
    return build(ProxyConfig, values), notes


def _text_of(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise ConfigError(f"{key} takes a string, a number, true or false")
