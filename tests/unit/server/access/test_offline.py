"""Creating and resetting a super user while the server is stopped."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from rocketpost.access.info import UserInfo
from rocketpost.cli import rocketpost
from rocketpost.errors import ConfigError, StoreLocked
from rocketpost.server.access.offline import reset_super_user_blocking
from rocketpost.server.access.table_file import access_file
from rocketpost.store.files import RealFiles
from rocketpost.store.layout import Layout
from rocketpost.store.store_lock import StoreLock


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """The settings of a broker and of a name server."""
    path = tmp_path / "server.conf"
    path.write_text(f"storePathRootDir={tmp_path}/store\n")
    make_store(tmp_path / "store")
    return path


def make_store(root: Path) -> None:
    """Make what a store has after its first start."""
    root.mkdir(parents=True)
    (root / "checkpoint").write_bytes(bytes(4096))


def users_in(directory: Path) -> dict[str, str]:
    """Return the passwords of the users in the table of a directory."""
    table = access_file(str(directory), None).load_blocking()
    return {user.name: user.secret for user in table.users}


def test_a_super_user_is_created_and_reset(config: Path, tmp_path: Path) -> None:
    first = reset_super_user_blocking("admin", config=config).secret
    second = reset_super_user_blocking("admin", config=config).secret
    assert first != second
    file = access_file(str(tmp_path / "store" / "config"), None)
    table = file.load_blocking()
    [user] = table.users
    assert (user.name, user.secret, user.is_super) == ("admin", second, True)
    table.create_user(UserInfo(username="norm", password="n", user_status="disable"), caller=None)
    file.save_blocking(table.to_json())
    reset_super_user_blocking("norm", config=config, secret="given")
    norm = file.load_blocking().user("norm")
    assert norm is not None
    assert norm.is_super
    assert norm.is_enabled
    assert norm.secret == "given"


def test_it_refuses_while_a_broker_uses_the_store(config: Path, tmp_path: Path) -> None:
    lock = StoreLock(RealFiles(), Layout(str(tmp_path / "store")))
    lock.take_blocking()
    try:
        with pytest.raises(StoreLocked):
            reset_super_user_blocking("admin", config=config)
    finally:
        lock.release_blocking(clean=False)


def test_the_command_prints_the_password_once(config: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(rocketpost, ["user", "admin", "-c", str(config)])
    assert done.exit_code == 0, done.output
    [user] = access_file(str(tmp_path / "store" / "config"), None).load_blocking().users
    assert done.stdout.strip() == user.secret
    assert f"{tmp_path}/store/config/auth.json" in done.stderr
    args = ["user", "admin", "-c", str(config), "--password-stdin"]
    done = CliRunner().invoke(rocketpost, args, input="from-stdin\n")
    assert done.exit_code == 0
    assert "from-stdin" not in done.output
    assert CliRunner().invoke(rocketpost, args, input="").exit_code == 1


def test_a_name_server_has_its_own_users(tmp_path: Path) -> None:
    path = tmp_path / "namesrv.conf"
    path.write_text(f"authConfigPath={tmp_path}/ns\n")
    with pytest.raises(ConfigError, match=f"no directory {tmp_path}/ns,.*authConfigPath"):
        reset_super_user_blocking("admin", config=path, is_name_server=True)
    (tmp_path / "ns").mkdir()
    reset = reset_super_user_blocking("admin", config=path, is_name_server=True)
    assert reset.paths == [f"{tmp_path}/ns/auth.json"]
    assert users_in(tmp_path / "ns") == {"admin": reset.secret}
    assert (tmp_path / "ns" / "auth.json").stat().st_mode & 0o777 == 0o600


def test_a_directory_without_a_store_is_refused_and_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / "broker.conf"
    path.write_text("brokerName=a\n")
    for args, root in (([], "store"), (["--data", str(tmp_path / "other")], "other/store")):
        done = CliRunner().invoke(rocketpost, ["user", "admin", "-c", str(path), *args])
        assert done.exit_code == 1
        assert f"no store in {tmp_path}/{root}" in done.output
        assert "--data" in done.output
        assert "storePathRootDir" in done.output
    assert list(tmp_path.iterdir()) == [path]


def test_the_data_of_up_has_users_of_brokers_and_of_the_name_server(tmp_path: Path) -> None:
    data, path = tmp_path / "data", tmp_path / "broker.conf"
    path.write_text("storePathRootDir=/nowhere\n")
    roots = [data / "store", data / "store" / "brokers" / "1"]
    for root in roots:
        make_store(root)
    (data / "store" / "brokers" / "2").mkdir()
    args = ["user", "admin", "-c", str(path), "--data", str(data)]
    done = CliRunner().invoke(rocketpost, args)
    assert done.exit_code == 0, done.output
    directories = [*(root / "config" for root in roots), data / "namesrv"]
    for directory in directories:
        assert users_in(directory) == {"admin": done.stdout.strip()}
        assert f"super user admin is ready in {directory}/auth.json" in done.stderr
    assert done.stderr.count("ready") == len(directories)
    assert CliRunner().invoke(rocketpost, [*args, "--name-server"]).exit_code == 1


def test_no_user_is_changed_while_one_of_several_brokers_runs(tmp_path: Path) -> None:
    for root in (tmp_path / "store", tmp_path / "store" / "brokers" / "1"):
        make_store(root)
    lock = StoreLock(RealFiles(), Layout(str(root)))
    lock.take_blocking()
    try:
        with pytest.raises(StoreLocked):
            reset_super_user_blocking("admin", config=None, data=tmp_path)
    finally:
        lock.release_blocking(clean=False)
    assert not list(tmp_path.rglob("auth.json"))


def test_the_first_user_of_up_is_made_after_a_start_that_lacked_one(tmp_path: Path) -> None:
    (tmp_path / "namesrv").mkdir()
    reset = reset_super_user_blocking("admin", config=None, data=tmp_path)
    assert users_in(tmp_path / "store" / "config") == {"admin": reset.secret}
    assert users_in(tmp_path / "namesrv") == {"admin": reset.secret}


def test_the_stores_of_a_group_are_not_taken_for_those_of_a_broker(tmp_path: Path) -> None:
    (tmp_path / "namesrv").mkdir()
    make_store(tmp_path / "store" / "nodes" / "0")
    with pytest.raises(ConfigError, match="stores of a group"):
        reset_super_user_blocking("admin", config=None, data=tmp_path)
    assert not list(tmp_path.rglob("auth.json"))
