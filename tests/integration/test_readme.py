"""What the README tells a new user to do works as printed."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text()


def test_the_files_of_its_commands_are_there() -> None:
    files = re.findall(r"^\.venv/bin/.* -c (\S+\.conf)$", TEXT, re.MULTILINE)
    assert len(files) == 2
    assert all((ROOT / file).is_file() for file in files)
