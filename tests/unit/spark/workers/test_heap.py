"""Only workers of Spark's keep what they have loaded out of the collector's sight."""

from __future__ import annotations

import gc
import subprocess
import sys
import types
from collections.abc import Iterator
from importlib.machinery import ModuleSpec

import pytest

from rocketpost.spark.workers import heap as worker_heap
from rocketpost.spark.workers.heap import keep_heap


@pytest.fixture(autouse=True)
def _as_if_new(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(worker_heap._Frozen, "modules", 0)
    yield
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
    keep_heap()
    assert gc.get_freeze_count() == before


@pytest.mark.parametrize("daemon", ["pyspark.daemon", "rocketpost.spark.workers.daemon"])
@pytest.mark.parametrize(("loaded", "is_kept"), [(0, False), (5, False), (200, True)])
def test_a_worker_keeps_what_is_loaded_once(
    monkeypatch: pytest.MonkeyPatch, daemon: str, loaded: int, *, is_kept: bool
) -> None:
    started_as(monkeypatch, daemon)
    keep_heap()
    kept = gc.get_freeze_count()
    assert kept > 10_000
    for number in range(loaded):  # by the first task, after its beginning
        monkeypatch.setitem(sys.modules, f"loaded{number}", types.ModuleType("loaded"))
    later: list[list[object]] = [[] for _ in range(1000)]
    for _ in range(2):
        keep_heap()
        assert (gc.get_freeze_count() >= kept + len(later)) == is_kept
    later += [[] for _ in range(10_000)]
    keep_heap()
    assert gc.get_freeze_count() < kept + len(later)


def test_freed_memory_is_kept() -> None:
    faults = {way: int(_faults(way)) for way in ("keep_freed_memory()", "None")}
    assert faults["keep_freed_memory()"] * 10 < faults["None"]


def _faults(way: str) -> str:
    """Return how many pages a process was given anew that makes and drops the same buffers."""
    script = (
        "import resource\n"
        "from rocketpost.spark.workers.heap import keep_freed_memory\n"
        "def pages(): return resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "def batch(): return [b'x' * (2 << 20) for _ in range(4)]\n"
        f"{way}\n"
        "batch(), batch()\n"
        "before = pages()\n"
        "for _ in range(20): batch()\n"
        "print(pages() - before)\n"
    )
    command = [sys.executable, "-c", script]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
