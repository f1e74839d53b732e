"""Settings of the name server."""

from __future__ import annotations

import pytest

from rocketpost.errors import ConfigError
from rocketpost.server.settings.namesrv import NamesrvConfig
from rocketpost.settings import build, keys_of


def test_the_defaults_are_rocketmqs() -> None:
    config = NamesrvConfig()
    assert config.listen_port == 9876
    assert config.scan_interval_ms == 5000
    assert config.wait_for_service_seconds == 45
    assert not config.order_messages


def test_an_empty_path_keeps_the_table_in_memory() -> None:
    assert build(NamesrvConfig, {"kvConfigPath": ""}).kv_config_path is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("listenPort", "65536"),
        ("listenPort", "-1"),
        ("scanNotActiveBrokerInterval", "0"),
        ("serverChannelMaxIdleTimeSeconds", "0"),
        ("brokerCountMax", "0"),
        ("routeEntryCountMax", "-1"),
        ("waitSecondsForService", "-1"),
        ("orderMessageEnable", "perhaps"),
    ],
)
def test_bad_values_are_named(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=key):
        build(NamesrvConfig, {key: value})


def test_nothing_that_reaches_outside_can_be_changed_from_outside() -> None:
    mutable = {key for key, field in keys_of(NamesrvConfig).items() if field.metadata["mutable"]}
    assert mutable == {
        "scanNotActiveBrokerInterval",
        "orderMessageEnable",
        "returnOrderTopicConfigToBroker",
        "supportActingMaster",
        "enableAllTopicList",
        "enableTopicList",
        "needWaitForService",
        "waitSecondsForService",
        "deleteTopicWithBrokerRegistration",
        "logLevel",
    }
