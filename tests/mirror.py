"""Checks that every module has tests: a file of its name, or others that reach most of it.

Tests mirror packages: ``tests/unit/store/log/test_allocator.py`` has the tests of
``store/log/allocator.py``. A module without such a file is tested through its neighbours, and for
those the measured coverage decides. Run after ``coverage json``, as ``make coverage`` does:

    python tests/mirror.py build/coverage/report.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "rocketpost"
UNIT = ROOT / "tests" / "unit"

PERCENT_MIN = 75
"""Least share of the lines and branches of a module without a test file of its name."""

NOT_MEASURED = {
    "kernel/record_columns": "its tests load it a second time, as the compiler would see it",
    "kernel/uncompiled": "loads modules of the kernel a second time",
    "server/__main__": "runs in processes that are killed",
    "server/access/logins": "used by the lanes, which need a compiled kernel",
    "spark/records/kernel_fields": "used only if the kernel is compiled",
    "spark/workers/daemon": "forked by the JVM",
    "testing": "what only chaos and campaigns use; they are not part of make coverage",
}
"""Modules and packages that coverage cannot see, each with the reason."""


class Shortfall(NamedTuple):
    """A module that the tests do not reach enough of."""

    module: str
    percent: float


def own_test(module: str) -> Path:
    """Return the test file that has the name of a module such as ``store/log/allocator``."""
    parent, _, name = module.rpartition("/")
    return UNIT / parent / f"test_{name}.py"


def modules() -> list[str]:
    """Return all modules but the package files."""
    paths = sorted(PACKAGE.rglob("*.py"))
    names = [path.relative_to(PACKAGE).with_suffix("").as_posix() for path in paths]
    return [name for name in names if not name.endswith("__init__")]


def without_own_test() -> list[str]:
    """Return the modules that have no test file of their name."""
    return [module for module in modules() if not own_test(module).exists()]


def is_measured(module: str) -> bool:
    """Tell whether coverage sees what tests do with a module."""
    return not any(module == name or module.startswith(f"{name}/") for name in NOT_MEASURED)


def shortfalls(report: dict[str, dict[str, dict[str, dict[str, float]]]]) -> list[Shortfall]:
    """Return the modules that neither have a test file nor are reached, worst first."""
    found = []
    for module in filter(is_measured, without_own_test()):
        measured = report["files"].get(f"src/rocketpost/{module}.py")
        percent = measured["summary"]["percent_covered"] if measured is not None else 0.0
        if percent < PERCENT_MIN:
            found.append(Shortfall(module, percent))
    return sorted(found, key=lambda each: each.percent)


def main(path: str) -> int:
    """Print the modules that need tests; return the exit code."""
    found = shortfalls(json.loads(Path(path).read_text()))
    print(f"{len(modules())} modules, {len(without_own_test())} without a test file of their name")
    for module, percent in found:
        print(f"{percent:5.1f} %  {module}: write {own_test(module).relative_to(ROOT)}")
    if found:
        print(f"tests must reach {PERCENT_MIN} % of a module without a test file of its name")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
