"""The form of the kernel in this process: compiled or uncompiled, and the reason.

Compiled modules lie beside their sources, where Python prefers them. ``setup.py`` leaves a build
record there as well: ``key=value`` lines with a digest of every source that was compiled. Compiled
modules are used only if all digests still match. So an edited source is never shadowed by its old
compiled module: the whole kernel then runs from its sources until it is compiled again. It is never
mixed, since compiled modules call each other in C.

``ROCKETPOST_KERNEL`` overrides this: ``uncompiled`` ignores compiled modules, ``compiled`` refuses
to run without them. ``setup.py`` obeys the same variable.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    FileFinder,
    SourceFileLoader,
    SourcelessFileLoader,
)
from importlib.util import source_hash
from typing import Final, Literal, NamedTuple

SWITCH: Final = "ROCKETPOST_KERNEL"
"""The environment variable that asks for one form."""

_SHARED_SUFFIXES: Final = (".pxd", ".h")
"""Sources that several modules may include."""

State = Literal["compiled", "switched off", "absent", "failed", "stale"]


class Form(NamedTuple):
    """The form of the kernel and its reason."""

    state: State
    reason: str

    @property
    def is_compiled(self) -> bool:
        """Whether the compiled modules are used."""
        return self.state == "compiled"

    @property
    def is_unusable(self) -> bool:
        """Whether the kernel was to be compiled, but the result cannot be used."""
        return self.state in ("failed", "stale")

    @property
    def word(self) -> str:
        """``compiled`` or ``uncompiled``."""
        return "compiled" if self.is_compiled else "uncompiled"


def choose_form(folder: str, wish: str | None = None) -> Form:
    """Choose the form of the kernel in ``folder``, without importing anything.

    Args:
        folder: The directory of the kernel's modules.
        wish: ``compiled``, ``uncompiled``, or an empty string for compiled if possible; by default
            the value of :data:`SWITCH`.

    Raises:
        ImportError: ``wish`` is unknown, or asks for compiled modules that cannot be used.
    """
    if wish is None:
        wish = os.environ.get(SWITCH, "")
    if wish not in ("", "compiled", "uncompiled"):
        raise ImportError(f"{SWITCH} must be compiled or uncompiled, not {wish!r}")
    if wish == "uncompiled":
        return Form("switched off", f"{SWITCH}=uncompiled")
    found = _find_form(folder)
    if wish == "compiled" and not found.is_compiled:
        raise ImportError(f"{SWITCH}=compiled, but the kernel is not compiled: {found.reason}")
    return found


def hide_compiled(folder: str) -> None:
    """Let Python import only sources from ``folder``, as if nothing were compiled there."""
    sys.path_importer_cache[folder] = FileFinder(
        folder,
        (SourceFileLoader, SOURCE_SUFFIXES),
        (SourcelessFileLoader, BYTECODE_SUFFIXES),
    )


def record_path(folder: str) -> str:
    """Return the path of the build record for this Python."""
    return os.path.join(folder, f"build{os.path.splitext(EXTENSION_SUFFIXES[0])[0]}.properties")


def read_record(folder: str) -> dict[str, str]:
    """Return the build record for this Python; empty if there is none."""
    try:
        with open(record_path(folder), encoding="utf-8") as file:
            lines = file.read().splitlines()
    except OSError:  # never compiled, or the package is in an archive
        return {}
    pairs = (line.partition("=") for line in lines if "=" in line)
    return {key: value for key, _, value in pairs}


def format_record(values: Mapping[str, str]) -> str:
    """Return the text of a build record."""
    return "".join(f"{key}={' '.join(value.split())}\n" for key, value in values.items())


def module_names(folder: str) -> list[str]:
    """Return the modules that can be compiled: those with types in a ``.pxd`` file."""
    names = set(os.listdir(folder))
    return sorted(
        name[:-4] for name in names if name.endswith(".pxd") and f"{name[:-4]}.py" in names
    )


def digest_sources(folder: str) -> dict[str, str]:
    """Return a digest of every source of the compiled modules, by file name."""
    sources = [name for name in os.listdir(folder) if name.endswith(_SHARED_SUFFIXES)]
    sources += [f"{module}.py" for module in module_names(folder)]
    digests = {}
    for name in sorted(sources):
        with open(os.path.join(folder, name), "rb") as file:
            digests[name] = source_hash(file.read()).hex()
    return digests


def _find_form(folder: str) -> Form:
    record = read_record(folder)
    if not record:
        return Form("absent", f"it was not compiled for this Python ({sys.version.split()[0]})")
    if "failure" in record:
        return Form("failed", f"compiling it failed: {record['failure']}")
    built = {
        key: value for key, value in record.items() if key.endswith((".py", *_SHARED_SUFFIXES))
    }
    present = digest_sources(folder)
    changed = sorted(
        name for name in built.keys() | present.keys() if built.get(name) != present.get(name)
    )
    if changed:
        others = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        return Form("stale", f"{changed[0]}{others} changed after it was compiled")
    if missing := [name for name in module_names(folder) if not _is_built(folder, name)]:
        return Form("stale", f"the compiled {missing[0]} is missing")
    compiler, cython = record.get("compiler", "?"), record.get("cython", "?")
    return Form("compiled", f"by {compiler} from Cython {cython}")


def _is_built(folder: str, module: str) -> bool:
    return os.path.exists(os.path.join(folder, module + EXTENSION_SUFFIXES[0]))
