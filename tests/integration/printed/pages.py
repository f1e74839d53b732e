"""The blocks of README and guides, and the commands in them."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[3]
GUIDE = ROOT / "docs" / "guide"
SPARK_PAGES = re.findall(
    r"guide/(spark[\w-]*\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE
)
"""The pages about Spark in the order of the site's navigation; each builds on those before it."""
OTHER_PAGES = sorted(page for page in GUIDE.glob("*.md") if page.name not in SPARK_PAGES)
PAGES = [ROOT / "README.md", *OTHER_PAGES, *(GUIDE / name for name in SPARK_PAGES)]
FENCE = re.compile(r" *```(\w*)$")
INDENT = " " * 4
PROMPT = "$ "

IN_DAMAGE_PAGE = "what a broker says; test_damage_page.py compares it"
SETTINGS = "lines of a settings file; tests/unit/server/secure/ tries each key"
NOT_COMMANDS = {
    ("README.md", "┌─────────────┐   who serves topic T?"): "a drawing",
    ("access-control.md", "authenticationEnabled=true"): "lines of a settings file",
    ("console.md", "SELECT tags, count(*)"): "SQL; tests/unit/console/query/test_worker.py runs it",
    ("damage.md", "commit log is damaged position="): IN_DAMAGE_PAGE,
    ("damage.md", "messages are missing in a queue "): IN_DAMAGE_PAGE,
    ("damage.md", "queue entry was damaged and is mended "): IN_DAMAGE_PAGE,
    ("damage.md", "the commit log in /data/store/commitlog lacks "): IN_DAMAGE_PAGE,
    ("damage.md", "the commit log /fast/log is in use "): IN_DAMAGE_PAGE,
    ("filters.md", "price > 100          >= < <= = <>"): "the syntax of filters",
    ("monitoring.md", "metricsExporterType=PROM"): "lines of a settings file",
    ("monitoring.md", "scrape_configs:"): "lines of Prometheus' settings",
    ("monitoring.md", "metricsExporterType=OTLP_GRPC"): "lines of a settings file",
    ("monitoring.md", "logFormat=json"): "lines of a settings file",
    ("tls.md", "tls.server.mode=enforcing"): SETTINGS,
    ("tls.md", "tls.client.trustCertPath="): SETTINGS,
    ("tls.md", "tls.server.need.client.auth=require"): SETTINGS,
    ("tls.md", "proxyProtocolTrusted=10.1.0.0/16"): SETTINGS,
    ("mqadmin.md", "CONSUMED      the group has passed it"): "words in the output of explain",
}
"""Blocks that hold no command, by page and how they begin."""

NOT_RUN = {
    ("console.md", "pip install 'rocketpost[console]'"): (
        "it would wait for browsers; tests/integration/test_console.py starts the console"
    ),
    ("README.md", "make run     # a guided tour"): (
        "`make test` is the run that this test is part of, and `make run` sets up the virtual "
        "environment and calls `rocketpost tour`, whose parts are run by tests/unit/test_tour.py"
    ),
    ("more-cores.md", "mqbroker -n 127.0.0.1:9876 -c broker.conf --brokers 4"): (
        "brokers 1 to 3 listen at ports that are counted from the first one, which other tests may "
        "use; tests/integration/test_fleet.py runs both commands"
    ),
    ("replication.md", "mqnamesrv &"): (
        "the servers would stay, at ports that other tests may use; "
        "tests/integration/test_sample_files.py starts them with the same files"
    ),
    ("group-operations.md", "rocketpost group status "): (
        "needs a group of three; tests/integration/test_admin_groups.py runs these commands"
    ),
    ("group-operations.md", "rocketpost group transfer "): (
        "needs a group of three; tests/integration/test_admin_groups.py runs these commands"
    ),
    ("group-operations.md", "rocketpost group drain "): (
        "needs a group of three; tests/integration/test_admin_groups.py runs these commands"
    ),
    ("group-operations.md", "rocketpost group add "): (
        "needs a group of three; tests/integration/test_admin_groups.py runs these commands"
    ),
    ("group-operations.md", "mqadmin haStatus "): (
        "needs a group of three; tests/integration/test_admin_groups.py runs these commands"
    ),
    ("grpc.md", "{"): "a settings file",
    ("grpc.md", "rocketpost up  "): (
        "the servers would stay, at ports that other tests may use; tests/integration/proxy/ runs "
        "both commands at free ports"
    ),
    ("grpc.md", "mqadmin updateTopic"): (
        "needs the servers of the block before; tests/integration/proxy/ runs these commands"
    ),
    ("groups.md", "rocketpost up --nodes 3"): (
        "the servers would stay, at ports that other tests may use; "
        "tests/integration/test_group_up.py runs it at free ports"
    ),
    ("groups.md", "mqnamesrv &"): (
        "the servers would stay, at ports that other tests may use; "
        "tests/integration/test_sample_files.py starts them with the same files"
    ),
    ("acting-master.md", "mqadmin clusterList  -n ns:9876 "): (
        "needs a group with a lost master; tests/integration/test_acting_processes.py has one"
    ),
    ("spark-sink.md", ".venv/bin/pytest tests/chaos/test_spark.py "): (
        "takes the better part of an hour; `make chaos` runs the same test with fewer messages"
    ),
}
"""Blocks of commands that are not run, by page and how they begin, and why."""


class Block(NamedTuple):
    """A block that a page prints, without its indent."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"

    @property
    def start(self) -> str:
        """Its first line, without the indent of its own."""
        return self.text.strip().partition("\n")[0]

    @property
    def chapter(self) -> str:
        """The name of its page; the pages about Spark are one chapter."""
        return "spark" if self.page.name in SPARK_PAGES else self.page.name

    @property
    def uses_spark(self) -> bool:
        """Whether its commands start Spark or follow some that do."""
        return self.chapter == "spark" or "rocketpost pipeline" in self.text


class Command(NamedTuple):
    """A command that a page prints, with the output that stands below it."""

    page: Path
    line: int
    text: str
    output: str | None

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}: {self.text}"


def blocks_of(page: Path) -> Iterator[Block]:
    """Yield the fenced and the indented blocks of a page."""
    lines = page.read_text().splitlines()
    at = 0
    while at < len(lines):
        if fence := FENCE.match(lines[at]):
            end = next(i for i in range(at + 1, len(lines)) if lines[i].strip() == "```")
            yield _block(page, at + 1, fence[1], lines[at + 1 : end])
            at = end + 1
        elif lines[at].startswith(INDENT) and not lines[at - 1].strip():
            end = at
            while end < len(lines) and (lines[end].startswith(INDENT) or not lines[end].strip()):
                end += 1
            yield _block(page, at, "", lines[at:end])
            at = end
        else:
            at += 1


def _block(page: Path, at: int, language: str, lines: list[str]) -> Block:
    return Block(page, at + 1, language, textwrap.dedent("\n".join(lines)).rstrip() + "\n")


def commands_of(block: Block) -> Iterator[Command]:
    """Yield the commands of a block: the lines after a prompt, or without any prompt all lines."""
    lines = block.text.splitlines()
    has_prompts = any(line.startswith(PROMPT) for line in lines)
    at = 0
    while at < len(lines):
        first = at
        while lines[at].endswith("\\"):
            at += 1
        text = "\n".join(lines[first : at + 1])
        at += 1
        output = None
        if has_prompts:
            text = text.removeprefix(PROMPT)
            below = at
            while at < len(lines) and not lines[at].startswith(PROMPT):
                at += 1
            output = "\n".join(lines[below:at])
        if text.strip():
            yield Command(block.page, block.line + first, text, output)


def is_listed(block: Block, table: dict[tuple[str, str], str]) -> bool:
    """Return whether a table names a block."""
    return any(block.page.name == page and block.start.startswith(start) for page, start in table)


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
PYTHON = [block for block in BLOCKS if block.language == "python"]
OTHERS = [block for block in BLOCKS if block.language != "python"]

SHELL = [
    block
    for block in OTHERS
    if not is_listed(block, NOT_COMMANDS) and not is_listed(block, NOT_RUN)
]
"""The blocks that are run by a shell."""
