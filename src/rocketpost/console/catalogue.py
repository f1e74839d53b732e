"""Texts of the console in all its languages, from one file: ``catalogue.toml``.

A text has a key, such as ``topics.title``, and may have placeholders ``{like_this}``. A missing key
or value is an error, so that tests find it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any, Final

LANGUAGES: Final = {"en": "English", "zh": "中文"}
DEFAULT: Final = "en"


class Catalogue:
    """Texts by key and language."""

    def __init__(self, texts: Mapping[str, Mapping[str, str]]) -> None:
        self._texts = dict(texts)

    def text(self, language: str, key: str, **values: object) -> str:
        """Return a text with its placeholders filled."""
        found = self._texts[key][language]
        return found.format(**values) if values else found

    def has(self, key: str) -> bool:
        """Tell whether there is a text for a key."""
        return key in self._texts

    def entries(self) -> Iterator[tuple[str, Mapping[str, str]]]:
        """Yield each key with its texts."""
        yield from self._texts.items()


def load_catalogue() -> Catalogue:
    """Read the file of texts, which is part of the package."""
    source = resources.files(__package__).joinpath("catalogue.toml").read_text("utf-8")
    return Catalogue(dict(_flatten(tomllib.loads(source), "")))


def choose_language(cookie: str, accepted: str) -> str:
    """Return the language of a visitor, by their choice or their browser's."""
    if cookie in LANGUAGES:
        return cookie
    wishes = []
    for number, part in enumerate(accepted.split(",")[:20]):
        name, _, weight = part.strip().partition(";q=")
        try:
            wishes.append((-float(weight or 1), number, name.lower().split("-")[0]))
        except ValueError:
            continue
    return next((name for _, _, name in sorted(wishes) if name in LANGUAGES), DEFAULT)


def _flatten(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, dict[str, str]]]:
    for key, value in table.items():
        if isinstance(value, dict) and not value.keys() <= LANGUAGES.keys():
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, dict(value)
