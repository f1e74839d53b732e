"""Gathers the pages of the documentation site: ``docs/``, and pages that are made from other files.

The decision records get an index, so that a new record needs no second entry, and the documents at
the root of the repository become pages. ``make docs`` runs this before it builds the site. It is a
script and not a hook of MkDocs, so that any tool that reads ``mkdocs.yml`` can build the site.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
ROOT_PAGES = ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md")


def decision_index(folder: Path) -> str:
    """Return the index page of the decision records in ``folder``."""
    lines = ["# Decisions", "", "One record per decision: context, decision and consequences.", ""]
    for path in sorted(folder.glob("[0-9]*.md")):
        title = path.read_text().splitlines()[0].removeprefix("# ")
        lines.append(f"- [{title}]({path.name})")
    return "\n".join(lines) + "\n"


def root_page(path: Path) -> str:
    """Return the text of a document at the root, with links as seen from ``docs/``."""
    return re.sub(r"\]\(docs/", "](", path.read_text())


def gather(target: Path) -> None:
    """Write all pages of the site to ``target``, which is emptied first."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(ROOT / "docs", target, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    (target / "decisions" / "index.md").write_text(decision_index(target / "decisions"))
    for name in ROOT_PAGES:
        (target / name.lower()).write_text(root_page(ROOT / name))


if __name__ == "__main__":
    gather(Path(sys.argv[1]))
