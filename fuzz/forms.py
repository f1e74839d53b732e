"""Kernel modules in two forms: uncompiled, and as the package imports them."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import rocketpost.kernel
from rocketpost.kernel.form import hide_compiled

_SOURCES = "rocketpost.kernel_sources"


class Forms(NamedTuple):
    """One kernel module in both forms; the same module twice if nothing is compiled."""

    uncompiled: ModuleType
    imported: ModuleType


def load_forms(name: str) -> Forms:
    """Import a kernel module in both forms.

    The uncompiled one is a module of the package for Atheris, which counts its branches: it has no
    sight of those in C.
    """
    if _SOURCES not in sys.modules:
        # The same directory by another name, under which Python finds sources only.
        folder = f"{Path(rocketpost.kernel.__file__).parent}/."
        hide_compiled(folder)
        package = ModuleType(_SOURCES)
        package.__path__ = [folder]
        sys.modules[_SOURCES] = package
    return Forms(
        importlib.import_module(f"{_SOURCES}.{name}"),
        importlib.import_module(f"rocketpost.kernel.{name}"),
    )


def load_linked(name: str) -> Forms:
    """Import a kernel module that calls others in both forms: uncompiled, it calls those so too."""
    prefix = "rocketpost.kernel."
    kept = {each: module for each, module in sys.modules.items() if each.startswith(prefix)}
    imported = importlib.import_module(prefix + name)
    kept |= {each: module for each, module in sys.modules.items() if each.startswith(prefix)}
    for each in kept:
        del sys.modules[each]
    folder = str(Path(rocketpost.kernel.__file__).parent)
    finder = sys.path_importer_cache.get(folder)
    hide_compiled(folder)
    try:
        return Forms(importlib.import_module(prefix + name), imported)
    finally:
        sys.path_importer_cache.pop(folder, None)
        if finder is not None:
            sys.path_importer_cache[folder] = finder
        for each in [each for each in sys.modules if each.startswith(prefix)]:
            del sys.modules[each]
        sys.modules.update(kept)
        for each, module in kept.items():
            setattr(rocketpost.kernel, each.removeprefix(prefix), module)
