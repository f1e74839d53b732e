"""Targets of the fuzzer. Each module has a class ``Target`` with ``check(data)`` and ``close()``.

``check`` returns if every promise holds for these bytes; anything that it raises is a find.
"""

from __future__ import annotations

import importlib
from typing import Final, Protocol

NAMES: Final = (
    *("wire", "records", "kernel", "lane", "pulls", "bodies", "settings", "filters"),
    *("client", "group", "store", "namesrv", "broker", "access", "entrance"),
)


class Target(Protocol):
    """Something that is fuzzed."""

    def check(self, data: bytes) -> None:
        """Return if every promise holds for ``data``."""
        ...

    def close(self) -> None:
        """Let go of files, threads and loops."""
        ...


def load(name: str) -> Target:
    """Make the target called ``name``."""
    target: Target = importlib.import_module(f"fuzz.targets.{name}").Target()
    return target
