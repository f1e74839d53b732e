"""Bytes captured from Apache RocketMQ, and how to get at them. See ``README.md``."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parent


@dataclass(frozen=True)
class GoldenFrame:
    """One captured frame: ``wire`` is all of it, length word included."""

    code: int
    encoding: int
    header: bytes
    body: bytes

    @property
    def wire(self) -> bytes:
        mark = self.encoding << 24 | len(self.header)
        length = 4 + len(self.header) + len(self.body)
        return struct.pack(">iI", length, mark) + self.header + self.body


@dataclass(frozen=True)
class GoldenExchange:
    """A request and its response; ``response`` is None for a oneway request."""

    peer: str
    name: str
    link: str
    asker: str
    request: GoldenFrame
    response: GoldenFrame | None


def exchanges(peer: str = "*", name: str = "*") -> Iterator[GoldenExchange]:
    """Yield the captured exchanges whose directory and file name match the patterns."""
    for path in sorted((ROOT / "exchanges").glob(f"{peer}/{name}.json")):
        stored = json.loads(path.read_text(encoding="utf-8"))
        response = _frame(stored["response"]) if "response" in stored else None
        yield GoldenExchange(
            path.parent.name,
            path.stem,
            stored["link"],
            stored["asker"],
            _frame(stored["request"]),
            response,
        )


def restore_store(name: str, target: Path) -> dict[str, Any]:
    """Lay out ``store-clean`` or ``store-killed`` in full size and return its manifest."""
    source = ROOT / name
    manifest: dict[str, Any] = json.loads((source / "manifest.json").read_text())
    for path, size in manifest["sizes"].items():
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        (target / path).write_bytes((source / "files" / path).read_bytes())
        os.truncate(target / path, size)
    return manifest


def _frame(stored: dict[str, Any]) -> GoldenFrame:
    return GoldenFrame(
        stored["code"], stored["encoding"], _part(stored, "header"), _part(stored, "body")
    )


def _part(stored: dict[str, Any], name: str) -> bytes:
    if name in stored:
        text: str = stored[name]
        return text.encode()
    return bytes.fromhex(stored[f"{name}_hex"])
