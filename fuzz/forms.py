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
