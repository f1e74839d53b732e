"""Only workers of Spark's keep what they have loaded out of the collector's sight."""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Iterator
from importlib.machinery import ModuleSpec

import pytest

from rocketpost.spark.worker_heap import is_worker, keep_loaded


@pytest.fixture(autouse=True)
def _as_if_new() -> Iterator[None]:
    keep_loaded.cache_clear()
    yield
    keep_loaded.cache_clear()
    gc.unfreeze()


def started_as(monkeypatch: pytest.MonkeyPatch, name: str | None) -> None:
    """Let this process be one that was started by ``python -m name``, or by a script."""
    main = types.ModuleType("__main__")
    main.__spec__ = None if name is None else ModuleSpec(name, None)
    monkeypatch.setitem(sys.modules, "__main__", main)


@pytest.mark.parametrize("name", [None, "pytest", "pyspark.worker"])
def test_an_ordinary_process_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, name: str | None
) -> None:
    started_as(monkeypatch, name)
    before = gc.get_freeze_count()
    keep_loaded()
    assert not is_worker()
    assert gc.get_freeze_count() == before


def test_a_worker_keeps_what_is_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    started_as(monkeypatch, "pyspark.daemon")
    keep_loaded()
    kept = gc.get_freeze_count()
    assert kept > 10_000
    later: list[list[object]] = [[] for _ in range(1000)]
    keep_loaded()
    assert gc.get_freeze_count() <= kept
    assert len(later) == 1000
