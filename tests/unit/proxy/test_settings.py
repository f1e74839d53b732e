from __future__ import annotations

import pytest

from rocketpost.errors import ConfigError
from rocketpost.proxy.settings import TlsMode, read_proxy_settings


def test_settings_are_read_from_json() -> None:
    config, notes = read_proxy_settings(
        '{"grpcServerPort": 9000, "useDelayLevel": true, "tlsServerMode": "disabled", '
        '"remotingListenPort": 8080}'
    )
    assert (config.port, config.uses_delay_levels) == (9000, True)
    assert config.tls_mode is TlsMode.DISABLED
    (note,) = notes
    assert "remotingListenPort has no effect" in note


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
    ],
)
def test_wrong_settings_are_named(text: str, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        read_proxy_settings(text)
