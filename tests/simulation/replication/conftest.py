"""The store's threads stay asleep here as well."""

from __future__ import annotations

from ..store.conftest import sleeping_threads

__all__ = ["sleeping_threads"]
