"""The output of the log, and its levels, which can change while the process runs."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable
from functools import partial
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Final

from rocketpost.errors import ConfigError
from rocketpost.server.log_limit import LimitRepetition
from rocketpost.server.logs.json_lines import JsonFormatter
from rocketpost.server.logs.lines import OneLineFormatter
from rocketpost.server.settings.logs import BASE, LogConfig, parse_levels

_TEXT: Final = "%(asctime)s %(levelname)s %(name)s %(message)s"


class LogFile(RotatingFileHandler):
    """A file that is rotated at its greatest size, and opened again if somebody has moved it.

    So ``logrotate`` needs neither ``copytruncate``, which loses lines, nor a signal.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line."""
        try:
            self._follow_path()
        except OSError:
            self.handleError(record)
        else:
            super().emit(record)

    def _follow_path(self) -> None:
        stream = self.stream
        if stream is None or (not stream.closed and self._is_at_path(stream.fileno())):
            return
        self.stream = None
        with contextlib.suppress(OSError):  # what a full disk did not take is lost
            stream.close()
        self.stream = self._open()

    def _is_at_path(self, fd: int) -> bool:
        opened = os.fstat(fd)
        try:
            found = os.stat(self.baseFilename)
        except FileNotFoundError:
            return False
        return (found.st_dev, found.st_ino) == (opened.st_dev, opened.st_ino)


def open_log_blocking(config: LogConfig, *, label: str = "") -> LimitRepetition:
    """Write the log of this process as the settings say; return its limit on repetitions.

    Args:
        config: The settings.
        label: Name of the server, if the process is one of several of a command. Each has a file
            of its own then.

    Raises:
        ConfigError: The file cannot be written.
    """
    handler = _handler_blocking(config, label)
    if config.log_format == "json":
        handler.setFormatter(JsonFormatter(server=label))
    else:
        prefix = f"[{label}] " if label and not config.log_file else ""
        handler.setFormatter(OneLineFormatter(_TEXT, prefix=prefix))
    limit = LimitRepetition(handler)
    handler.addFilter(limit)
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    apply_levels(config.log_level)
    return limit


def show_warnings(config: LogConfig, *, label: str = "") -> Callable[[], None]:
    """Copy warnings to standard error, if the log is in a file; returns the function that stops it.

    The person who starts a server looks at the terminal, and not yet into the file.
    """
    if not config.log_file:
        return lambda: None
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(logging.WARNING)
    prefix = f"[{label}] " if label else ""
    handler.setFormatter(OneLineFormatter("warning: %(message)s", prefix=prefix))
    logging.root.addHandler(handler)
    return partial(logging.root.removeHandler, handler)


def apply_levels(text: str) -> None:
    """Log what ``logLevel`` asks for from now on.

    Loggers that it does not name follow the one above them. ``INFO`` is the level of the process
    itself, so that alone changes nothing.
    """
    wanted = parse_levels(text)
    if wanted[BASE] == logging.INFO:
        del wanted[BASE]
    for name, known in list(logging.root.manager.loggerDict.items()):
        is_ours = name == BASE or name.startswith(f"{BASE}.")
        if is_ours and name not in wanted and isinstance(known, logging.Logger) and known.level:
            known.setLevel(logging.NOTSET)
    for name, level in wanted.items():
        logging.getLogger(name).setLevel(level)


def _handler_blocking(config: LogConfig, label: str) -> logging.Handler:
    if not config.log_file:
        return logging.StreamHandler(sys.stderr)
    path = Path(config.log_file).expanduser()
    if label:
        path = path.with_name(f"{path.stem}-{label}{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return LogFile(
            path,
            maxBytes=config.log_file_bytes,
            backupCount=config.log_file_count,
            encoding="utf-8",
        )
    except OSError as error:
        raise ConfigError(f"logFile={config.log_file} cannot be written: {error}") from None
