from __future__ import annotations

from typing import Any

from rocketpost.model.group import GroupConfig
from rocketpost.proxy.client_settings import merge_settings
from rocketpost.proxy.settings import MetricMode, ProxyConfig
from rocketpost.proxy.wire.messages import Settings, ms_of

GROWING = {
    "type": "EXPONENTIAL",
    "exponentialRetryPolicy": {"initial": 1000, "max": 8000, "multiplier": 2},
}
LISTED = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [100, 200]}}


def policy(language: str, **group: Any) -> Any:
    settings = Settings()
    settings.subscription.group.name = "group"
    config = GroupConfig(group_name="group", **group)
    merged = merge_settings(settings, config=ProxyConfig(), group=config, language=language)
    return merged.backoff_policy


def test_delays_are_those_of_the_group() -> None:
    delays = policy("JAVA", group_retry_policy=LISTED, retry_max_times=2)
    assert [ms_of(each) for each in delays.customized_backoff.next] == [100, 200]
    assert delays.max_attempts == 3
    growing = policy("JAVA", group_retry_policy=GROWING).exponential_backoff
    assert (ms_of(growing.initial), ms_of(growing.max), growing.multiplier) == (1000, 8000, 2)


def test_each_client_gets_the_kind_of_policy_that_it_knows() -> None:
    listed = policy("PYTHON", group_retry_policy=GROWING).customized_backoff
    assert [ms_of(each) for each in listed.next][:5] == [1000, 2000, 4000, 8000, 8000]
    assert policy("NODE_JS").WhichOneof("strategy") == "exponential_backoff"
    assert policy("HTTP").WhichOneof("strategy") == "exponential_backoff"
    assert policy("GO").WhichOneof("strategy") == "customized_backoff"


def test_the_fields_of_the_client_come_back() -> None:
    settings = Settings()
    settings.publishing.topics.add(name="topic")
    settings.user_agent.hostname = "host"
    settings.metric.on = True
    merged = merge_settings(settings, config=ProxyConfig(), group=None, language="JAVA")
    assert merged.user_agent.hostname == "host"
    assert [topic.name for topic in merged.publishing.topics] == ["topic"]
    assert not merged.metric.on


def test_clients_are_told_where_to_send_their_metrics() -> None:
    settings = Settings()
    settings.publishing.topics.add(name="topic")
    config = ProxyConfig(metric_mode=MetricMode.ON, metric_address="collector:4317")
    metric = merge_settings(settings, config=config, group=None, language="JAVA").metric
    assert metric.on
    (address,) = metric.endpoints.addresses
    assert (metric.endpoints.scheme, address.host, address.port) == (3, "collector", 4317)
