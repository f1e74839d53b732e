"""The tables of options in the Spark guide list the options of the code, with their defaults."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rocketpost.settings import format_value, keys_of
from rocketpost.spark.log.options import LogOptions
from rocketpost.spark.options import ALIASES, SourceOptions
from rocketpost.spark.sink.options import SinkOptions

GUIDE = Path(__file__).parents[2] / "docs" / "guide"
TABLES = {
    "spark-topics.md": SourceOptions,
    "spark-sink.md": SinkOptions,
    "spark-store.md": LogOptions,
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
"""Cells that stand for a default of None or an empty text."""
SAME = "as for "
"""The beginning of a meaning that refers to the table of the source, defaults included."""


def table(page: str) -> dict[str, tuple[str, str]]:
    """Return the options in the first table of a page: defaults and meanings."""
    text = (GUIDE / page).read_text()
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


@pytest.mark.parametrize("page", TABLES)
def test_every_option_is_in_its_table_and_no_other(page: str) -> None:
    assert set(table(page)) == set(keys_of(TABLES[page]))


@pytest.mark.parametrize("page", TABLES)
def test_the_defaults_are_those_of_the_code(page: str) -> None:
    source = {key: field.default for key, field in keys_of(SourceOptions).items()}
    for key, field in keys_of(TABLES[page]).items():
        default, meaning = table(page)[key]
        if meaning.startswith(SAME) and key in source:
            assert field.default == source[key], key
        else:
            assert said(default) == format_value(field.default), key


def test_other_names_are_reported() -> None:
    text = (GUIDE / "spark-topics.md").read_text()
    known = {key.lower() for key in keys_of(SourceOptions)}
    for alias, key in ALIASES.items():
        assert key.lower() in known
        assert f"`{alias}`" in text
