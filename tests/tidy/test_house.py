"""Habits of the house that a machine can check."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

from rocketpost.server.settings.broker import BrokerConfig
from rocketpost.server.settings.foreign_keys import IGNORED, REFUSED_WHEN
from rocketpost.server.settings.group import GroupConfig
from rocketpost.server.settings.namesrv import NamesrvConfig
from rocketpost.server.settings.tls import TlsConfig
from rocketpost.settings import keys_of
from rocketpost.store.config import StoreConfig

from .sources import PATHS, SOURCE, name_of, trees

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = (BrokerConfig, StoreConfig, GroupConfig, NamesrvConfig, TlsConfig)

LINES_MAX = 500
LONGER = {
    "kernel/record_columns.py": 600,  # one unit for the compiler
}
"""Modules that are longer, and how long they may be; they may only get shorter."""

MODULES_MAX = 22
"""Most modules of one package, without those of its subpackages."""


def names_called_in(function: ast.AsyncFunctionDef) -> set[str]:
    """Return what an ``async def`` calls itself, not what functions inside it call."""
    called = set()
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.Lambda | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.Call):
            target = node.func
            called.add(target.attr if isinstance(target, ast.Attribute) else ast.unparse(target))
        waiting += ast.iter_child_nodes(node)
    return called


def blocking_calls(tree: ast.Module) -> list[str]:
    """Return the calls by which coroutines of a module would block the loop."""
    return [
        f"{node.name} calls {name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.AsyncFunctionDef)
        for name in sorted(names_called_in(node))
        if name.endswith("_blocking")
    ]


def test_the_loop_is_never_blocked() -> None:
    found = {name: calls for name, tree in trees().items() if (calls := blocking_calls(tree))}
    assert not found, "hand it to asyncio.to_thread"


def test_a_call_that_blocks_the_loop_is_noticed() -> None:
    tree = ast.parse("async def a():\n    self.save_blocking()\n    to_thread(b_blocking)")
    assert blocking_calls(tree) == ["a calls save_blocking"]


def test_modules_say_what_lives_in_them() -> None:
    assert [name for name, tree in trees().items() if not ast.get_docstring(tree)] == []


@pytest.mark.parametrize("word", ["TODO", "FIXME", "XXX "])
def test_nothing_is_left_to_do(word: str) -> None:
    texts = {name_of(path): path.read_text() for path in PATHS}
    named = [name for name, text in texts.items() if word in text.replace("TOPIC_XXXX", "")]
    assert named == []


def test_modules_are_short() -> None:
    sizes = {name_of(path): len(path.read_text().splitlines()) for path in PATHS}
    long = {name: size for name, size in sizes.items() if size > LONGER.get(name, LINES_MAX)}
    assert not long, "two things live in one module: split it"


def test_packages_are_small() -> None:
    counts = Counter(name_of(path.parent) for path in PATHS if not path.stem.startswith("__"))
    flat = {name: count for name, count in counts.items() if count > MODULES_MAX}
    assert not flat, "a reader is lost in a flat package: group its modules"


def test_no_setting_is_both_known_and_ignored() -> None:
    known = {*keys_of(BrokerConfig), *keys_of(StoreConfig), *keys_of(GroupConfig)}
    assert not known & set(IGNORED)
    assert not (set(REFUSED_WHEN) & known) - {"enableSlaveActingMaster"}
    assert not set(IGNORED) & set(REFUSED_WHEN)


@pytest.mark.parametrize("cls", SETTINGS)
def test_every_setting_is_documented(cls: type) -> None:
    text = (ROOT / "docs" / "guide" / "settings.md").read_text()
    missing = [key for key in keys_of(cls) if f"`{key}`" not in text]
    assert not missing


def test_nothing_that_can_change_at_run_time_reaches_a_file_or_a_shell() -> None:
    dangerous = re.compile("[Pp]ath|Dir|[Hh]ome|Addr|Command|Shell|File$|Name$")
    for cls in SETTINGS:
        for key, field in keys_of(cls).items():
            if field.metadata["mutable"]:
                assert not dangerous.search(key), key
                assert field.type in ("int", "bool", "float") or key in (
                    "deleteWhen",
                    "logLevel",
                ), key


def test_the_readme_starts_with_its_two_commands() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    block = lines[lines.index("```") + 1 :][:2]
    assert [line.split("#")[0].strip() for line in block] == ["make run", "make test"]
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"`make (\w+)`", (ROOT / "CONTRIBUTING.md").read_text()):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_decisions_are_short_and_complete() -> None:
    for path in sorted((ROOT / "docs" / "decisions").glob("*.md")):
        text = path.read_text()
        assert len(text.splitlines()) <= 60, path.name
        for part in ("Status:", "## Context", "## Decision", "## Consequences"):
            assert part in text, f"{path.name} lacks {part}"


def test_servers_decode_headers_in_the_dispatcher_alone() -> None:
    servers = [path for path in PATHS if "server" in path.relative_to(SOURCE).parts]
    decoding = [path.name for path in servers if "command.read(" in path.read_text()]
    assert decoding == ["dispatch.py"]


def test_the_map_is_short() -> None:
    assert len((ROOT / "ARCHITECTURE.md").read_text().splitlines()) < 350
