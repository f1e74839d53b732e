"""The store's threads stay asleep here as well, and nothing is logged."""

from __future__ import annotations

from ..replication.conftest import _no_log, sleeping_threads

__all__ = ["_no_log", "sleeping_threads"]
