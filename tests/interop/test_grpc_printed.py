"""The guide's program for the official gRPC client is run as printed, but for the port."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from interop.official import tools
from rocketpost.testing.process import ServerProcess, free_port

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "grpc.md"
UP = ("-c", "from rocketpost.cli import rocketpost; rocketpost()", "up")


def _blocks(start: str) -> list[str]:
    """Return the blocks of the page with a line that begins so."""
    blocks = PAGE.read_text().split("```")[1::2]
    return [block for block in blocks if f"\n{start}" in block]


@pytest.fixture(scope="module")
def python() -> Path:
    try:
        return tools.python()
    except tools.ToolMissingError as missing:
        pytest.skip(str(missing))


def test_the_program_of_the_guide_runs_on_its_topics(python: Path, tmp_path: Path) -> None:
    name_server, port = free_port(), free_port()
    arguments = ["--data", str(tmp_path / "data"), "--namesrv-port", str(name_server)]
    arguments += ["--broker-port", "0", "--grpc-port", str(port)]
    (topics,) = _blocks("mqadmin ")
    (program,) = _blocks("from rocketmq import")
    with ServerProcess(arguments, ready=rf"connect to 127.0.0.1:{port}", program=UP):
        for line in topics.strip().splitlines():
            words = shlex.split(line.replace("127.0.0.1:9876", f"127.0.0.1:{name_server}"))
            words[0] = str(Path(sys.executable).with_name(words[0]))
            subprocess.run(words, check=True, capture_output=True)
        assert program.count("127.0.0.1:8081") == 1
        text = program.removeprefix("python").replace("127.0.0.1:8081", f"127.0.0.1:{port}")
        done = subprocess.run(
            [python, "-c", text], capture_output=True, text=True, timeout=60, cwd=tmp_path
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1:] == ["b'paid'"]
