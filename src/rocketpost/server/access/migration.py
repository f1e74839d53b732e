"""Imports the files of RocketMQ's old access control (``migrateAuthFromV1Enabled``)."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any, Final

from rocketpost.access.plain_acl import Account, read_plain_acl
from rocketpost.access.table import AccessTable
from rocketpost.errors import ConfigError, Fault
from rocketpost.server.settings.access import AccessConfig

logger = logging.getLogger(__name__)

_SUFFIXES: Final = (".yml", ".yaml")


def migrate_blocking(table: AccessTable, config: AccessConfig) -> None:
    """Add the accounts of old files whose users do not exist yet.

    Raises:
        ConfigError: There is no file, or one cannot be read.
    """
    for path in _files_blocking(config.plain_acl_path):
        migration = read_plain_acl(_load_blocking(path))
        for note in migration.notes:
            logger.warning("not carried over: file=%s %s", path, note)
        for account in migration.accounts:
            if table.user(account.user.username or "") is None:
                _add(table, account, path)


def _add(table: AccessTable, account: Account, path: Path) -> None:
    name = account.user.username or ""
    try:
        table.create_user(account.user, caller=None)
    except Fault as error:
        logger.warning("account not carried over: file=%s user=%s %s", path, name, error.remark)
        return
    try:
        if account.rules is not None:
            table.put_rules(account.rules, caller=None)
    except Fault as error:
        table.delete_user(name, caller=None)
        logger.warning("account not carried over: file=%s user=%s %s", path, name, error.remark)
    else:
        logger.info("account carried over: file=%s user=%s", path, name)


def _files_blocking(given: str) -> list[Path]:
    home = os.environ.get("ROCKETMQ_HOME", "")
    if not given and not home:
        raise ConfigError("migrateAuthFromV1Enabled needs plainAclPath, or ROCKETMQ_HOME")
    place = Path(os.path.expanduser(given)) if given else Path(home) / "conf"
    if place.is_file():
        return [place]
    if given:
        found = [path for path in sorted(place.rglob("*")) if path.suffix in _SUFFIXES]
    else:
        more = sorted((place / "acl").rglob("*"))
        found = [place / "plain_acl.yml", *(path for path in more if path.suffix in _SUFFIXES)]
    found = [path for path in found if path.is_file()]
    if not found:
        raise ConfigError(f"migrateAuthFromV1Enabled: there is no plain_acl.yml at {place}")
    return found


def _load_blocking(path: Path) -> Any:
    try:
        import yaml
    except ImportError:
        raise ConfigError(
            "migrateAuthFromV1Enabled needs the package PyYAML: pip install 'rocketpost[secure]'"
        ) from None
    try:
        return yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
    except yaml.YAMLError:
        raise ConfigError(f"{path} is not YAML") from None  # the error would quote secrets
    except ValueError:  # its text would quote them, too
        raise ConfigError(
            f"{path} has a value that looks like a date or a number but is not one; put it in "
            "quotes"
        ) from None
