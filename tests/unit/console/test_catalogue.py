"""Every text exists in every language, and templates have no text of their own."""

from __future__ import annotations

import re
import string
from pathlib import Path

import pytest

import rocketpost.console
from rocketpost.console.catalogue import LANGUAGES, choose_language, load_catalogue

ROOT = Path(rocketpost.console.__file__).parent
TEMPLATES = sorted((ROOT / "templates").glob("*.html"))
CATALOGUE = load_catalogue()
PARTS_OF_KEYS = re.compile(r"'([a-z_]+\.[a-z_]*)' \+")


def places(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name}


def used_keys() -> set[str]:
    texts = [path.read_text() for path in [*TEMPLATES, *ROOT.rglob("*.py")]]
    return {key for text in texts for key in re.findall(r"[\"']([a-z_]+\.[A-Za-z_]+)[\"']", text)}


def prefixes() -> set[str]:
    texts = [path.read_text() for path in [*TEMPLATES, *ROOT.rglob("*.py")]]
    found = {key for text in texts for key in PARTS_OF_KEYS.findall(text)}
    return found | {key for text in texts for key in re.findall(r"f\"([a-z_]+\.[a-z_]*)\{", text)}


def test_all_languages_have_the_same_texts_with_the_same_places() -> None:
    for key, texts in CATALOGUE.entries():
        assert texts.keys() == LANGUAGES.keys(), key
        assert all(texts.values()), key
        assert len({frozenset(places(text)) for text in texts.values()}) == 1, key


def test_every_text_is_used() -> None:
    used, begun = used_keys(), (*prefixes(), "reason.")  # reasons are found by their English texts
    idle = [key for key, _ in CATALOGUE.entries() if key not in used and not key.startswith(begun)]
    assert not idle


def test_every_key_in_a_template_has_a_text() -> None:
    asked = {
        key
        for path in TEMPLATES
        for key in re.findall(r"\bt\('([a-z_.A-Z]+)'[,)]", path.read_text())
    }
    assert not [key for key in asked if not CATALOGUE.has(key)]


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_templates_have_no_text_of_their_own(path: Path) -> None:
    text = re.sub(r"\{%.*?%\}|\{\{.*?\}\}|\{#.*?#\}", "", path.read_text(), flags=re.DOTALL)
    text = re.sub(r"<[^>]*>", "\n", text)
    words = set(re.findall(r"[A-Za-z]{2,}", text)) - {"Rocketpost"}
    assert not words


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_templates_escape_everything_and_need_no_weak_policy(path: Path) -> None:
    text = path.read_text()
    for word in ("|safe", "| safe", "autoescape", " style=", " onclick=", "javascript:", "<style"):
        assert word not in text, word
    assert not re.search(r"<script(?! src=)", text)


@pytest.mark.parametrize(
    ("cookie", "accepted", "language"),
    [
        ("", "", "en"),
        ("", "zh-CN,zh;q=0.9,en;q=0.8", "zh"),
        ("", "fr, zh;q=0.3, en;q=0.5", "en"),
        ("zh", "en", "zh"),
        ("xx", "en;q=x, zh", "zh"),
    ],
)
def test_the_language_is_the_visitors(cookie: str, accepted: str, language: str) -> None:
    assert choose_language(cookie, accepted) == language
