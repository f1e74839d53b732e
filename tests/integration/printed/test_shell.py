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

Blocks of ``spark.md`` and others that start Spark are run by ``test_shell_spark.py``.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from rocketpost.client import Message, Producer
from rocketpost.server.up import SingleNode
from rocketpost.settings import format_properties
from rocketpost.testing import Cluster
from rocketpost.testing.cluster import SMALL_STORE
from rocketpost.testing.process import free_port

from . import story
from .pages import NOT_COMMANDS, NOT_RUN, OTHERS, ROOT, SHELL, Block, blocks_of, commands_of
from .shell import Shell, is_endless

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


SIZES = {
    **SMALL_STORE,
    "mappedFileSizeCommitLog": str(128 * 1024),
    "maxMessageSize": str(64 * 1024),
}


async def make_store(directory: Path) -> None:
    """Make a store of several files, and the ``broker.conf`` for it."""
    node = SingleNode(directory, namesrv_port=0, broker_port=0, settings=SIZES)
    await node.start()
    try:
        async with Producer("orders", name_servers=node.address) as producer:
            for _ in range(40):  # of bytes that nobody can compress
                await producer.send(Message("orders", os.urandom(16 * 1024)))
    finally:
        await node.stop()
    values = {"storePathRootDir": str(directory / "store"), "brokerName": "broker-a", **SIZES}
    (directory / "broker.conf").write_text(format_properties(values))


def lose_file(directory: Path) -> str:
    """Delete the second file of the commit log and return its name."""
    files = sorted(path for path in (directory / "store/commitlog").iterdir() if path.is_file())
    assert len(files) > 3
    files[1].unlink()
    return files[1].name


def test_a_missing_file_is_refused_in_the_words_of_the_page(tmp_path: Path) -> None:
    asyncio.run(make_store(tmp_path))
    name = lose_file(tmp_path)
    [printed] = [
        block.text
        for block in blocks_of(ROOT / "docs/guide/damage.md")
        if block.start.startswith("the commit log in /data/store/commitlog lacks ")
    ]
    printed = printed.replace("/data/store", str(tmp_path / "store"))
    printed = re.sub(r"\b\d{20}\b", name, printed)
    shell = Shell(tmp_path, {9876: free_port(), 10911: free_port()})
    done = shell.call("mqbroker -c broker.conf")
    assert done.returncode
    assert " ".join(printed.split()) in " ".join(done.stderr.split())


@pytest.mark.parametrize("table", [NOT_COMMANDS, NOT_RUN], ids=["not commands", "not run"])
def test_blocks_that_are_left_out_exist(table: Mapping[tuple[str, str], str]) -> None:
    for page, start in table:
        found = [
            block for block in OTHERS if block.page.name == page and block.start.startswith(start)
        ]
        assert len(found) == 1, f"{page} has {len(found)} blocks that begin with {start!r}"
