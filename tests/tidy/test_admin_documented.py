"""Every mqadmin command is in the guide with its options, and is tried on real servers."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from rocketpost.admin.main import mqadmin

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs" / "guide" / "mqadmin.md").read_text()
TRIED = "".join(path.read_text() for path in (ROOT / "tests/integration").glob("test_admin*.py"))

# Listed once for all commands, or accepted for the sake of old scripts and without effect.
COMMON = {"-n", "-h", "--timeout", "--json", "--help"}
WITHOUT_EFFECT = {
    "resetOffsetByTime": {"-c"},
    "skipAccumulatedMessage": {"-c"},
    "queryMsgById": {"-u", "-c"},
    "queryMsgByKey": {"-c"},
    "queryMsgByUniqueKey": {"-c"},
    "topicStatus": {"-c"},
    "consumerProgress": {"-c"},
}


def row_of(name: str) -> str:
    """Return the line of the guide's tables that is about a command."""
    rows = re.findall(rf"^\| `{name}` .*$", GUIDE, re.M)
    assert len(rows) == 1, f"{name} has {len(rows)} rows in docs/guide/mqadmin.md"
    return str(rows[0])


def short_options(command: click.Command) -> set[str]:
    """Return the shortest form of each option."""
    return {min(each.opts, key=len) for each in command.params if isinstance(each, click.Option)}


COMMANDS = sorted(set(mqadmin.commands) - {"help"})


@pytest.mark.parametrize("name", COMMANDS)
def test_the_guide_has_the_command_and_its_options(name: str) -> None:
    options = short_options(mqadmin.commands[name])
    row = row_of(name)
    listed = set(re.findall(r"`(--?\w+)", row.split(" | ")[1]))
    assert listed == options - COMMON - WITHOUT_EFFECT.get(name, set())
    assert ("*J*" in row) == ("--json" in options)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_prints_json_if_asked(name: str) -> None:
    assert "--json" in short_options(mqadmin.commands[name])


@pytest.mark.parametrize("name", COMMANDS)
def test_required_options_are_marked(name: str) -> None:
    required = {
        min(each.opts, key=len)
        for each in mqadmin.commands[name].params
        if isinstance(each, click.Option) and each.required
    }
    starred = set(re.findall(r"`(--?\w+)[^`]*`\*", row_of(name).split(" | ")[1]))
    assert starred == required


@pytest.mark.parametrize("name", COMMANDS)
def test_the_command_is_tried_on_real_servers(name: str) -> None:
    assert f'"{name}"' in TRIED


def test_the_guide_names_no_command_that_is_not_there() -> None:
    named = set(re.findall(r"^\| `(\w+)`", GUIDE, re.M))
    assert named == set(COMMANDS)
