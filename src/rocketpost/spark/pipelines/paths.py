"""Checks of paths that a pipeline reads, before Spark starts.

Only paths that are certainly on this machine are checked. Spark may be configured to use another
file system for others.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final

from rocketpost.errors import ConfigError

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(//(?=/))?")
_PATTERN: Final = re.compile(r"[*?\[{\\]")
"""Characters of a pattern of many paths in Spark."""
_DEFAULT_PLACE: Final = "spark.hadoop.fs.defaultFS"
_SET_UP_BY: Final = ("HADOOP_CONF_DIR", "SPARK_CONF_DIR", "SPARK_HOME")
"""Sources of Spark settings that may select another file system."""


def local_path(path: str, settings: Mapping[str, str]) -> str | None:
    """Return the local path; None if it may be elsewhere, or a pattern of many.

    Args:
        path: A path or a URI for Spark.
        settings: Settings of Spark.
    """
    if _PATTERN.search(path):
        return None
    scheme = _SCHEME.match(path)
    if scheme is not None:
        is_file = scheme[1].lower() == "file"
        return path[scheme.end() :] if is_file else None
    is_set_up = _DEFAULT_PLACE in settings or any(map(os.environ.get, _SET_UP_BY))
    return None if is_set_up else path


def check_readable(option: str, path: str) -> None:
    """Check that a file or directory of this machine can be read.

    Raises:
        ConfigError: It cannot be read; ``option`` names it in the message.
    """
    try:
        if os.path.isdir(path):
            os.scandir(path).close()
        else:
            os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    except OSError as error:
        raise ConfigError(f"{option} {path} cannot be read: {error.strerror}") from None
