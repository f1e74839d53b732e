"""What is said of a name that nobody knows: those that are known, the most alike first."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

_NAMED_MAX: Final = 20


def some_like(strange: str, known: Iterable[str]) -> str:
    """Return some of the known names in words, those most alike first; empty if there is none."""
    there = sorted(set(known))
    near = difflib.get_close_matches(strange, there, n=_NAMED_MAX)
    nearest_first = [*near, *(name for name in there if name not in near)]
    return ", ".join(nearest_first[:_NAMED_MAX]) + (", ..." if len(there) > _NAMED_MAX else "")
