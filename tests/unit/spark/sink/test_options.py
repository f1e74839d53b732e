"""Options of the sink."""

from __future__ import annotations

import pytest

from rocketpost.errors import ConfigError
from rocketpost.spark.options import parse_options
from rocketpost.spark.sink.options import SinkOptions


def test_an_epoch_may_be_given_and_is_a_batch_number() -> None:
    given = {"nameServer": "x:1", "topic": "T"}
    assert parse_options(SinkOptions, given).epoch is None
    assert parse_options(SinkOptions, given | {"epoch": "0"}).epoch == 0
    with pytest.raises(ConfigError, match="epoch"):
        parse_options(SinkOptions, given | {"epoch": "-1"})


def test_an_option_without_effect_is_refused() -> None:
    given = {"nameServer": "x:1", "topic": "T"}
    with pytest.raises(ConfigError, match="scanSince needs delivery=effectivelyOnce"):
        parse_options(SinkOptions, given | {"scanSince": "5"})
    with pytest.raises(ConfigError, match="onForgotten needs delivery=exactlyOnce"):
        parse_options(SinkOptions, given | {"onForgotten": "skip", "delivery": "effectivelyOnce"})
