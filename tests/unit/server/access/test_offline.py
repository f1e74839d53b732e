"""Creating and resetting a super user while the server is stopped."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from rocketpost.access.info import UserInfo
from rocketpost.cli import rocketpost
from rocketpost.errors import StoreLocked
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
    return path


def test_a_super_user_is_created_and_reset(config: Path, tmp_path: Path) -> None:
    first = reset_super_user_blocking("admin", config=config, is_name_server=False)
    second = reset_super_user_blocking("admin", config=config, is_name_server=False)
    assert first != second
    file = access_file(str(tmp_path / "store" / "config"), None)
    table = file.load_blocking()
    [user] = table.users
    assert (user.name, user.secret, user.is_super) == ("admin", second, True)
    table.create_user(UserInfo(username="norm", password="n", user_status="disable"), caller=None)
    file.save_blocking(table.to_json())
    reset_super_user_blocking("norm", config=config, is_name_server=False, secret="given")
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
            reset_super_user_blocking("admin", config=config, is_name_server=False)
    finally:
        lock.release_blocking(clean=False)


def test_the_command_prints_the_password_once(config: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(rocketpost, ["user", "admin", "-c", str(config)])
    assert done.exit_code == 0, done.output
    [user] = access_file(str(tmp_path / "store" / "config"), None).load_blocking().users
    assert done.stdout.strip() == user.secret
    args = ["user", "admin", "-c", str(config), "--password-stdin"]
    done = CliRunner().invoke(rocketpost, args, input="from-stdin\n")
    assert done.exit_code == 0
    assert "from-stdin" not in done.output
    assert CliRunner().invoke(rocketpost, args, input="").exit_code == 1


def test_a_name_server_has_its_own_users(tmp_path: Path) -> None:
    path = tmp_path / "namesrv.conf"
    path.write_text(f"authConfigPath={tmp_path}/ns\n")
    secret = reset_super_user_blocking("admin", config=path, is_name_server=True)
    [user] = access_file(f"{tmp_path}/ns", None).load_blocking().users
    assert user.secret == secret
    assert (tmp_path / "ns" / "auth.json").stat().st_mode & 0o777 == 0o600
