"""The commands say what is in force, and what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest
from click.testing import CliRunner

from rocketpost import VERSION, cli
from rocketpost.errors import ConfigError
from rocketpost.server import main, up
from rocketpost.server.broker import BrokerServer
from rocketpost.server.main import mqbroker, mqnamesrv
from rocketpost.server.up import SingleNode
from rocketpost.settings import parse_properties
from rocketpost.transport.host import local_ip

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def no_name_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    monkeypatch.setenv("HOME", "/home/someone")


@pytest.mark.parametrize("flag", ["-p", "-m"])
def test_a_broker_prints_what_is_in_force(flag: str, tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("brokerName=\nbrokerIP1=\nstorePathRootDir=\nlistenPort=\n")
    done = CliRunner().invoke(mqbroker, [flag, "-c", str(file), "-n", "127.0.0.1:1"])
    values = parse_properties(done.output)
    assert values["brokerName"] == BrokerServer({}).name != ""
    assert values["brokerIP1"] == local_ip()
    assert values["storePathRootDir"] == "/home/someone/store"
    assert values["namesrvAddr"] == "127.0.0.1:1"
    assert values["listenPort"] == "10911"


def test_the_address_for_clients_comes_from_the_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROCKETPOST_ADVERTISE", "10.1.2.3")
    file = tmp_path / "broker.conf"
    for text, address in (("", "10.1.2.3"), ("brokerIP1=10.9.9.9\n", "10.9.9.9")):
        file.write_text(text)
        done = CliRunner().invoke(mqbroker, ["-p", "-c", str(file)])
        assert parse_properties(done.output)["brokerIP1"] == address


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "a.conf"
    file.write_bytes(b"\xef\xbb\xbflistenPort=1234\n")
    for command in (mqbroker, mqnamesrv):
        done = CliRunner().invoke(command, ["-p", "-c", str(file)])
        assert parse_properties(done.output)["listenPort"] == "1234"


def test_the_commands_tell_their_version() -> None:
    for command in (mqbroker, mqnamesrv):
        done = CliRunner().invoke(command, ["--version"])
        assert done.output == f"{command.name} of Rocketpost, version {VERSION}\n"


def test_a_broker_that_is_not_registered_says_so_when_it_is_ready() -> None:
    class Ready(BrokerServer):
        address = "127.0.0.1:10911"
        unregistered: ClassVar[list[str]] = ["127.0.0.1:1", "127.0.0.1:2"]

    server = Ready({"namesrvAddr": "127.0.0.1:1;127.0.0.1:2;127.0.0.1:3"})
    line = main.broker_ready(server)
    assert "boot success" in line
    assert line.endswith("(not registered yet with 127.0.0.1:1, 127.0.0.1:2)")
    server.unregistered.clear()
    assert main.broker_ready(server).endswith(
        "and name server is 127.0.0.1:1;127.0.0.1:2;127.0.0.1:3"
    )


def test_the_shipped_files_work() -> None:
    broker = CliRunner().invoke(mqbroker, ["-p", "-c", str(ROOT / "conf" / "broker.conf")])
    assert broker.exit_code == 0, broker.output
    assert parse_properties(broker.output)["storePathRootDir"] == "/home/someone/store"
    namesrv = CliRunner().invoke(mqnamesrv, ["-p", "-c", str(ROOT / "conf" / "namesrv.conf")])
    assert namesrv.exit_code == 0, namesrv.output


def test_a_broker_that_nobody_will_find_warns_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "run", lambda *_, **__: 0)
    assert CliRunner().invoke(mqbroker, []).output.count("no name server is set") == 1
    assert "warning" not in CliRunner().invoke(mqbroker, ["-n", "127.0.0.1:9876"]).output


@pytest.mark.parametrize("count", ["0", "-1", "65", "two"])
def test_a_wrong_number_of_brokers_is_refused(count: str) -> None:
    for command in (mqbroker, cli.up):
        done = CliRunner().invoke(command, ["--brokers", count])
        assert done.exit_code == 2
        assert "'--brokers'" in done.output


def test_the_settings_of_several_brokers_are_printed(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(f"brokerName=broker-a\nstorePathRootDir={tmp_path}\n")
    done = CliRunner().invoke(mqbroker, ["-m", "--brokers", "2", "-c", str(file)])
    first, second = done.stdout.split("# broker-a-1\n")
    assert parse_properties(first)["listenPort"] == "10911"
    assert parse_properties(second)["listenPort"] == "10921"
    assert parse_properties(second)["storePathRootDir"] == str(tmp_path / "brokers/1")


def test_a_store_without_its_broker_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(main, "run", lambda *_, **__: 0)
    monkeypatch.setattr(up, "run", lambda *_, **__: 0)
    log = tmp_path / "store/brokers/1/commitlog"
    log.mkdir(parents=True)
    (log / ("0" * 20)).write_bytes(b"\0\0\1\0")
    file = tmp_path / "broker.conf"
    file.write_text(f"storePathRootDir={tmp_path / 'store'}\n")
    for command, options in (
        (mqbroker, ["-c", str(file)]),
        (cli.up, ["--data", str(tmp_path)]),
    ):
        done = CliRunner().invoke(command, options)
        assert "starts no broker for them" in done.stderr
        assert str(log.parent) in done.stderr
        assert "start with --brokers 2" in done.stderr
        done = CliRunner().invoke(command, [*options, "--brokers", "2"])
        assert "starts no broker" not in done.stderr


def test_more_brokers_than_cores_are_noted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(up, "run", lambda *_, **__: 0)
    monkeypatch.setattr(main.os, "sched_getaffinity", lambda _: {0, 1})
    options = ["--data", str(tmp_path), "--brokers"]
    assert "3 brokers on 2 cores" in CliRunner().invoke(cli.up, [*options, "3"]).stderr
    assert CliRunner().invoke(cli.up, [*options, "2"]).stderr == ""
    done = CliRunner().invoke(cli.up, [*options, "64", "--broker-port", "65000"])
    assert done.exit_code == 2
    assert "--broker-port 65000 is too high for 64 brokers" in done.stderr


def test_a_server_of_all_addresses_tells_clients_one_that_they_reach(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(up, "local_ip", lambda: "192.0.2.7")
    assert SingleNode(tmp_path, host="0.0.0.0").public == "192.0.2.7"
    assert SingleNode(tmp_path, host="127.0.0.1").public == "127.0.0.1"


def test_a_port_in_use_names_the_option() -> None:
    error = ConfigError("cannot listen on *:1: in use; Set listenPort to a free port")
    assert "Set --broker-port to a free port" in str(up._with_option(error, "--broker-port"))


def test_a_broker_prints_values_in_force_and_says_what_it_changed(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("diskSpaceWarningLevelRatio=21\nmapedFileSizeCommitLog=8388608\n")
    done = CliRunner().invoke(mqbroker, ["-p", "-c", str(file)])
    values = parse_properties(done.stdout)
    assert values["diskSpaceWarningLevelRatio"] == "35"
    assert values["mappedFileSizeCommitLog"] == "8388608"
    assert done.stderr == (
        "note: mapedFileSizeCommitLog is taken as mappedFileSizeCommitLog\n"
        "note: diskSpaceWarningLevelRatio=21, it must be 35 to 90: 35 is in force\n"
    )


@pytest.mark.parametrize(("count", "survives"), [(1, False), (2, False), (3, True), (5, True)])
def test_a_group_is_said_to_survive_a_loss_only_if_it_does(count: int, survives: bool) -> None:
    text = up.takeover_text(count)
    assert ("another member leads then" in text) is survives
    assert ("the group stops" in text) is not survives
