"""Accounts of old files become users when a server starts."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest

from rocketpost.access.info import UserInfo
from rocketpost.access.table import AccessTable
from rocketpost.access.words import PolicyType
from rocketpost.errors import ConfigError
from rocketpost.server.access.migration import migrate_blocking
from rocketpost.server.settings.access import AccessConfig

APP = """
accounts:
- accessKey: app
  secretKey: app-secret
  defaultTopicPerm: DENY
  topicPerms:
  - orders=PUB|SUB
"""
BOSS = """
accounts:
- {accessKey: boss, secretKey: boss-secret, admin: true}
"""


@pytest.fixture(autouse=True)
def _no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROCKETMQ_HOME", raising=False)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def migrate(path: Path | str = "", table: AccessTable | None = None) -> AccessTable:
    table = AccessTable() if table is None else table
    migrate_blocking(table, AccessConfig(migrate_plain_acl=True, plain_acl_path=str(path)))
    return table


def names(table: AccessTable) -> list[str]:
    return [user.name for user in table.users]


def test_an_account_becomes_a_user_with_its_rules(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "plain_acl.yml", APP)
    with caplog.at_level(logging.INFO):
        table = migrate(path)
    [user] = table.users
    assert (user.name, user.secret, user.is_super, user.is_enabled) == (
        "app", "app-secret", False, True,
    )  # fmt: skip
    rules = table.policies("app")
    assert [str(rule) for rule in rules[PolicyType.CUSTOM]] == ["Allow Pub,Sub on Topic:orders"]
    assert [str(rule) for rule in rules[PolicyType.DEFAULT]] == ["Deny All on Topic:*"]
    assert f"account carried over: file={path} user=app" in caplog.text


def test_an_account_without_permissions_becomes_a_user_without_rules(tmp_path: Path) -> None:
    table = migrate(write(tmp_path / "plain_acl.yml", BOSS))
    assert table.has_super
    assert table.policies("boss") == {}


def test_a_user_that_exists_stays_as_it_is(tmp_path: Path) -> None:
    path = write(tmp_path / "plain_acl.yml", APP)
    table = migrate(path)
    table.update_user(UserInfo(username="app", password="new-secret"), caller=None)
    counter = table.counter
    migrate(path, table)
    [user] = table.users
    assert (user.secret, table.counter) == ("new-secret", counter)


def test_all_files_of_a_directory_are_read(tmp_path: Path) -> None:
    write(tmp_path / "acl" / "one.yml", APP)
    write(tmp_path / "acl" / "deeper" / "two.yaml", BOSS)
    write(tmp_path / "acl" / "notes.txt", "not: [yaml")
    (tmp_path / "acl" / "folder.yml").mkdir()
    assert names(migrate(tmp_path / "acl")) == ["app", "boss"]


def test_by_default_the_files_are_those_of_the_home_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROCKETMQ_HOME", str(tmp_path))
    write(tmp_path / "conf" / "plain_acl.yml", APP)
    write(tmp_path / "conf" / "acl" / "more.yml", BOSS)
    write(tmp_path / "conf" / "broker.yml", "accounts: [{accessKey: odd, secretKey: odd-secret}]")
    assert names(migrate()) == ["app", "boss"]


def test_a_path_may_begin_with_the_home_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path / "acl.yml", APP)
    assert names(migrate("~/acl.yml")) == ["app"]


def test_without_a_place_or_a_file_it_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="needs plainAclPath, or ROCKETMQ_HOME"):
        migrate()
    with pytest.raises(ConfigError, match=f"no plain_acl.yml at {tmp_path}"):
        migrate(tmp_path)
    monkeypatch.setenv("ROCKETMQ_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=f"no plain_acl.yml at {tmp_path}/conf"):
        migrate()


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"accounts: [{secretKey: app-secret", "is not YAML"),
        (b"accounts: \xff\xfe", "cannot read"),
        (b"accounts: [{accessKey: 2026-13-45, secretKey: app-secret}]", "put it in quotes"),
        (b"accounts: [{accessKey: app, secretKey: !!int app-secret}]", "put it in quotes"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_without_its_text(
    tmp_path: Path, data: bytes, problem: str
) -> None:
    path = tmp_path / "plain_acl.yml"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=problem) as caught:
        migrate(path)
    assert str(path) in str(caught.value)
    assert "secret" not in str(caught.value)


def test_differences_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path / "plain_acl.yml", f"globalWhiteRemoteAddresses: [10.*]{APP}")
    migrate(path)
    assert f"not carried over: file={path} globalWhiteRemoteAddresses" in caplog.text


@pytest.mark.parametrize(
    ("account", "reason"),
    [
        ('accessKey: " app"\n  secretKey: app-secret', "printable characters"),
        ("accessKey: app\n  secretKey: app-secret\n  topicPerms: ['a:b%s=PUB']" % ("x" * 600),
         "The resource is null"),
    ],
)  # fmt: skip
def test_an_account_that_is_refused_is_left_out_with_its_rules(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, account: str, reason: str
) -> None:
    text = f"accounts:\n- {account}\n- accessKey: other\n  secretKey: other-secret\n"
    table = migrate(write(tmp_path / "plain_acl.yml", text))
    assert names(table) == ["other"]
    assert table.policies("app") == {}
    assert "account not carried over" in caplog.text
    assert reason in caplog.text


def test_it_needs_the_package_that_reads_yaml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ConfigError, match=r"pip install 'rocketpost\[secure\]'"):
        migrate(write(tmp_path / "plain_acl.yml", APP))
