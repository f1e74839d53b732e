"""Creates or resets a super user while the server is stopped."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rocketpost.access.info import UserInfo
from rocketpost.errors import ConfigError, Fault
from rocketpost.server.access.cipher import load_cipher_blocking
from rocketpost.server.access.table_file import TABLE_FILE, access_file
from rocketpost.server.fleet.plan import further_stores_blocking, has_messages_blocking
from rocketpost.server.settings.broker import broker_settings, read_properties, without_blanks
from rocketpost.server.settings.namesrv import NamesrvConfig
from rocketpost.server.settings.up import namesrv_directory, store_directory
from rocketpost.settings import build, keys_of
from rocketpost.store.files import RealFiles
from rocketpost.store.layout import NODES_NAME, Layout
from rocketpost.store.store_lock import StoreLock


@dataclass(frozen=True, slots=True)
class ResetUser:
    """A super user that was created or reset.

    Attributes:
        secret: The password.
        paths: The files that were changed.
    """

    secret: str
    paths: list[str]

    def __repr__(self) -> str:
        return f"ResetUser({self.paths!r})"


def reset_super_user_blocking(
    name: str,
    *,
    config: Path | None,
    is_name_server: bool = False,
    data: Path | None = None,
    secret: str | None = None,
) -> ResetUser:
    """Create a super user, or give an existing user a new password and make it one.

    Args:
        name: The user.
        config: The settings file of the server; None for the defaults.
        is_name_server: Whether the server is a name server.
        data: The directory of ``rocketpost up``, whose broker and name server get the user; None
            for a server that was started by itself.
        secret: The new password; None to make one.

    Raises:
        ConfigError: The settings or the name cannot be used, or the server has no data yet.
        StoreError: A broker uses the store, or its table of users cannot be read or written.
    """
    values = without_blanks(read_properties(config)) if config else {}
    secret = secret or secrets.token_urlsafe(24)
    if is_name_server:
        if data is not None:
            raise ConfigError("--data changes the users of broker and name server: omit one option")
        return ResetUser(secret, [_reset_name_server_blocking(values, name, secret)])
    root = str(Path.home() / "store") if data is None else store_directory(data)
    values = {"storePathRootDir": root} | values
    if data is not None:
        values["storePathRootDir"] = root
    directory = namesrv_directory(data) if data is not None else ""
    # A start without a super user fails when `up` has made the name server's directory only.
    paths = _reset_brokers_blocking(values, name, secret, is_known=os.path.isdir(directory))
    if data is not None:
        os.makedirs(directory, exist_ok=True)
        broker, _ = broker_settings(values)
        paths.append(_reset_blocking(directory, broker.secret_key_file, name, secret))
    return ResetUser(secret, paths)


def _reset_name_server_blocking(values: Mapping[str, str], name: str, secret: str) -> str:
    known = {key: text for key, text in values.items() if key in keys_of(NamesrvConfig)}
    settings = build(NamesrvConfig, known)
    directory = os.path.abspath(os.path.expanduser(settings.auth_path))
    if not os.path.isdir(directory):
        raise ConfigError(
            f"the name server has no directory {directory}, and nothing was changed: name it by "
            "authConfigPath in the file of --config. For rocketpost up, use --data instead of "
            "--name-server. A name server makes the directory at its first start with access "
            "control"
        )
    return _reset_blocking(directory, settings.secret_key_file, name, secret)


def _reset_brokers_blocking(
    values: Mapping[str, str], name: str, secret: str, *, is_known: bool
) -> list[str]:
    """Reset the user of a broker, and of further brokers of the same command.

    Args:
        values: The broker's settings.
        name: The user.
        secret: The password.
        is_known: Whether the broker will use this directory, although it may have no store yet.
    """
    broker, store = broker_settings(values)
    layout = Layout(os.path.abspath(store.root), store.commit_log_path)
    is_store = _is_store_blocking(layout)
    if not is_store and os.path.isdir(os.path.join(layout.root, NODES_NAME)):
        raise ConfigError(
            f"{layout.root} has the stores of a group, whose users this command cannot change"
        )
    if not is_store and not is_known:
        raise ConfigError(
            f"there is no store in {layout.root}, and nothing was changed: name the directory of "
            "the data by --data DIR, as for rocketpost up, or by storePathRootDir in the file of "
            "--config. A broker makes its store at its first start"
        )
    further = further_stores_blocking({**values, "storePathRootDir": layout.root}).values()
    layouts = [layout, *(each for each in further if _is_store_blocking(each))]
    paths = []
    with contextlib.ExitStack() as locks:
        for each in layouts:
            lock = StoreLock(RealFiles(), each)
            lock.take_blocking()
            # The broker decides what a crash left.
            locks.callback(lock.release_blocking, clean=False)
        for each in layouts:
            os.makedirs(each.config, exist_ok=True)
            paths.append(_reset_blocking(each.config, broker.secret_key_file, name, secret))
    return paths


def _is_store_blocking(layout: Layout) -> bool:
    # A lock or a directory is not enough: this command may have made them itself.
    return os.path.isfile(layout.checkpoint) or has_messages_blocking(layout)


def _reset_blocking(directory: str, key_file: str, name: str, secret: str) -> str:
    """Write the user into the table of a directory; return the path of the table."""
    file = access_file(directory, load_cipher_blocking(key_file))
    table = file.load_blocking()
    info = UserInfo(username=name, password=secret, user_type="Super", user_status="enable")
    try:
        if table.user(name) is None:
            table.create_user(info, caller=None)
        else:
            table.update_user(info, caller=None)
    except Fault as error:
        raise ConfigError(str(error.remark)) from None
    file.save_blocking(table.to_json())
    return os.path.join(directory, TABLE_FILE)
