"""Settings of several brokers follow from those of one, and no store is forgotten."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketpost.errors import ConfigError
from rocketpost.server.fleet import BROKERS_MAX
from rocketpost.server.fleet.plan import idle_stores_blocking, idle_warning, plan_brokers

GIVEN = {
    "brokerName": "broker-a",
    "listenPort": "10911",
    "storePathRootDir": "/srv/store",
    "storePathConsumeQueue": "/srv/store/consumequeue",
    "flushDiskType": "SYNC_FLUSH",
}


def make_log(folder: Path, *, first: bytes) -> Path:
    folder.mkdir(parents=True)
    segment = folder / ("0" * 20)
    segment.write_bytes(first.ljust(64, b"\0"))
    return folder


def test_the_first_broker_has_the_settings_as_given() -> None:
    (alone,) = plan_brokers(GIVEN, 1)
    assert (alone.number, alone.name, alone.values) == (0, "broker-a", GIVEN)
    first, *_ = plan_brokers(GIVEN, 4)
    assert first.values == GIVEN | {"accessMessageInMemoryMaxRatio": "10"}


def test_further_brokers_have_names_ports_and_stores_of_their_own() -> None:
    plans = plan_brokers(GIVEN, 3)
    assert [plan.name for plan in plans] == ["broker-a", "broker-a-1", "broker-a-2"]
    assert [plan.values["brokerName"] for plan in plans] == [plan.name for plan in plans]
    assert [plan.values["listenPort"] for plan in plans] == ["10911", "10921", "10931"]
    roots = [plan.values["storePathRootDir"] for plan in plans]
    assert roots == ["/srv/store", "/srv/store/brokers/1", "/srv/store/brokers/2"]
    assert {plan.values["flushDiskType"] for plan in plans} == {"SYNC_FLUSH"}
    assert "storePathConsumeQueue" not in plans[1].values


def test_a_share_of_the_memory_that_the_file_sets_holds_for_each_broker() -> None:
    key = "accessMessageInMemoryMaxRatio"
    assert [plan.values[key] for plan in plan_brokers(GIVEN | {key: "30"}, 2)] == ["30", "30"]
    assert plan_brokers(GIVEN, BROKERS_MAX)[1].values[key] == "1"


def test_free_ports_stay_free_ports() -> None:
    plans = plan_brokers(GIVEN | {"listenPort": "0"}, 3)
    assert [plan.values["listenPort"] for plan in plans] == ["0", "0", "0"]


@pytest.mark.parametrize(
    ("path", "derived"),
    [("/srv/store/commitlog", None), ("/fast/log", "/fast/log/brokers/1")],
)
def test_a_commit_log_on_another_disk_stays_on_it(path: str, derived: str | None) -> None:
    first, second = plan_brokers(GIVEN | {"storePathCommitLog": path}, 2)
    assert first.values["storePathCommitLog"] == path
    assert second.values.get("storePathCommitLog") == derived


def test_a_name_that_the_file_lacks_is_the_hosts() -> None:
    given = {key: value for key, value in GIVEN.items() if key != "brokerName"}
    first, second = plan_brokers(given, 2)
    assert second.name == f"{first.name}-1" != "-1"
    assert "brokerName" not in first.values


def test_ports_and_names_that_do_not_suffice_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"listenPort=65530 .* 65540; set it to 65525 or less"):
        plan_brokers(GIVEN | {"listenPort": "65530"}, 2)
    with pytest.raises(ConfigError, match="brokerName"):
        plan_brokers(GIVEN | {"brokerName": "b" * 126}, 2)


def test_stores_with_messages_that_will_not_be_served_are_found(tmp_path: Path) -> None:
    given = GIVEN | {"storePathRootDir": str(tmp_path)}
    del given["storePathConsumeQueue"]
    assert idle_stores_blocking(given, 1) == []
    brokers = tmp_path / "brokers"
    for number in ("1", "2", "10"):
        make_log(brokers / number / "commitlog", first=b"\0\0\1\0")
    make_log(brokers / "3" / "commitlog", first=b"")
    (brokers / "4").mkdir()
    (brokers / "notes.txt").write_text("mine")
    idle = idle_stores_blocking(given, 2)
    assert idle == [str(brokers / "2"), str(brokers / "10")]
    warning = idle_warning(idle)
    assert str(brokers / "10") in warning
    assert "start with --brokers 11" in warning
    assert idle_stores_blocking(given, 11) == []


def test_a_commit_log_on_another_disk_is_looked_into(tmp_path: Path) -> None:
    given = {"storePathRootDir": str(tmp_path / "a"), "storePathCommitLog": str(tmp_path / "b")}
    (tmp_path / "a/brokers/1").mkdir(parents=True)
    make_log(tmp_path / "b/brokers/1", first=b"\0\0\1\0")
    assert idle_stores_blocking(given, 1) == [str(tmp_path / "a/brokers/1")]
