"""Settings of the proxy, with the keys of RocketMQ's ``rmq-proxy.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from rocketpost.errors import ConfigError
from rocketpost.settings import build, keys_of, option, reject_unknown
from rocketpost.transport.entrance import TlsMode

PORT: Final = 8081
_HOUR_MS: Final = 3_600_000

IGNORED: Final[Mapping[str, str]] = {
    "proxyMode": "the command decides: mqbroker --enable-proxy is local, mqproxy is for a cluster",
    "remotingListenPort": "clients of the remoting protocol connect to brokers directly",
    "grpcThreadPoolNums": "calls are served by one event loop",
    "grpcThreadPoolQueueCapacity": "calls are served by one event loop",
    "grpcBossLoopNum": "calls are served by one event loop",
    "grpcWorkerLoopNum": "calls are served by one event loop",
    "enableGrpcEpoll": "the gRPC library chooses its poller",
    "enableBatchAck": "the entries of one AckMessage are acknowledged one by one",
}
"""RocketMQ's keys that have no effect here, with the reasons."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyConfig:
    """Settings of the gRPC port."""

    port: int = option("grpcServerPort", PORT)
    bind_address: str = option("bindAddress", "")
    cluster_name: str = option("rocketMQClusterName", "DefaultCluster")
    name_servers: str = option("namesrvAddr", "")
    authentication_enabled: bool = option("authenticationEnabled", False)
    authorization_enabled: bool = option("authorizationEnabled", False)
    inner_credentials: str = option("innerClientAuthenticationCredentials", "", secret=True)
    public_address: str = option("localServeAddr", "")
    keeps_client_port: bool = option("useEndpointPortFromRequest", True)
    call_bytes_max: int = option("grpcMaxInboundMessageSize", 130 * 1024 * 1024)
    idle_ms: int = option("grpcClientIdleTimeMills", 120_000)
    stop_seconds: int = option("grpcShutdownTimeSeconds", 30)

    body_bytes_max: int = option("maxMessageSize", 4 * 1024 * 1024)
    properties_bytes_max: int = option("maxUserPropertySize", 16 * 1024)
    properties_max: int = option("userPropertyMaxNum", 128)
    message_group_bytes_max: int = option("maxMessageGroupSize", 64)
    delay_ms_max: int = option("maxDelayTimeMills", 24 * _HOUR_MS)
    recovery_seconds_max: int = option("maxTransactionRecoverySecond", 3600)
    checks_types: bool = option("enableTopicMessageTypeCheck", True)
    uses_delay_levels: bool = option("useDelayLevel", False)

    poll_ms_min: int = option("grpcClientConsumerMinLongPollingTimeoutMillis", 5_000)
    poll_ms_max: int = option("grpcClientConsumerMaxLongPollingTimeoutMillis", 20_000)
    batch_size: int = option("grpcClientConsumerLongPollingBatchSize", 32)
    invisible_ms: int = option("defaultInvisibleTimeMills", 60_000)
    invisible_ms_min: int = option("minInvisibleTimeMillsForRecv", 10_000)
    invisible_ms_max: int = option("maxInvisibleTimeMills", 12 * _HOUR_MS)
    renews: bool = option("enableProxyAutoRenew", True)
    renew_interval_ms: int = option("renewSchedulePeriodMillis", 5_000)
    renew_ahead_ms: int = option("renewAheadTimeMillis", 10_000)
    renew_ms_max: int = option("renewMaxTimeMillis", 3 * _HOUR_MS)
    renew_failures_max: int = option("maxRenewRetryTimes", 3)

    producer_attempts: int = option("grpcClientProducerMaxAttempts", 3)
    producer_backoff_ms: int = option("grpcClientProducerBackoffInitialMillis", 10)
    producer_backoff_ms_max: int = option("grpcClientProducerBackoffMaxMillis", 1_000)
    producer_backoff_factor: int = option("grpcClientProducerBackoffMultiplier", 2)
    client_expiry_ms: int = option("channelExpiredTimeout", 120_000)
    client_count_max: int = option("grpcClientCountMax", 50_000)

    tls_mode: TlsMode = option("tlsServerMode", TlsMode.PERMISSIVE)
    tls_test_mode: bool = option("tlsTestModeEnable", True)
    tls_key: str = option("tlsKeyPath", "")
    tls_certificate: str = option("tlsCertPath", "")

    def __post_init__(self) -> None:
        """Check what one value cannot show alone."""
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
    reject_unknown(values, keys_of(ProxyConfig), inactive=IGNORED)
    notes = [f"{key} has no effect: {IGNORED[key]}" for key in sorted(values.keys() & IGNORED)]
    return build(ProxyConfig, values), notes


def _text_of(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise ConfigError(f"{key} takes a string, a number, true or false")
