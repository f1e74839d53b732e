from __future__ import annotations

import json
from pathlib import Path

import pytest

from rocketpost.errors import ConfigError
from rocketpost.proxy.foreign_keys import IGNORED, UNSERVED
from rocketpost.proxy.settings import ProxyConfig, TlsMode, read_proxy_settings
from rocketpost.settings import keys_of


def test_settings_are_read_from_json() -> None:
    config, notes = read_proxy_settings(
        '{"grpcServerPort": 9000, "useDelayLevel": true, "tlsServerMode": "disabled", '
        '"grpcBossLoopNum": 1}'
    )
    assert (config.port, config.uses_delay_levels) == (9000, True)
    assert config.tls_mode is TlsMode.DISABLED
    (note,) = notes
    assert "grpcBossLoopNum has no effect" in note


def test_every_key_of_rocketmq_acts_or_is_explained() -> None:
    known = {*keys_of(ProxyConfig), *IGNORED, *UNSERVED}
    keys = Path(__file__).with_name("rocketmq_proxy_keys.txt").read_text().split()
    assert len(keys) > 120
    assert sorted(set(keys) - known) == []
    assert not set(keys_of(ProxyConfig)) & set(IGNORED)
    assert not set(IGNORED) & set(UNSERVED)


def test_a_size_of_zero_is_no_limit() -> None:
    config, _ = read_proxy_settings(
        '{"maxMessageSize": 0, "maxUserPropertySize": -1, "maxMessageGroupSize": 0}'
    )
    sizes = config.body_bytes_max, config.properties_bytes_max, config.message_group_bytes_max
    assert min(sizes) == 2**31 - 1


@pytest.mark.parametrize("key", sorted(UNSERVED))
def test_what_is_not_served_is_refused_with_a_reason(key: str) -> None:
    usual = UNSERVED[key].usual[-1]
    read_proxy_settings(json.dumps({key: usual}))
    with pytest.raises(ConfigError, match=f"{key}=another is not supported: "):
        read_proxy_settings(json.dumps({key: "another"}))


def test_an_empty_file_has_the_defaults() -> None:
    config, notes = read_proxy_settings("")
    assert (config.port, notes) == (8081, [])


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("[]", "object"),
        ("{", "JSON"),
        ('{"grpcServerPrt": 1}', "grpcServerPort"),
        ('{"grpcServerPort": []}', "grpcServerPort"),
        ('{"grpcServerPort": "x"}', "whole number"),
        ('{"tlsKeyPath": "x"}', "tlsCertPath"),
        ('{"grpcClientConsumerLongPollingBatchSize": 33}', "1 to 32"),
        ('{"minInvisibleTimeMillsForRecv": 99999999}', "maxInvisibleTimeMills"),
        ('{"grpcMaxConcurrentCallsPerConnection": 0}', "above 0"),
        ('{"messageDelayLevel": "1x"}', "messageDelayLevel"),
        ('{"metricCollectorMode": "proxy"}', "metricCollectorMode=on"),
        ('{"metricCollectorMode": "on"}', "metricCollectorAddress=host:port"),
    ],
)
def test_wrong_settings_are_named(text: str, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        read_proxy_settings(text)
