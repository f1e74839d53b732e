"""Secrets of tests, searched for wherever they must not be: in log lines, output and files.

Passwords of tests end with ``-secret``. Only settings and the table of users may have them.
"""

from __future__ import annotations

import errno
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

SECRET: Final = re.compile(rb"\b[a-z0-9]{2,16}-secret\b")
_MARK: Final = b"-secret"
"""What all secrets contain; a plain search is much faster than one for the whole pattern."""
_ALLOWED: Final = re.compile(r"auth\.json.*|.*\.(conf|yml|yaml|properties|py|pyc|json|md|html)")
"""Names of files that a test writes itself, with its own secrets."""
_OF_APACHE: Final = "/config/users"
"""The directory in which Apache's broker keeps passwords as they are."""
_OVERLAP: Final = 64
_READ_BYTES: Final = 1 << 20


def find_secret(text: str) -> str | None:
    """Return a secret in a text, if there is one."""
    found = SECRET.search(text.encode("utf-8", "replace"))
    return found[0].decode() if found else None


def find_leaks(root: Path) -> Iterator[str]:
    """Return the files below a directory that have a secret, and which."""
    for directory, _, names in os.walk(root):
        if directory.endswith(_OF_APACHE):
            continue
        for name in names:
            if _ALLOWED.fullmatch(name):
                continue
            path = os.path.join(directory, name)
            try:
                found = _search(path)
            except OSError:
                continue  # a socket, or gone
            if found is not None:
                yield f"{path}: {found}"


def _search(path: str) -> str | None:
    """Search the data of a file; most of a store is space that nobody has written to."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        end = 0
        while True:
            try:
                start = os.lseek(fd, end, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    return None  # no more data
                raise
            end = os.lseek(fd, start, os.SEEK_HOLE)
            tail = b""
            for at in range(start, end, _READ_BYTES):
                data = tail + os.pread(fd, min(_READ_BYTES, end - at), at)
                found = SECRET.search(data) if _MARK in data else None
                if found:
                    return found[0].decode()
                tail = data[-_OVERLAP:]
    finally:
        os.close(fd)


class SecretWatch(logging.Handler):
    """Looks at every log line of this process."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line with a secret."""
        self.look_at(record.getMessage())

    def look_at(self, text: str) -> None:
        """Keep a text with a secret."""
        secret = find_secret(text)
        if secret is not None:
            self.found.append(f"{secret} in {text[:500]!r}")
