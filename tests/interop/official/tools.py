"""The official gRPC clients, each fetched once from the registry of its language.

Everything made here lives below ``official/<language>/target``, which git ignores.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from interop.jvm import JavaMissingError, java_command, official_classpath
from interop.leash import Leash

HOME: Final = Path(__file__).parent
PYTHON_CLIENT: Final = "rocketmq-python-client==5.1.2"
PROTOBUF_COMPILER: Final = "grpcio-tools==1.85.1"


class ToolMissingError(Exception):
    """A compiler, a package manager or a package is out of reach; the message says which."""


def official(language: str, home: Path, *, roots: Path | None = None) -> Leash:
    """Start the official client for a language.

    Args:
        language: ``java``, ``python``, ``node``, ``go`` or ``rust``.
        home: A directory for what it writes.
        roots: The certificate that it trusts, if it checks certificates.

    Raises:
        ToolMissingError: The client cannot be fetched or built here.
    """
    environment = {"HOME": str(home), "rocketmq.client.logRoot": str(home)}
    if roots is not None:
        environment["GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"] = str(roots)
        environment["SSL_CERT_FILE"] = str(roots)
    return Leash(language, _COMMANDS[language](home), home, environment=environment)


def _java(home: Path) -> list[str]:
    try:
        classes = official_classpath()
    except JavaMissingError as missing:
        raise ToolMissingError(str(missing)) from None
    return java_command(classes, "rocketpost.official.Driver", heap="256m", home=home)


def _python(home: Path) -> list[str]:
    return [str(python()), str(HOME / "python" / "driver.py")]


def _node(home: Path) -> list[str]:
    folder = HOME / "node"
    manifest = folder / "package.json"
    with made_once(folder / "target", manifest.read_text()) as is_made:
        if not is_made:
            shutil.copy(manifest, folder / "target" / "package.json")
            quiet = ["--silent", "--no-audit", "--no-fund", "--no-package-lock"]
            run(["npm", "install", *quiet], cwd=folder / "target")
    return ["node", str(folder / "driver.js")]


def _go(home: Path) -> list[str]:
    folder, target = HOME / "go", HOME / "go" / "target"
    sources = [folder / "go.mod", folder / "main.go"]
    with made_once(target, "".join(path.read_text() for path in sources)) as is_made:
        if not is_made:
            for path in sources:
                shutil.copy(path, target)
            run(["go", "mod", "tidy"], cwd=target)
            run(["go", "build", "-o", "driver", "."], cwd=target)
    return [str(target / "driver")]


def _rust(home: Path) -> list[str]:
    """Build it; its build script wants the compiler of protobuf, which a Python package has."""
    folder = HOME / "rust"
    target = folder / "target"
    stamp = "".join((folder / name).read_text() for name in ("Cargo.toml", "src/main.rs"))
    with made_once(target, stamp) as is_made:
        if not is_made:
            interpreter = target / "venv" / "bin" / "python"
            run([sys.executable, "-m", "venv", str(target / "venv")])
            run([str(interpreter), "-m", "pip", "install", "--quiet", PROTOBUF_COMPILER])
            compiler = target / "protoc"
            compiler.write_text(f'#!/bin/sh\nexec "{interpreter}" -m grpc_tools.protoc "$@"\n')
            compiler.chmod(0o755)
            path = {"PATH": f"{target}{os.pathsep}{os.environ['PATH']}", "PROTOC": str(compiler)}
            run(["cargo", "build", "--quiet"], cwd=folder, environment=path)
    return [str(target / "debug" / "driver")]


_COMMANDS: Final = {"java": _java, "python": _python, "node": _node, "go": _go, "rust": _rust}


@functools.cache
def python() -> Path:
    """Return an interpreter with the official client for Python."""
    target = HOME / "python" / "target"
    interpreter = target / "venv" / "bin" / "python"
    with made_once(target, PYTHON_CLIENT) as is_made:
        if not is_made:
            shutil.rmtree(target / "venv", ignore_errors=True)
            run([sys.executable, "-m", "venv", str(target / "venv")])
            run([str(interpreter), "-m", "pip", "install", "--quiet", PYTHON_CLIENT])
    return interpreter


@contextlib.contextmanager
def made_once(target: Path, stamp: str) -> Iterator[bool]:
    """Yield whether ``target`` was made for ``stamp``; once the block ends well, it is.

    Other processes of this run wait meanwhile.
    """
    target.mkdir(parents=True, exist_ok=True)
    with (target / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = target / "made"
        yield made.exists() and made.read_text() == stamp
        made.write_text(stamp)


def run(
    command: Sequence[str],
    *,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run a command of a toolchain.

    Raises:
        ToolMissingError: The tool is not installed, or could not fetch or build.
    """
    if shutil.which(command[0]) is None:
        raise ToolMissingError(f"no {command[0]} on the PATH")
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **(environment or {})}, capture_output=True, text=True
    )
    if done.returncode != 0:
        raise ToolMissingError(f"{' '.join(command)}: {(done.stdout + done.stderr)[-800:]}")
