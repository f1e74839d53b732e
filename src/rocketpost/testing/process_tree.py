"""The processes of a session, as the operating system lists them."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Process(NamedTuple):
    """One process of a session."""

    pid: int
    parent: int
    command: str

    def kill(self) -> None:
        """Kill it with SIGKILL, unless it has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


def session_of(leader: int) -> Iterator[Process]:
    """Yield the running processes of a session, including its leader."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            if int(fields[3]) == leader and fields[0] != "Z":
                yield Process(int(entry.name), int(fields[1]), command)
