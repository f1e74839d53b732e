"""Credentials with which the tools sign requests.

The environment comes first (``ROCKETMQ_ACCESS_KEY``, ``ROCKETMQ_SECRET_KEY``), then the file
``conf/tools.yml`` of ``ROCKETMQ_HOME``. There is no option, because every user of
a machine can see command lines.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from rocketpost.client.credentials import Credentials, credentials_of, environment_credentials
from rocketpost.errors import ConfigError

HOME: Final = "ROCKETMQ_HOME"
_FILE: Final = Path("conf") / "tools.yml"
_KEYS: Final = ("accessKey", "secretKey", "securityToken")


def tool_credentials_blocking() -> Credentials | None:
    """Return the credentials of the user who runs a tool, or None.

    Raises:
        ConfigError: One of the keys is missing, or the file cannot be read.
    """
    found = environment_credentials()
    home = os.environ.get(HOME)
    if found is not None or not home:
        return found
    path = Path(home) / _FILE
    try:
        text = path.read_text()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    values = parse_tools_file(text, name=str(path))
    try:
        return credentials_of(*(values.get(key) for key in _KEYS))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def parse_tools_file(text: str, *, name: str) -> dict[str, str]:
    """Return the values in a ``tools.yml``, which is flat: one ``key: value`` per line.

    Raises:
        ConfigError: A line has another form. The message has its number, not its secret text.
    """
    values = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#") or line in ("---", "..."):
            continue
        key, separator, value = line.partition(":")
        if not separator or (value and not value[0].isspace()):
            raise ConfigError(f"line {number} of {name} is not key: value")
        values[key.strip()] = _scalar(value.strip())
    return values


def _scalar(text: str) -> str:
    """Return a plain or quoted scalar without the comment after it."""
    if text[:1] in ("'", '"'):
        end = text.find(text[0], 1)
        return text[1:end] if end > 0 else text[1:]
    plain, _, _ = text.partition(" #")
    return plain.rstrip()
