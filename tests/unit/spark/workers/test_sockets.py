"""Sockets lie where only their owner may go, and TCP does where they cannot."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from rocketpost.spark.workers import sockets
from rocketpost.spark.workers.sockets import DIRECTORY, ENABLED, socket_settings


def test_the_directory_is_private_and_is_removed_with_the_process() -> None:
    script = (
        "import os\n"
        "from rocketpost.spark.workers.sockets import DIRECTORY, socket_settings\n"
        "os.umask(0)\n"
        "directory = socket_settings()[DIRECTORY]\n"
        "open(directory + '/left', 'w').close()\n"
        "print(directory, oct(os.stat(directory).st_mode & 0o777))\n"
        "assert socket_settings()[DIRECTORY] == directory\n"
        "if os.fork() == 0: raise SystemExit\n"
        "os.wait()\n"
        "assert os.path.exists(directory)\n"
    )
    command = [sys.executable, "-W", "error", "-c", script]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    directory, mode = said.stdout.split()
    assert mode == "0o700"
    assert not Path(directory).exists()


@pytest.mark.parametrize(("parent_bytes", "fits"), [(48, True), (49, False)])
def test_a_path_may_be_as_long_as_spark_can_use(
    monkeypatch: pytest.MonkeyPatch, parent_bytes: int, *, fits: bool
) -> None:
    parent = "/" + "t" * (parent_bytes - 1)
    monkeypatch.setattr("tempfile.gettempdir", lambda: parent)
    monkeypatch.setattr(sockets, "_make_directory", lambda parent: Path(parent) / "rp-12345678")
    wanted = {ENABLED: "true", DIRECTORY: f"{parent}/rp-12345678"}
    assert socket_settings() == (wanted if fits else {})


def test_without_unix_sockets_there_is_nothing_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "AF_UNIX")
    assert socket_settings() == {}
