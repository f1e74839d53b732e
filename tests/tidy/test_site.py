"""The documentation site: every public name has a place, and every page is in the navigation."""

from __future__ import annotations

import importlib
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
DIRECTIVES = {
    name
    for page in (DOCS / "api").glob("*.md")
    for name in re.findall(r"^::: ([\w.]+)$", page.read_text(), re.MULTILINE)
}


@pytest.mark.parametrize("package", ["client", "client.blocking", "errors", "spark", "testing"])
def test_the_api_reference_has_every_public_name(package: str) -> None:
    module = importlib.import_module(f"rocketpost.{package}")
    shown = {
        name.rpartition(".")[2] for name in DIRECTIVES if name.rpartition(".")[0] == module.__name__
    }
    for whole in (f"rocketpost.{package}", "rocketpost.errors"):
        if whole in DIRECTIVES:
            shown |= set(importlib.import_module(whole).__all__)
    assert sorted(set(module.__all__) - shown) == []


def test_every_page_is_in_the_navigation() -> None:
    navigation = set(re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    made = {"architecture.md", "changelog.md", "contributing.md", "decisions/index.md"}
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    records = {page for page in pages if re.match(r"decisions/\d{4}-", page)}
    assert navigation == pages - records | made


@pytest.mark.parametrize("page", ["docs/index.md", "README.md"])
def test_every_guide_is_listed(page: str) -> None:
    listed = set(re.findall(r"guide/([\w-]+)\.md", (ROOT / page).read_text()))
    guides = {path.stem for path in (DOCS / "guide").glob("*.md")}
    if page == "README.md":  # names Spark's guides by the first of them
        guides = {guide for guide in guides if not guide.startswith("spark-")}
    assert sorted(guides - listed) == []


def test_decision_records_are_listed_by_title() -> None:
    index = runpy.run_path(str(DOCS / "site_pages.py"))["decision_index"](DOCS / "decisions")
    records = sorted(path.name for path in (DOCS / "decisions").glob("[0-9]*.md"))
    assert re.findall(r"\]\((.+?)\)$", index, re.MULTILINE) == records
