"""Suggestions for an unknown name: the known names, the most similar first."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

_NAMED_MAX: Final = 20


def list_similar(unknown: str, known: Iterable[str]) -> str:
    """Return known names as text, the most similar first; empty if there are none."""
    names = sorted(set(known))
    near = difflib.get_close_matches(unknown, names, n=_NAMED_MAX)
    nearest_first = [*near, *(name for name in names if name not in near)]
    return ", ".join(nearest_first[:_NAMED_MAX]) + (", ..." if len(names) > _NAMED_MAX else "")
