"""Paths that a pipeline reads, looked at before Spark starts.

Only those that are surely of this machine: Spark may be set up to look for the others elsewhere,
and it alone knows what it then finds.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final

from rocketpost.errors import ConfigError

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(//(?=/))?")
_PATTERN: Final = re.compile(r"[*?\[{\\]")
"""What Spark takes for a pattern of many paths."""
_DEFAULT_PLACE: Final = "spark.hadoop.fs.defaultFS"
_SET_UP_BY: Final = ("HADOOP_CONF_DIR", "SPARK_CONF_DIR", "SPARK_HOME")
"""Where settings of Spark come from that may say that paths are of another file system."""


def local_path(path: str, settings: Mapping[str, str]) -> str | None:
    """Return where something is on this machine; None if it may be elsewhere, or be many.

    Args:
        path: A path or a URI, in Spark's words.
        settings: Those of Spark.
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
    """Refuse a file or directory of this machine that cannot be read.

    Raises:
        ConfigError: It is not there, or may not be read; ``option`` is what named it.
    """
    try:
        if os.path.isdir(path):
            os.scandir(path).close()
        else:
            os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    except OSError as error:
        raise ConfigError(f"{option} {path} cannot be read: {error.strerror}") from None
