"""Settings that the proxy sends to clients: those that they sent, with the values of the server."""

from __future__ import annotations

from typing import Any, Final

from rocketpost.model.delay_levels import parse_delay_levels
from rocketpost.model.group import GroupConfig
from rocketpost.model.retry_policy import RetryPolicy, read_retry_policy
from rocketpost.proxy.settings import MetricMode, ProxyConfig
from rocketpost.proxy.wire.messages import Settings, endpoints_at, set_ms

LEVELS_MS: Final = parse_delay_levels("1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h")
"""Delays of a group's retries without a policy of its own."""
_BY_LIST: Final = "PYTHON"
_BY_GROWTH: Final = frozenset({"NODE_JS", "HTTP"})
"""Languages by which the clients for Node.js name themselves; they know no list of delays."""


def merge_settings(
    settings: Any, *, config: ProxyConfig, group: GroupConfig | None, language: str
) -> Any:
    """Return a client's settings with the values that the server decides.

    Args:
        settings: The settings that the client sent.
        config: The proxy's settings.
        group: The configuration of its consumer group; None for defaults.
        language: The client's language: not all clients know both kinds of retry policy.
    """
    merged = Settings()
    merged.CopyFrom(settings)
    merged.metric.Clear()
    merged.metric.on = config.metric_mode is MetricMode.ON
    if merged.metric.on:
        host, _, port = config.metric_address.rpartition(":")
        merged.metric.endpoints.CopyFrom(endpoints_at(host.strip("[]"), int(port)))
    policy = merged.backoff_policy
    policy.Clear()
    if settings.HasField("publishing"):
        merged.publishing.max_body_size = config.body_bytes_max
        merged.publishing.validate_message_type = config.checks_types
        policy.max_attempts = config.producer_attempts
        _fill_growth(
            policy.exponential_backoff,
            initial_ms=config.producer_backoff_ms,
            most_ms=config.producer_backoff_ms_max,
            factor=config.producer_backoff_factor,
        )
        return merged
    group = group or GroupConfig()
    merged.subscription.fifo = group.consume_message_orderly
    merged.subscription.receive_batch_size = config.batch_size
    set_ms(merged.subscription.long_polling_timeout, config.poll_ms_max)
    policy.max_attempts = max_attempts(group)
    _fill_policy(policy, read_retry_policy(group.group_retry_policy), language.upper())
    return merged


def max_attempts(group: GroupConfig | None) -> int:
    """Return the number of deliveries after which a message becomes a dead letter."""
    return max((group or GroupConfig()).retry_max_times, 0) + 1


def _fill_policy(target: Any, policy: RetryPolicy | None, language: str) -> None:
    grows = policy is not None and not policy.steps
    if language in _BY_GROWTH or (grows and language != _BY_LIST):
        policy = policy if policy is not None and grows else RetryPolicy()
        _fill_growth(
            target.exponential_backoff,
            initial_ms=policy.initial,
            most_ms=policy.most,
            factor=policy.multiplier,
        )
        return
    delays = LEVELS_MS
    if policy is not None:
        delays = policy.steps or tuple(policy.delay_ms(times) for times in range(len(LEVELS_MS)))
    for delay_ms in delays:
        set_ms(target.customized_backoff.next.add(), delay_ms)


def _fill_growth(target: Any, *, initial_ms: int, most_ms: int, factor: int) -> None:
    set_ms(target.initial, initial_ms)
    set_ms(target.max, most_ms)
    target.multiplier = factor
