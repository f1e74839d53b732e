"""What README and guides print is run exactly as printed: programs and ``mqadmin`` commands.

The servers have free ports; connections to the printed ports go there. A block whose first line is
``# Not run: <reason>`` is left out, and its reader sees why. Spark's page is one program, which
``spark/test_printed.py`` runs; here it is checked for names that nobody defines.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rocketpost.client import Message
from rocketpost.client.blocking import Producer
from rocketpost.testing import Cluster

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
RUNNER = Path(__file__).with_name("run_printed.py")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "guide").glob("*.md"))]
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^(?:    |\$ )?(?:\.venv/bin/)?mqadmin (.+?)(?: {2,}#.*)?$", re.MULTILINE)
PLACEHOLDER = re.compile(r"\b[A-Z]{2,}\b(?!=)|\.\.\.|<")
QUOTED = re.compile(r'"[^"]*"|\'[^\']*\'')
NOT_RUN = "# Not run: "
SPARK = "spark"
TOPICS = ("Orders", "Jobs", "Prices", "Reminders")


class Block(NamedTuple):
    page: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks() -> list[Block]:
    found = []
    for page in PAGES:
        text = page.read_text()
        for match in FENCED.finditer(text):
            if match[1] == "python":
                found.append(Block(page, text.count("\n", 0, match.start()) + 2, match[2]))
    return found


def uses_spark(block: Block) -> bool:
    return block.page.name == "spark.md" or "rocketpost.spark" in block.text


def is_conftest(block: Block) -> bool:
    return "pytest_plugins" in block.text or "def rocketmq_settings" in block.text


BLOCKS = blocks()
PROGRAMS = [
    block
    for block in BLOCKS
    if not uses_spark(block)
    and not block.text.startswith(NOT_RUN)
    and "def test_" not in block.text
    and not is_conftest(block)
]


class Runner:
    """Runs what is printed, one after the other."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, **job: Any) -> tuple[int, str]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        code, output = json.loads(self._process.stdout.readline())
        return code, output


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    directory = tmp_path_factory.mktemp("printed")
    settings = {"brokerClusterName": "DefaultCluster"}
    with Cluster(directory, settings=settings) as cluster:
        with Producer("printed", name_servers=cluster.addresses) as producer:
            for topic in TOPICS:
                message = Message(topic, b"first", tags="paid", keys="order-17", sharding_key="k")
                producer.send(message)
        ports = {
            "9876": cluster.name_server_ports[0],
            "10911": int(cluster.broker_addresses[0].rpartition(":")[2]),
        }
        with subprocess.Popen(
            [sys.executable, "-W", "error", str(RUNNER), json.dumps(ports)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=directory,
            env={**os.environ, "NAMESRV_ADDR": "127.0.0.1:9876", "ORDERS_SECRET": "secret"},
        ) as process:
            try:
                yield Runner(process)
            finally:
                process.kill()


COMMANDS = [
    Block(page, text.count("\n", 0, match.start()) + 1, match[1])
    for page in PAGES
    for text in [page.read_text()]
    for match in COMMAND.finditer(text)
    if page.name in ("README.md", "filters.md", "timers.md", "priority.md", "exactly-once.md")
    and not PLACEHOLDER.search(QUOTED.sub("", match[1]).replace("=PRIORITY", ""))
]


def test_commands(runner: Runner) -> None:
    # Before the programs, some of which need what these set.
    failed = []
    for command in COMMANDS:
        code, output = runner.run(kind="mqadmin", arguments=shlex.split(command.text))
        if code:
            failed.append(f"{command}: mqadmin {command.text}\n{output}")
    assert not failed, "\n".join(failed)
    assert len(COMMANDS) >= 8


@pytest.mark.parametrize("block", PROGRAMS, ids=map(str, PROGRAMS))
def test_programs(runner: Runner, block: Block) -> None:
    endless = "run_forever()" in block.text
    code, output = runner.run(kind="python", text=block.text, endless=endless)
    assert code == 0, output
    assert "Traceback" not in output


def test_tests(tmp_path: Path) -> None:
    """Tests that a page prints pass in a project of their own, with the fixtures it describes."""
    tests = [block for block in BLOCKS if "def test_" in block.text]
    conftest = [block.text for block in BLOCKS if is_conftest(block)]
    assert len(conftest) == 2
    (tmp_path / "conftest.py").write_text("\n".join(conftest))
    for at, block in enumerate(tests):
        (tmp_path / f"test_{at}.py").write_text(block.text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio", "."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    assert f"{len(tests)} passed" in done.stdout


def test_no_page_prints_what_a_file_cannot_hold() -> None:
    for block in BLOCKS:
        ast.parse(block.text, filename=str(block))  # no await outside of a function


def test_names_on_the_page_of_spark_are_defined(tmp_path: Path) -> None:
    page = [block.text for block in BLOCKS if block.page.name == "spark.md"]
    program = tmp_path / "page.py"
    program.write_text(
        "from rocketpost.spark.session import make_session\nspark = make_session('page')\n"
        + "\n".join(page)
    )
    checked = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821", str(program)],
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stdout


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for title, target in re.findall(r"\[([^\]]+)\]\(([^)#\s]+)[^)]*\)", page.read_text()):
            if "://" in target:
                continue
            assert (page.parent / target).exists(), f"{page.name}: {target}"
            numbers = re.findall(r"\b(\d{4})\b", title)
            if numbers and "decisions/" in target:
                assert numbers == re.findall(r"/(\d{4})-", target), f"{page.name}: {title}"
