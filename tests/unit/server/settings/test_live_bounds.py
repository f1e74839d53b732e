from __future__ import annotations

import pytest

from rocketpost.codec.faults import InvalidParameter
from rocketpost.errors import ConfigError
from rocketpost.server.settings.broker import BrokerConfig, broker_settings
from rocketpost.server.settings.live_bounds import BOUNDS, live_problem
from rocketpost.server.settings.live_config import LiveConfig, Override, apply_overrides
from rocketpost.settings import keys_of
from rocketpost.store.config import StoreConfig
from rocketpost.testing.clock import FakeClock

NOW = 1_700_000_000_000
DESTRUCTIVE = [
    ("fileReservedTime", "1"),
    ("diskMaxUsedSpaceRatio", "10"),
    ("diskSpaceCleanForciblyRatio", "30"),
    ("diskSpaceWarningLevelRatio", "35"),
    ("maxMessageSize", "1"),
    ("flushIntervalCommitLog", "2147483647"),
    ("transactionCheckMax", "1"),
    ("transactionCheckInterval", "1"),
    ("idempotentProducersMax", "1"),
    ("idempotentProducerIdleSeconds", "1"),
    ("startAcceptSendRequestTimeStamp", str(NOW + 100 * 86_400_000)),
]


def make(**from_file: str) -> LiveConfig:
    broker, store = broker_settings({"storePathRootDir": "/nowhere"} | from_file)
    return LiveConfig(broker, store, clock=FakeClock(NOW), from_file=from_file)


@pytest.mark.parametrize(("key", "value"), DESTRUCTIVE)
def test_no_request_can_have_messages_deleted_or_refused(key: str, value: str) -> None:
    live = make()
    before = live.properties()
    with pytest.raises(InvalidParameter, match=f"{key}={value} is refused: .*broker's file"):
        live.change({key: value, "traceOn": "false"})
    assert live.properties() == before


@pytest.mark.parametrize(("key", "value"), DESTRUCTIVE)
def test_a_destructive_change_of_before_falls_at_the_next_start(key: str, value: str) -> None:
    classes = (BrokerConfig, StoreConfig)
    assert apply_overrides({}, {key: Override(value)}, classes, now_ms=NOW) == ({}, {})


@pytest.mark.parametrize(("key", "value"), DESTRUCTIVE)
def test_a_request_may_go_as_far_as_the_file(key: str, value: str) -> None:
    make(**{key: value}).change({key: value})


@pytest.mark.parametrize("value", ["", " , ", "rocketpost.stoer=DEBUG", "LOUD"])
def test_levels_of_the_log_that_mean_nothing_are_refused(value: str) -> None:
    live = make()
    with pytest.raises(InvalidParameter, match="logLevel"):
        live.change({"logLevel": value})
    assert live.properties()["logLevel"] == "INFO"
    saved = {"logLevel": Override(value)}  # a broker without this check may have saved it
    assert apply_overrides({}, saved, (BrokerConfig, StoreConfig), now_ms=NOW) == ({}, {})
    live.change({"logLevel": "INFO,rocketpost.store=DEBUG"})


def test_harmless_changes_are_accepted() -> None:
    make().change({"fileReservedTime": "24", "diskSpaceCleanForciblyRatio": "80"})


def test_forced_deletion_stays_off_where_the_file_says_so() -> None:
    with pytest.raises(InvalidParameter, match="forbids it"):
        make(cleanFileForciblyEnable="false").change({"cleanFileForciblyEnable": "true"})
    make().change({"cleanFileForciblyEnable": "false"})
    make().change({"cleanFileForciblyEnable": "true"})


def test_values_that_are_no_numbers_are_left_to_the_settings() -> None:
    assert live_problem("fileReservedTime", "soon", from_file={}, now_ms=NOW) is None


def test_every_bound_is_of_a_key_that_a_request_may_set() -> None:
    fields = keys_of(BrokerConfig) | keys_of(StoreConfig)
    assert all(fields[key].metadata["mutable"] for key in BOUNDS)


def test_the_defaults_are_within_the_bounds() -> None:
    values = make().properties()
    assert all(bound.low <= int(values[key]) <= bound.high for key, bound in BOUNDS.items())


def test_a_guard_is_asked_before_anything_changes() -> None:
    live = make()

    def refuse(wanted: StoreConfig) -> None:
        raise ConfigError(f"not {wanted.reserved_hours} now")

    live.guard(StoreConfig, refuse)
    with pytest.raises(InvalidParameter, match="not 48 now"):
        live.change({"fileReservedTime": "48"})
    assert live.section(StoreConfig).reserved_hours == 72
    live.change({"traceOn": "false"})


def test_no_request_can_make_a_master_wait_for_fewer_slaves_than_its_file() -> None:
    live = make(brokerRole="SYNC_MASTER")
    live.change({"inSyncReplicas": "3"})
    live.change({"inSyncReplicas": "2"})
    with pytest.raises(InvalidParameter, match="acknowledged before slaves have them"):
        live.change({"inSyncReplicas": "1"})
    with pytest.raises(InvalidParameter, match="acknowledged before slaves have them"):
        make(brokerRole="SYNC_MASTER", inSyncReplicas="3").change({"inSyncReplicas": "2"})
    make(brokerRole="SYNC_MASTER", inSyncReplicas="1").change({"inSyncReplicas": "1"})
