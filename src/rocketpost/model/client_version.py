"""Names of RocketMQ's versions, which the wire carries as ordinals."""

from __future__ import annotations

from typing import Final

_FIRST_REGULAR: Final = 213  # 4.0.0; two ordinals per release from here on, ten releases a minor


def version_text(ordinal: int) -> str:
    """Return the name of a client version, such as ``V5_3_3``; the number if it is too old."""
    if ordinal < _FIRST_REGULAR:
        return f"V({ordinal})"
    release, snapshot = divmod(ordinal - _FIRST_REGULAR, 2)
    release += snapshot  # a snapshot comes before its release
    minor, patch = divmod(release, 10)
    major, minor = divmod(minor, 10)
    return f"V{major + 4}_{minor}_{patch}" + ("_SNAPSHOT" if snapshot else "")
