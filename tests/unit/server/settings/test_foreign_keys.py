"""An existing property file of Apache RocketMQ is understood key by key."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketpost.errors import ConfigError
from rocketpost.server.settings.broker import (
    BrokerConfig,
    broker_settings,
    setting_notes,
    without_blanks,
)
from rocketpost.server.settings.foreign_keys import (
    FIXED_PATHS,
    IGNORED,
    NAMESRV_IGNORED,
    NAMESRV_REFUSED_WHEN,
    REFUSED_WHEN,
    RENAMED,
    refuse,
)
from rocketpost.server.settings.group import GroupConfig
from rocketpost.server.settings.namesrv import NamesrvConfig
from rocketpost.settings import keys_of, to_properties
from rocketpost.store.config import StoreConfig

APACHE = Path(__file__).parents[3] / "golden" / "apache-5.3.3-keys.txt"


def apache_keys(*classes: str) -> set[str]:
    lines = (line.split() for line in APACHE.read_text().splitlines() if line[0] != "#")
    return {key for cls, key in lines if cls in classes}


def test_every_key_of_apaches_broker_is_understood() -> None:
    theirs = apache_keys(
        "BrokerConfig", "MessageStoreConfig", "AuthConfig", "NettyServerConfig", "NettyClientConfig"
    )
    assert len(theirs) > 400
    acting = {*keys_of(BrokerConfig), *keys_of(StoreConfig), *keys_of(GroupConfig)}
    ours = {*acting, *IGNORED, *REFUSED_WHEN, *FIXED_PATHS}
    assert theirs - ours == set()


def test_every_key_of_apaches_name_server_is_understood() -> None:
    theirs = apache_keys("NamesrvConfig", "NettyServerConfig", "NettyClientConfig")
    assert len(theirs) > 50
    known, ignored, refused = keys_of(NamesrvConfig), NAMESRV_IGNORED, NAMESRV_REFUSED_WHEN
    assert theirs - {*known, *ignored, *refused} == set()
    assert not set(known) & set(ignored)
    assert not set(ignored) & set(refused)


@pytest.mark.parametrize(
    "line",
    [
        "aclEnable=true",
        "allAckInSyncStateSet=true",
        "enableControllerMode=true",
        "enableConsumeQueueExt=true",
        "storeType=defaultRocksDB",
        "messageStorePlugIn=org.apache.rocketmq.tieredstore.TieredMessageStore",
        "readOnlyCommitLogStorePaths=/old/commitlog",
        "useTLS=true",
    ],
)
def test_keys_that_would_break_a_promise_are_refused_at_start(line: str) -> None:
    key, _, value = line.partition("=")
    with pytest.raises(ConfigError, match=f"{key}={value} cannot be honoured: "):
        broker_settings({key: value})


def test_the_same_keys_may_say_that_nothing_is_asked_for() -> None:
    harmless = {
        "aclEnable": "false",
        "allAckInSyncStateSet": "false",
        "enableControllerMode": "false",
        "storeType": "default",
        "messageStorePlugIn": "",
        "socksProxyConfig": "{}",
        "readOnlyCommitLogStorePaths": "",
    }
    broker_settings(harmless)


@pytest.mark.parametrize("kind", ["authentication", "authorization"])
def test_the_classes_of_rocketmqs_own_access_control_may_be_named(kind: str) -> None:
    """RocketMQ's documents have these lines in every file that switches access control on."""
    folder, noun = f"org.apache.rocketmq.auth.{kind}", kind.capitalize()
    values = {
        f"{kind}Provider": f"{folder}.provider.Default{noun}Provider",
        f"{kind}MetadataProvider": f"{folder}.provider.Local{noun}MetadataProvider",
        f"{kind}Strategy": f"{folder}.strategy.Stateless{noun}Strategy",
    }
    refuse(values, REFUSED_WHEN)
    refuse(values, NAMESRV_REFUSED_WHEN)
    for key in values:
        with pytest.raises(ConfigError, match=f"{key}=com.example.Own cannot be honoured"):
            refuse({key: "com.example.Own"}, REFUSED_WHEN)


def test_a_name_server_refuses_to_be_a_controller() -> None:
    with pytest.raises(ConfigError, match="enableControllerInNamesrv"):
        refuse({"enableControllerInNamesrv": "true"}, NAMESRV_REFUSED_WHEN)


def test_only_settings_that_act_are_suggested() -> None:
    with pytest.raises(ConfigError) as caught:
        broker_settings({"storePathRootDirs": "x", "sendMessageThreadPoolNum": "4"})
    assert "storePathRootDirs (did you mean storePathRootDir?)" in str(caught.value)
    assert "did you mean sendMessageThreadPoolNums" not in str(caught.value)


def test_the_home_directory_can_be_written_as_a_tilde(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    _, store = broker_settings({"storePathRootDir": "~/store", "storePathCommitLog": "~/log"})
    assert (store.root, store.commit_log_path) == ("/home/someone/store", "/home/someone/log")


def test_a_key_without_a_value_is_as_good_as_absent() -> None:
    values = without_blanks({"listenPort": " ", "brokerName": "", "brokerId": "0", "typo": ""})
    assert values == {"brokerId": "0", "typo": ""}


def test_old_spellings_are_taken_as_their_successors() -> None:
    inherited = {
        "mapedFileSizeCommitLog": "8388608",
        "mapedFileSizeConsumeQueue": "2000",
        "checkTransactionMessageEnable": "false",
    }
    _, store = broker_settings(inherited)
    assert (store.segment_bytes, store.queue_file_bytes) == (8_388_608, 2000)
    assert setting_notes(inherited)[:2] == [
        "mapedFileSizeCommitLog is taken as mappedFileSizeCommitLog",
        "mapedFileSizeConsumeQueue is taken as mappedFileSizeConsumeQueue",
    ]
    assert setting_notes(inherited)[2].startswith("checkTransactionMessageEnable has no effect: ")
    assert set(RENAMED.values()) <= set(keys_of(StoreConfig)) | set(keys_of(BrokerConfig))


def test_the_gap_of_slaves_has_an_old_spelling() -> None:
    broker, _ = broker_settings({"haSlaveFallbehindMax": "1048576"})
    assert broker.ha_gap_bytes_max == 1_048_576


@pytest.mark.parametrize("old", RENAMED)
def test_a_key_by_both_spellings_stops_the_start(old: str) -> None:
    with pytest.raises(ConfigError, match=f"{old} is the old spelling of {RENAMED[old]}"):
        broker_settings({old: "1073741824", RENAMED[old]: "1073741824"})


@pytest.mark.parametrize(
    ("key", "given", "in_force"),
    [
        ("diskSpaceWarningLevelRatio", "21", "35"),
        ("diskSpaceWarningLevelRatio", "99", "90"),
        ("diskSpaceCleanForciblyRatio", "5", "30"),
        ("diskMaxUsedSpaceRatio", "100", "95"),
        ("registerNameServerPeriod", "1000", "10000"),
        ("registerNameServerPeriod", "600000", "60000"),
        ("timerRollWindowSlot", "0", "1209540"),
        ("maxMessageSize", "33554432", "16515072"),
        ("mappedFileSizeConsumeQueue", "1999", "2000"),
    ],
)
def test_values_that_differ_from_the_file_are_reported(key: str, given: str, in_force: str) -> None:
    broker, store = broker_settings({key: given})
    assert (to_properties(broker) | to_properties(store))[key] == in_force
    told = setting_notes({key: given})
    assert told[0].startswith(f"{key}={given}")
    assert told[0].endswith(f"{in_force} is in force")
    assert not setting_notes({key: in_force}) or key == "timerRollWindowSlot"


def test_a_shortened_roll_window_is_reported() -> None:
    [note] = setting_notes({"timerRollWindowSlot": "172800", "fileReservedTime": "24"})
    assert note == "timerRollWindowSlot=172800 counts as 57600, two thirds of fileReservedTime"
    assert setting_notes({"fileReservedTime": "24"}) == []


@pytest.mark.parametrize(
    ("key", "place"),
    [
        ("storePathConsumeQueue", "consumequeue"),
        ("storePathIndex", "index"),
        ("storeCheckpoint", "checkpoint"),
        ("abortFile", "abort"),
    ],
)
def test_paths_that_nothing_reads_must_say_where_things_lie(key: str, place: str) -> None:
    values = {"storePathRootDir": "/data/store", key: f"/data/store/{place}/"}
    broker_settings(values)
    assert setting_notes(values) == []
    with pytest.raises(ConfigError, match=f"{key}=/other/{place} cannot be honoured: it lies at "):
        broker_settings(values | {key: f"/other/{place}"})
    broker_settings({key: f"~/store/{place}"})


def test_keys_of_the_address_server_without_effect_are_reported() -> None:
    domain, on = "rmqAddressServerDomain", "fetchNamesrvAddrByAddressServer"
    assert setting_notes({domain: "h", on: "true"}) == []
    assert setting_notes({domain: "h"}) == [f"{domain} has no effect without {on}"]
    assert setting_notes({domain: "h", on: "true", "namesrvAddr": "a:1"}) == [
        f"{on} has no effect: namesrvAddr names the name servers",
        f"{domain} has no effect: namesrvAddr names the name servers",
    ]
