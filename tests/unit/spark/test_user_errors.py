"""Errors as users of Spark meet them."""

from __future__ import annotations

import inspect
import logging
import traceback

import pytest

from rocketpost.errors import ConfigError
from rocketpost.spark.user_errors import user_facing_errors


def deep(count: int) -> int:
    if count:
        return deep(count - 1)
    try:
        return int("seven")
    except ValueError as error:
        raise ConfigError("seven is no number; give one") from error


@user_facing_errors
def asked(start: int, limit: int) -> int:
    return deep(start + limit)


def test_only_the_sentence_is_left(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(ConfigError) as raised:
        asked(20, 1)
    lines = "".join(traceback.format_exception(raised.value)).splitlines()
    assert lines[-1] == "rocketpost.errors.ConfigError: seven is no number; give one"
    assert not [line for line in lines if "deep" in line or "ValueError" in line]
    assert "ValueError" in caplog.text  # for those who want it


def test_bugs_show_where_they_are() -> None:
    @user_facing_errors
    def broken() -> int:
        return [][1]

    with pytest.raises(IndexError) as raised:
        broken()
    assert "return [][1]" in "".join(traceback.format_exception(raised.value))


def test_trap_spark_counts_parameters() -> None:
    # It calls latestOffset in the old way if it seems to have none.
    assert list(inspect.signature(asked).parameters) == ["start", "limit"]
