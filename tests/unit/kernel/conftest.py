"""Every kernel test runs on the source, and on the compiled module too where it was built."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from types import ModuleType

import rocketpost.kernel

FOLDER = Path(rocketpost.kernel.__file__).parent


def builds(name: str) -> list[ModuleType]:
    """Return the source build of a kernel module, and the imported one if that is compiled."""
    spec = importlib.util.spec_from_file_location(f"plain_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    plain = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plain)
    imported = importlib.import_module(f"rocketpost.kernel.{name}")
    found = [plain]
    if not str(imported.__file__).endswith(".py"):
        found.append(imported)
    return found


def pytest_generate_tests(metafunc) -> None:  # type: ignore[no-untyped-def]
    """Give tests that ask for ``kernel`` each build of the module that the file is named after."""
    if "kernel" in metafunc.fixturenames:
        name = metafunc.module.__name__.rpartition("test_")[2]
        found = builds(name)
        names = ["plain" if module.__file__.endswith(".py") else "compiled" for module in found]
        metafunc.parametrize("kernel", found, ids=names)
