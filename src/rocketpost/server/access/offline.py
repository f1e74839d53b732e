"""Creates or resets a super user while the server is stopped."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from rocketpost.access.info import UserInfo
from rocketpost.errors import ConfigError, Fault
from rocketpost.server.access.cipher import load_cipher_blocking
from rocketpost.server.access.table_file import access_file
from rocketpost.server.settings.broker import broker_settings, read_properties, without_blanks
from rocketpost.server.settings.namesrv import NamesrvConfig
from rocketpost.settings import build, keys_of
from rocketpost.store.files import RealFiles
from rocketpost.store.layout import Layout
from rocketpost.store.store_lock import StoreLock


def reset_super_user_blocking(
    name: str, *, config: Path | None, is_name_server: bool, secret: str | None = None
) -> str:
    """Create a super user, or give an existing user a new password and make it one.

    Args:
        name: The user.
        config: The settings file of the server; None for the defaults.
        is_name_server: Whether the server is a name server.
        secret: The new password; None to make one.

    Returns:
        The password.

    Raises:
        ConfigError: The settings or the name cannot be used.
        StoreError: A broker uses the store, or its table of users cannot be read or written.
    """
    values = without_blanks(read_properties(config)) if config else {}
    secret = secret or secrets.token_urlsafe(24)
    if is_name_server:
        known = {key: text for key, text in values.items() if key in keys_of(NamesrvConfig)}
        settings = build(NamesrvConfig, known)
        directory = os.path.abspath(os.path.expanduser(settings.auth_path))
        os.makedirs(directory, exist_ok=True)
        _reset_blocking(directory, settings.secret_key_file, name, secret)
        return secret
    values = {"storePathRootDir": str(Path.home() / "store")} | values
    broker, store = broker_settings(values)
    layout = Layout(store.root, store.commit_log_path)
    os.makedirs(layout.config, exist_ok=True)
    lock = StoreLock(RealFiles(), layout)
    lock.take_blocking()
    try:
        _reset_blocking(layout.config, broker.secret_key_file, name, secret)
    finally:
        lock.release_blocking(clean=False)  # the broker decides what a crash left
    return secret


def _reset_blocking(directory: str, key_file: str, name: str, secret: str) -> None:
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
