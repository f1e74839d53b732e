"""The walks in ARCHITECTURE.md name modules that exist, and their counts are right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "rocketpost"
PACKAGES = "|".join(path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists())
MODULE = re.compile(rf"`((?:{PACKAGES})\.[\w.]+)`")
SECTION = (ROOT / "ARCHITECTURE.md").read_text().partition("\n## Walks\n")[2].partition("\n## ")[0]
WALKS = {walk.partition("\n")[0]: walk for walk in SECTION.split("\n### ")[1:]}
NAMES = sorted(set(MODULE.findall(SECTION)))


def exists(name: str) -> bool:
    """Tell whether the package has a module of this name."""
    return SOURCE.joinpath(*name.split(".")).with_suffix(".py").is_file()


def test_there_are_seven_walks() -> None:
    assert len(WALKS) == 7
    assert len(NAMES) > 30


@pytest.mark.parametrize("name", NAMES)
def test_the_modules_of_walks_exist(name: str) -> None:
    assert exists(name)


def test_a_module_that_is_missing_is_noticed() -> None:
    assert not exists("store.log.no_such_module")


@pytest.mark.parametrize("title", WALKS)
def test_rooms_modules_and_crossings_are_counted_right(title: str) -> None:
    lines = re.findall(r"^\d+\. (.+?): ", WALKS[title], re.MULTILINE)
    modules = {name for line in lines for name in MODULE.findall(line)}
    counts = re.search(r"^(\d+) rooms in (\d+) modules; (\d+|no) crossing", WALKS[title], re.M)
    assert counts is not None
    rooms, different, crossings = counts.groups()
    assert int(rooms) == len(lines)
    assert int(different) == len(modules)
    assert crossings.replace("no", "0") == str(sum(line.endswith(" >") for line in lines))
