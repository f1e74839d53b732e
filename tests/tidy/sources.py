"""The sources as syntax trees, which are parsed once for all checks of this directory."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).resolve().parents[2] / "src" / "rocketpost"
PATHS: Final = sorted(SOURCE.rglob("*.py"))


def name_of(path: Path) -> str:
    """Return the path of a module below the package."""
    return path.relative_to(SOURCE).as_posix()


@cache
def trees() -> dict[str, ast.Module]:
    """Return the tree of every module, by its path below the package."""
    return {name_of(path): ast.parse(path.read_text()) for path in PATHS}
