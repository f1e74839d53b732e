from __future__ import annotations

import logging

import pytest

from rocketpost.errors import ConfigError
from rocketpost.server.settings.broker import broker_settings
from rocketpost.server.settings.logs import parse_levels
from rocketpost.server.settings.namesrv import NamesrvConfig


def test_levels_of_loggers() -> None:
    assert parse_levels("rocketpost.server.broker=DEBUG")["rocketpost.server.broker"] == 10
    assert parse_levels("") == {"rocketpost": logging.INFO}
    assert parse_levels("warning, rocketpost.store=debug") == {
        "rocketpost": logging.WARNING,
        "rocketpost.store": logging.DEBUG,
    }


@pytest.mark.parametrize(
    "text",
    [
        "LOUD",
        "rocketpost.store=",
        "asyncio=DEBUG",
        "rocketpostx=INFO",
        "rocketpost.stoer=DEBUG",
        "rocketpost.=DEBUG",
        "rocketpost...tests=DEBUG",
        "rocketpost.store/log=DEBUG",
    ],
)
def test_an_unknown_level_or_logger_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="logLevel="):
        parse_levels(text)


@pytest.mark.parametrize(
    ("key", "value"),
    [("logFormat", "xml"), ("logLevel", "LOUD"), ("logFileBytes", "10"), ("logFileCount", "-1")],
)
def test_a_broker_refuses_values_that_cannot_work(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=key):
        broker_settings({key: value})


def test_a_name_server_has_the_same_settings() -> None:
    assert NamesrvConfig(log_format="json").log_format == "json"
    with pytest.raises(ConfigError, match="logFormat"):
        NamesrvConfig(log_format="xml")
