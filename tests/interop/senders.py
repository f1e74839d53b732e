"""Senders of foreign clients, which all work alike: ``sent N`` and ``failed N REASON`` on stdout.

Each sends 0, 1, 2, ... one after the other until its standard input is closed. The clients are
fetched by the package managers of their languages, once, into ``foreign/target``. What cannot be
fetched is skipped, with the reason.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from interop.jvm import JavaMissingError, client_classpath, java_command

CLIENTS: Final = ("java-5.3", "java-4.9", "cpp", "go", "node")
FOREIGN: Final = Path(__file__).parent / "foreign"
TARGET: Final = FOREIGN / "target"
CPP: Final = "rocketmq==0.4.4"
"""The package that has the C++ client's library, and calls its C interface."""
GO: Final = "github.com/apache/rocketmq-client-go/v2@v2.1.2"
NODE: Final = "ali-ons@3.12.0"
_FETCH_SECONDS: Final = 280
_END_SECONDS: Final = 30


class ForeignSender:
    """A running sender. Use as a context manager.

    Args:
        command: Its command line.
        home: The directory in which it runs and logs.
    """

    def __init__(self, command: Sequence[str], home: Path) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self._errors = (home / "sender.log").open("w")
        self._child = subprocess.Popen(
            command,
            cwd=home,
            env=_environment(home),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._news = threading.Condition()
        self.sent: list[str] = []
        """The acknowledged bodies."""
        self.failed: list[str] = []
        """The lines about sends that failed."""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> ForeignSender:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait_sent(self, more: int, *, seconds: float) -> float:
        """Wait until ``more`` further messages are acknowledged; return the seconds to the first.

        Raises:
            AssertionError: They were not in time, or the sender ended.
        """
        began = time.monotonic()
        first = 0.0
        with self._news:
            before = len(self.sent)
            while len(self.sent) < before + more:
                left = began + seconds - time.monotonic()
                assert left > 0, f"{len(self.sent) - before} of {more} sent; {self.failed[-3:]}"
                assert self._child.poll() is None, f"the sender ended: {self.failed[-3:]}"
                self._news.wait(min(left, 1.0))
                if not first and len(self.sent) > before:
                    first = time.monotonic() - began
        return first

    def close(self) -> None:
        """Let it finish, and wait for it."""
        assert self._child.stdin is not None
        if self._child.poll() is None:
            self._child.stdin.close()
            try:
                self._child.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                self._child.kill()
                self._child.wait()
        self._reader.join()
        assert self._child.stdout is not None
        self._child.stdout.close()
        self._errors.close()

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            word, _, rest = line.strip().partition(" ")
            with self._news:
                if word == "sent":
                    self.sent.append(rest.split()[0])
                elif word in ("failed", "stopped"):
                    self.failed.append(line.strip())
                self._news.notify_all()


def start_sender(client: str, home: Path, name_servers: str, topic: str) -> ForeignSender:
    """Start the sender of one of ``CLIENTS``; skips the test if that client is out of reach."""
    kind, _, version = client.partition("-")
    try:
        command = _COMMANDS[kind](version, home)
    except (JavaMissingError, subprocess.SubprocessError, OSError) as error:
        detail = getattr(error, "stderr", None) or error
        pytest.skip(f"the {kind} client is out of reach: {str(detail)[-600:]}")
    return ForeignSender([*command, name_servers, topic], home)


def _java(version: str, home: Path) -> list[str]:
    classes = client_classpath(version)
    return java_command(classes, "rocketpost.interop.Sender", heap="128m", home=home)


def _cpp(version: str, home: Path) -> list[str]:
    folder = TARGET / "cpp"
    with _made_once(folder):
        if not folder.exists():
            _fetch([sys.executable, "-m", "pip", "install", "--no-deps", "-t", str(folder), CPP])
    program = f"import sys; sys.path.insert(0, {str(folder)!r}); import runpy; "
    program += f"runpy.run_path({str(FOREIGN / 'sender_cpp.py')!r}, run_name='__main__')"
    return [sys.executable, "-c", program]


def _go(version: str, home: Path) -> list[str]:
    folder, source = TARGET / "go", FOREIGN / "sender.go"
    program = folder / "sender"
    with _made_once(folder):
        if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
            folder.mkdir(exist_ok=True)
            shutil.copy(source, folder)
            (folder / "go.mod").write_text("module sender\n\ngo 1.21\n")
            _fetch(["go", "get", GO], folder)
            _fetch(["go", "build", "-o", "sender", "."], folder)
    return [str(program)]


def _node(version: str, home: Path) -> list[str]:
    folder = TARGET / "node"
    with _made_once(folder):
        if not (folder / "node_modules" / "ali-ons").exists():
            folder.mkdir(exist_ok=True)
            (folder / "package.json").write_text('{"private": true}\n')
            _fetch(["npm", "install", "--ignore-scripts", "--no-audit", NODE], folder)
        shutil.copy(FOREIGN / "sender.js", folder)
    return ["node", str(folder / "sender.js")]


_COMMANDS: Final = {"java": _java, "cpp": _cpp, "go": _go, "node": _node}


@contextlib.contextmanager
def _made_once(folder: Path) -> Iterator[None]:
    """Keep other test processes from making the same thing meanwhile."""
    TARGET.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(command: Sequence[str], folder: Path | None = None) -> None:
    subprocess.run(
        command, cwd=folder, check=True, capture_output=True, text=True, timeout=_FETCH_SECONDS
    )


def _environment(home: Path) -> dict[str, str]:
    return {**os.environ, "HOME": str(home)}  # the clients log below it
