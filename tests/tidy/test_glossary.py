"""The glossary defines each term once, and the code that it names exists."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

GLOSSARY = Path(__file__).parents[2] / "docs" / "glossary.md"
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in GLOSSARY.read_text().splitlines()
    if line.startswith("|") and not line.startswith(("| term ", "|---"))
]
NAMES = sorted({name for row in ROWS for name in re.findall(r"`(rocketpost\.[\w.]+)`", row[-1])})


def resolve(name: str) -> object:
    """Return the module, class or attribute of a dotted name."""
    path = name.split(".")
    for end in range(len(path), 0, -1):
        try:
            found: object = importlib.import_module(".".join(path[:end]))
        except ModuleNotFoundError:
            continue
        for attribute in path[end:]:
            found = getattr(found, attribute)
        return found
    raise AssertionError(f"{name} does not exist")


def test_every_entry_has_a_term_a_meaning_and_a_place_for_code() -> None:
    assert len(ROWS) > 50
    assert [row for row in ROWS if len(row) != 3 or not row[0] or not row[1].endswith(".")] == []


def test_no_term_is_defined_twice() -> None:
    terms = [term.strip() for row in ROWS for term in row[0].split(",")]
    assert sorted({term for term in terms if terms.count(term) > 1}) == []


@pytest.mark.parametrize("name", NAMES)
def test_the_code_that_an_entry_names_exists(name: str) -> None:
    assert resolve(name) is not None


def test_code_that_is_missing_is_noticed() -> None:
    with pytest.raises(AttributeError):
        resolve("rocketpost.store.log.segment.NoSuchClass")
