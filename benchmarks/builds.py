"""Builds of Rocketpost to measure: copies of sources, with the kernel compiled or not.

A build is a copy, so that editing a checkout does not change a running measurement, and a checkout
stays as it is. Compiled kernels are kept by the content of their sources.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = ROOT / "build" / "builds"
_KERNELS: Final = FOLDER / "kernels"
_PARTS: Final = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "src")
_KERNEL: Final = Path("src/rocketpost/kernel")
_FORMS: Final = ("compiled", "plain")


@dataclass(frozen=True, slots=True)
class Build:
    """The sources of a server, ready to run."""

    name: str
    folder: Path
    is_compiled: bool

    @property
    def environment(self) -> dict[str, str]:
        """The variables that make Python import this build."""
        return {"PYTHONPATH": str(self.folder / "src")}


def make_build(description: str, folder: Path) -> Build:
    """Return the build that ``NAME=WHERE`` describes, made in a directory of that name.

    ``WHERE`` is a checkout's directory or a git revision. It may end in ``:plain`` for a kernel
    that is not compiled.

    Raises:
        SystemExit: There is no such directory or revision, or the kernel does not compile.
    """
    name, _, where = description.partition("=")
    place, _, form = where.rpartition(":") if where.endswith(_FORMS) else (where, "", "compiled")
    folder = folder / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if Path(place, "src").is_dir():
        _copy(Path(place), folder)
    else:
        _export(place, folder)
    if form == "compiled":
        _compile(folder)
    else:
        for path in _made(folder):
            path.unlink()
    build = Build(name, folder, form == "compiled")
    _check_form(build)
    return build


def _check_form(build: Build) -> None:
    """Raise unless the build runs in the form that was asked for."""
    program = "import rocketpost.kernel.hashing as module; print(module.__file__)"
    command = [sys.executable, "-c", program]
    environment = {**os.environ, **build.environment}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    used = Path(done.stdout.strip())
    if not used.is_relative_to(build.folder) or (used.suffix == ".py") == build.is_compiled:
        form = "compiled" if build.is_compiled else "uncompiled"
        raise SystemExit(f"{build.name} should run {form} from {build.folder}, but uses {used}")


def _copy(source: Path, folder: Path) -> None:
    for part in _PARTS:
        if (source / part).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(source / part, folder / part, ignore=ignored)
        else:
            shutil.copy2(source / part, folder / part)


def _export(revision: str, folder: Path) -> None:
    with tempfile.TemporaryFile() as archive:
        command = ["git", "-C", str(ROOT), "archive", revision, *_PARTS]
        if subprocess.run(command, stdout=archive).returncode:
            raise SystemExit(f"{revision} is neither a directory with src/ nor a git revision")
        archive.seek(0)
        with tarfile.open(fileobj=archive) as members:
            members.extractall(folder, filter="data")


def _compile(folder: Path) -> None:
    """Compile the kernel, or take it from an earlier build of the same sources."""
    sources = sorted(
        path for path in (folder / _KERNEL).iterdir() if path.suffix in (".py", ".pxd", ".h")
    )
    digest = hashlib.sha256(sys.version.encode())
    for path in [folder / "setup.py", *sources]:
        digest.update(path.name.encode() + path.read_bytes())
    kept = _KERNELS / digest.hexdigest()[:16]
    if not kept.exists():
        _build_extensions(folder)
        made = _made(folder)
        if not made:
            raise SystemExit(
                "nothing was compiled: Cython (pip install cython) and a C compiler are needed; "
                "add :plain to measure without a compiled kernel"
            )
        _KERNELS.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=_KERNELS))
        for path in made:
            shutil.copy2(path, fresh)
        with contextlib.suppress(OSError):  # another run has kept it meanwhile
            fresh.rename(kept)
    for path in kept.iterdir():
        shutil.copy2(path, folder / _KERNEL)


def _made(folder: Path) -> list[Path]:
    """Return the compiled modules and the record of their build."""
    kernel = folder / _KERNEL
    return [*kernel.glob("*.so"), *kernel.glob("build.*.properties")]


def _build_extensions(folder: Path) -> None:
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
    command += ["-j", str(os.cpu_count() or 1)]
    print(f"compiling the kernel of {folder.name} ...", file=sys.stderr, flush=True)
    environment = {**os.environ, "ROCKETPOST_KERNEL": "compiled"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"the kernel of {folder.name} does not compile:\n{done.stderr[-2000:]}")


def main() -> int:
    """Make the build that the argument NAME=WHERE describes; print the directory to import from."""
    build = make_build(sys.argv[1], FOLDER)
    print(build.folder / "src")
    return 0


if __name__ == "__main__":
    sys.exit(main())
