"""Every kernel test runs on the source, and on the compiled module too where it was built."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest

import rocketpost.kernel
from rocketpost.kernel import FORM

FOLDER = Path(rocketpost.kernel.__file__).parent


class _Sources:
    """Finds kernel modules as sources, even where they are compiled."""

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        package, _, module = name.rpartition(".")
        if package != "rocketpost.kernel":
            return None
        return importlib.util.spec_from_file_location(name, FOLDER / f"{module}.py")


def load_plain(name: str) -> ModuleType:
    """Load a kernel module uncompiled, together with the kernel modules that it imports."""
    prefix = "rocketpost.kernel."
    kept = {each: module for each, module in sys.modules.items() if each.startswith(prefix)}
    for each in kept:
        del sys.modules[each]
    finder = _Sources()
    sys.meta_path.insert(0, finder)  # type: ignore[arg-type]
    try:
        return importlib.import_module(prefix + name)
    finally:
        sys.meta_path.remove(finder)  # type: ignore[arg-type]
        for each in [each for each in sys.modules if each.startswith(prefix)]:
            del sys.modules[each]
        sys.modules.update(kept)
        for each, module in kept.items():
            setattr(rocketpost.kernel, each.removeprefix(prefix), module)


def builds(name: str) -> dict[str, ModuleType]:
    """Return the source build of a kernel module, and the compiled one if that is used."""
    plain = load_plain(name)
    if not FORM.is_compiled:
        return {"plain": plain}
    return {"plain": plain, "compiled": importlib.import_module(f"rocketpost.kernel.{name}")}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give tests that ask for ``kernel`` each build of the module that the file is named after."""
    if "kernel" in metafunc.fixturenames:
        found = builds(metafunc.module.__name__.rpartition("test_")[2])
        metafunc.parametrize("kernel", found.values(), ids=list(found))
