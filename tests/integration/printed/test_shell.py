"""Shell commands in README and guides are run as printed, page by page; output is compared.

What differs from the page, and nothing else does:

- *Ports.* Python processes that connect to 9876 or 10911 of any host (``ns1``, ``localhost``), or
  listen there, get a free port of 127.0.0.1: ``ports/sitecustomize.py`` does that. Commands are
  not changed for it.
- *Directories.* Commands run in a scratch directory which is ``HOME`` as well, with ``.venv`` and
  ``conf`` as in a checkout. ``PATH`` begins with the directory of the commands.
- *Name servers.* Where the text of a guide tells readers to set ``NAMESRV_ADDR``, it is set.
- *Ids* that only a run can know: ``7F0000010ED27A81...`` and ``ID`` stand for those of the story.
- *Output* is compared with times, addresses, durations and the width of columns left aside.

Commands that start servers have ports and a directory of their own. Each server must say that it
is ready, stays until its block is done, and must end well on Ctrl-C. The other commands of all
pages share one cluster, on which ``story.py`` has made happen what the pages speak of.

Blocks of the pages about Spark and others that start Spark are run by ``test_shell_spark.py``.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from rocketpost.testing import Cluster
from rocketpost.testing.process import free_port

from . import story
from .pages import NOT_COMMANDS, NOT_RUN, OTHERS, ROOT, SHELL, Block, commands_of
from .shell import Shell, is_endless
from .test_damage_page import lose_file, make_store

pytestmark = pytest.mark.slow

BLOCKS = [block for block in SHELL if not block.uses_spark]
PAGES = sorted({block.page for block in BLOCKS})
MASKS = {
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}": "TIME",
    r"\d+\.\d+\.\d+\.\d+(:\d+)?": "ADDRESS",
    r"\d+ms\b": "DURATION",
    r" +": " ",
}


class Servers(NamedTuple):
    ports: Mapping[int, int]
    words: Mapping[str, str]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with Cluster(tmp_path_factory.mktemp("printed"), settings=story.SETTINGS) as cluster:
        words = asyncio.run(story.tell(cluster.addresses))
        broker_port = int(cluster.broker_addresses[0].rpartition(":")[2])
        yield Servers({9876: cluster.name_server_ports[0], 10911: broker_port}, words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_commands_of_a_page_do_what_it_says(
    page: Path, servers: Servers, tmp_path: Path
) -> None:
    environment = {} if page.name == "mqadmin.md" else {"NAMESRV_ADDR": "127.0.0.1:9876"}
    (tmp_path / "page").mkdir()
    shell = Shell(tmp_path / "page", servers.ports, words=servers.words, environment=environment)
    for block in BLOCKS:
        if block.page != page:
            continue
        if any(is_endless(command) for command in commands_of(block)):
            directory = tmp_path / str(block.line)
            directory.mkdir()
            run_servers(block, directory)
            continue
        for command in commands_of(block):
            output = shell.run(command)
            if command.output is not None:
                assert masked(output) == masked(command.output), str(command)


def run_servers(block: Block, directory: Path) -> None:
    """Run a block of servers; each must get ready and end well."""
    prepare(block, directory)
    shell = Shell(directory, {9876: free_port(), 10911: free_port()})
    try:
        for command in commands_of(block):
            shell.run(command)
        output = shell.stop()
    finally:
        shell.kill()
    if "mqnamesrv" in block.text:
        assert "not registered" not in output, output


def prepare(block: Block, directory: Path) -> None:
    """Make the files that a reader of the block has."""
    if block.page.name == "name-server.md":
        (directory / "namesrv.conf").write_text((ROOT / "conf/namesrv.conf").read_text())
    elif block.page.name == "damage.md":
        asyncio.run(make_store(directory))
        lose_file(directory)


def masked(output: str) -> list[str]:
    """Return the lines of an output without what differs from run to run."""
    for pattern, name in MASKS.items():
        output = re.sub(pattern, name, output)
    return [line.rstrip() for line in output.splitlines() if line.strip()]


@pytest.mark.parametrize("table", [NOT_COMMANDS, NOT_RUN], ids=["not commands", "not run"])
def test_skipped_blocks_exist(table: Mapping[tuple[str, str], str]) -> None:
    for page, start in table:
        found = [
            block for block in OTHERS if block.page.name == page and block.start.startswith(start)
        ]
        assert len(found) == 1, f"{page} has {len(found)} blocks that begin with {start!r}"
