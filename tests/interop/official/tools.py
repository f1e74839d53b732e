"""The official gRPC clients, each fetched once from the registry of its language.

Everything made here lives below ``official/<language>/target``, which git ignores.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

HOME: Final = Path(__file__).parent
PYTHON_CLIENT: Final = "rocketmq-python-client==5.1.2"


class ToolMissingError(Exception):
    """A compiler, a package manager or a package is out of reach; the message says which."""


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


def run(command: Sequence[str], *, cwd: Path | None = None) -> None:
    """Run a command of a toolchain.

    Raises:
        ToolMissingError: The tool is not installed, or could not fetch or build.
    """
    if shutil.which(command[0]) is None:
        raise ToolMissingError(f"no {command[0]} on the PATH")
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    if done.returncode != 0:
        raise ToolMissingError(f"{' '.join(command)}: {(done.stdout + done.stderr)[-800:]}")
