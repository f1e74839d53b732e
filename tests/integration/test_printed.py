"""The programs in README and guides are run exactly as printed.

The servers have free ports; connections to the printed ports go there. A block whose first line is
``# Not run: <reason>`` is left out, and its reader sees why. The pages about Spark are one program,
which ``spark/test_printed.py`` runs; here it is checked for names that nobody defines. The program
for the official gRPC client needs a package of its own; ``interop/test_grpc_printed.py`` runs it.
The commands in other blocks are run by the tests in ``printed/``.
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
from typing import Any

import pytest

from rocketpost.client import Message
from rocketpost.client.blocking import Producer
from rocketpost.testing import Cluster

from .printed.pages import PAGES, PYTHON, SHELL, Block, commands_of

pytestmark = pytest.mark.slow

RUNNER = Path(__file__).with_name("run_printed.py")
NOT_RUN = "# Not run: "
PREPARED = ("filters.md", "timers.md", "priority.md", "exactly-once.md")
TOPICS = ("Orders", "Jobs", "Prices", "Reminders")


def uses_spark(block: Block) -> bool:
    return block.chapter == "spark" or "rocketpost.spark" in block.text


def uses_official_client(block: Block) -> bool:
    return "from rocketmq import" in block.text


def is_conftest(block: Block) -> bool:
    return "def rocketmq_settings" in block.text


PROGRAMS = [
    block
    for block in PYTHON
    if not uses_spark(block)
    and not uses_official_client(block)
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


def prepare(runner: Runner) -> None:
    """Run the commands of the pages whose programs need what these set."""
    for block in SHELL:
        if block.page.name not in PREPARED:
            continue
        for command in commands_of(block):
            words = shlex.split(command.text, comments=True)[1:]
            code, output = runner.run(kind="mqadmin", arguments=words)
            assert code == 0, f"{command}\n{output}"


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
                runner = Runner(process)
                prepare(runner)
                yield runner
            finally:
                process.kill()


@pytest.mark.parametrize("block", PROGRAMS, ids=map(str, PROGRAMS))
def test_printed_programs_run(runner: Runner, block: Block) -> None:
    endless = "run_forever()" in block.text
    code, output = runner.run(kind="python", text=block.text, endless=endless)
    assert code == 0, output
    assert "Traceback" not in output


def test_tests(tmp_path: Path) -> None:
    """Tests that a page prints pass in a project of their own, with the fixtures it describes."""
    tests = [block for block in PYTHON if "def test_" in block.text]
    conftest = [block.text for block in PYTHON if is_conftest(block)]
    assert len(conftest) == 1
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
    for block in PYTHON:
        ast.parse(block.text, filename=str(block))  # no await outside of a function


def test_names_on_the_pages_about_spark_are_defined(tmp_path: Path) -> None:
    page = [block.text for block in PYTHON if block.chapter == "spark"]
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


def test_links_have_targets() -> None:
    for page in PAGES:
        for title, target in re.findall(r"\[([^\]]+)\]\(([^)#\s]+)[^)]*\)", page.read_text()):
            if "://" in target:
                continue
            assert (page.parent / target).exists(), f"{page.name}: {target}"
            numbers = re.findall(r"\b(\d{4})\b", title)
            if numbers and "decisions/" in target:
                assert numbers == re.findall(r"/(\d{4})-", target), f"{page.name}: {title}"
