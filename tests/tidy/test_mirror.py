"""The check that every module has tests finds what it is for."""

from __future__ import annotations

import importlib.util
from pathlib import Path

PATH = Path(__file__).resolve().parents[1] / "mirror.py"
SPEC = importlib.util.spec_from_file_location("mirror", PATH)
assert SPEC is not None
mirror = importlib.util.module_from_spec(SPEC)
assert SPEC.loader is not None
SPEC.loader.exec_module(mirror)


def report(percent: float) -> dict[str, dict[str, dict[str, dict[str, float]]]]:
    return {
        "files": {
            f"src/rocketpost/{module}.py": {"summary": {"percent_covered": percent}}
            for module in mirror.modules()
        }
    }


def test_a_module_needs_a_test_file_of_its_name_or_coverage() -> None:
    assert mirror.own_test("store/log/allocator").exists()
    assert "store/log/allocator" not in mirror.without_own_test()
    assert mirror.shortfalls(report(100)) == []
    few = [each.module for each in mirror.shortfalls(report(mirror.PERCENT_MIN - 1))]
    assert few == [each for each in mirror.without_own_test() if mirror.is_measured(each)]
    assert mirror.shortfalls({"files": {}})[0].percent == 0  # imported by no test


def test_exceptions_name_modules_that_exist() -> None:
    for name in mirror.NOT_MEASURED:
        path = mirror.PACKAGE / name
        assert path.is_dir() or path.with_suffix(".py").exists(), name
