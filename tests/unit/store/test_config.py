from __future__ import annotations

import pytest

from rocketpost import settings
from rocketpost.errors import ConfigError
from rocketpost.store.config import (
    FlushMode,
    StoreConfig,
    parse_delete_hours,
)


def test_a_broker_conf_fills_it() -> None:
    text = "storePathRootDir=/data\nflushDiskType=SYNC_FLUSH\nmappedFileSizeConsumeQueue=6000001\n"
    config = settings.build(StoreConfig, settings.parse_properties(text))
    assert config.root == "/data"
    assert config.flush_mode is FlushMode.SYNC_FLUSH
    assert config.queue_file_bytes == 6000020


@pytest.mark.parametrize(
    "wrong",
    [
        {"maxMessageSize": "0"},
        {"maxMessageSize": "4194304", "mappedFileSizeCommitLog": "4194304"},
        {"diskMaxUsedSpaceRatio": "101"},
        {"deleteWhen": "24"},
        {"messageDelayLevel": "1x"},
        {"storePathCommitLog": "/a,/b"},
        {"fileReservedTime": "-1"},
    ],
)
def test_nonsense_names_its_key(wrong: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        settings.build(StoreConfig, wrong)


def test_hours_of_the_day() -> None:
    assert parse_delete_hours("04; 16;") == {4, 16}
