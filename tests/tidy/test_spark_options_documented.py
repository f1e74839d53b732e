"""The guide's tables of Spark's options say what the code takes, with the defaults that it has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rocketpost.settings import format_value, keys_of
from rocketpost.spark.log.options import LogOptions
from rocketpost.spark.options import ALIASES, SourceOptions
from rocketpost.spark.sink.options import SinkOptions

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "spark.md"
TABLES = {
    "A topic": SourceOptions,
    "Rows to topics": SinkOptions,
    "A store directory": LogOptions,
}
IMPLIED = {
    "",
    "none",
    "required",
    "one is required",
    "all",
    "stream `latest`, batch `earliest`",
    "from `checkpointLocation`",
    "the batch of a stream, else 0",
}
"""What stands for nothing given, with what that comes to."""
ABOVE = "as above"
"""Said of options that mean what they mean in the first table, defaults and all."""


def table(section: str) -> dict[str, tuple[str, str]]:
    """Return the options that a section's first table of them lists: defaults and meanings."""
    text = GUIDE.read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    rows = text.partition("| option | default | meaning |\n|---|---|---|\n")[2].partition("\n\n")[0]
    found: dict[str, tuple[str, str]] = {}
    for row in rows.splitlines():
        _, names, default, meaning, _ = map(str.strip, re.split(r"(?<!\\)\|", row))
        keys = re.findall(r"`([^`]+)`", names)
        assert ", ".join(f"`{key}`" for key in keys) == names, row
        defaults = [default] * len(keys) if default in IMPLIED else default.split(", ")
        assert len(defaults) == len(keys), row
        for key, each in zip(keys, defaults, strict=True):
            assert key not in found, f"{key} is there twice"
            found[key] = (each, meaning)
    return found


def said(default: str) -> str:
    """Return a default as the code writes it."""
    if default in IMPLIED:
        return ""
    count, _, unit = default.strip("`").partition(" ")
    return str(int(count) * 1024**2) if unit == "MiB" else count


@pytest.mark.parametrize("section", TABLES)
def test_every_option_is_in_its_table_and_no_other(section: str) -> None:
    assert set(table(section)) == set(keys_of(TABLES[section]))


@pytest.mark.parametrize("section", TABLES)
def test_the_defaults_are_those_of_the_code(section: str) -> None:
    above = {key: field.default for key, field in keys_of(SourceOptions).items()}
    for key, field in keys_of(TABLES[section]).items():
        default, meaning = table(section)[key]
        if meaning.startswith(ABOVE) and key in above:
            assert field.default == above[key], key
        else:
            assert said(default) == format_value(field.default), key


def test_other_names_are_told() -> None:
    text = GUIDE.read_text()
    known = {key.lower() for key in keys_of(SourceOptions)}
    for alias, key in ALIASES.items():
        assert key.lower() in known
        assert f"`{alias}`" in text
