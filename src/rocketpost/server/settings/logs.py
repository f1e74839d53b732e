"""Settings of the log of a server process. RocketMQ has these in files of its logging library."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import rocketpost
from rocketpost.errors import ConfigError
from rocketpost.settings import option

FORMATS: Final = ("text", "json")
BASE: Final = "rocketpost"
"""Name of the logger above all others of this package."""

_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")
_FILE_BYTES_MIN: Final = 64 * 1024
_FILES_MAX: Final = 1000
_PARTS_MAX: Final = 20
_NAME_LENGTH_MAX: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """Settings of the log.

    Without ``logFile`` it is written to the standard error output.
    """

    log_format: str = option("logFormat", "text")
    log_level: str = option("logLevel", "INFO", mutable=True)
    log_file: str = option("logFile", "")
    log_file_bytes: int = option("logFileBytes", 128 * 1024 * 1024)
    log_file_count: int = option("logFileCount", 10)
    """Number of older files that are kept besides the current one."""

    def check_logs(self) -> None:
        """Check the values; called by ``__post_init__`` of the class that inherits this one.

        Raises:
            ConfigError: A value is invalid.
        """
        if self.log_format not in FORMATS:
            raise ConfigError(f"logFormat={self.log_format} is not one of {', '.join(FORMATS)}")
        if self.log_file_bytes < _FILE_BYTES_MIN:
            raise ConfigError(f"logFileBytes must be at least {_FILE_BYTES_MIN}")
        if not 0 <= self.log_file_count <= _FILES_MAX:
            raise ConfigError(f"logFileCount must be 0 to {_FILES_MAX}")
        parse_levels(self.log_level)


def parse_levels(text: str) -> dict[str, int]:
    """Read the value of ``logLevel``: ``INFO``, or ``INFO,rocketpost.store=DEBUG``.

    Returns:
        The level of each logger; that of all others is under the name ``rocketpost``.

    Raises:
        ConfigError: A level or a logger is unknown.
    """
    levels = {BASE: logging.INFO}
    if text.count(",") >= _PARTS_MAX:
        raise ConfigError(f"logLevel has more than {_PARTS_MAX} parts")
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, equals, word = part.rpartition("=")
        name = name.strip() if equals else BASE
        level = word.strip().upper()
        if level not in _LEVELS:
            raise ConfigError(f"logLevel={text}: {word!r} is not one of {', '.join(_LEVELS)}")
        if len(name) > _NAME_LENGTH_MAX or not _is_module(name):
            raise ConfigError(
                f"logLevel={text}: {name!r} is not a part of this server, such as {BASE}.store"
            )
        levels[name] = logging.getLevelNamesMapping()[level]
    return levels


def _is_module(name: str) -> bool:
    """Return whether a module or package of this server has a name; loggers have these names."""
    base, *parts = name.split(".")
    if base != BASE or not all(part.isidentifier() for part in parts):
        return False
    path = Path(rocketpost.__file__).parent.joinpath(*parts)
    return path.is_dir() or path.with_suffix(".py").is_file()
