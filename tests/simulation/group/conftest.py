"""Nothing is logged here either."""

from __future__ import annotations

from ..replication.conftest import _no_log

__all__ = ["_no_log"]
