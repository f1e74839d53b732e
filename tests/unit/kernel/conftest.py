"""Every kernel test runs on the source, and on the compiled module too where it was built."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

import rocketpost.kernel
from rocketpost.kernel import FORM

FOLDER = Path(rocketpost.kernel.__file__).parent


def builds(name: str) -> dict[str, ModuleType]:
    """Return the source build of a kernel module, and the compiled one if that is used."""
    spec = importlib.util.spec_from_file_location(f"plain_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    plain = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plain)
    if not FORM.is_compiled:
        return {"plain": plain}
    return {"plain": plain, "compiled": importlib.import_module(f"rocketpost.kernel.{name}")}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give tests that ask for ``kernel`` each build of the module that the file is named after."""
    if "kernel" in metafunc.fixturenames:
        found = builds(metafunc.module.__name__.rpartition("test_")[2])
        metafunc.parametrize("kernel", found.values(), ids=list(found))
