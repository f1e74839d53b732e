"""What the README tells a new user to do works as printed."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text()


def test_the_files_of_its_commands_are_there() -> None:
    files = re.findall(r"^\.venv/bin/.* -c (\S+\.conf)$", TEXT, re.MULTILINE)
    assert len(files) == 2
    assert all((ROOT / file).is_file() for file in files)


@pytest.mark.slow
def test_its_test_passes(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    (source,) = (block for block in blocks if "def test_" in block)
    names: dict[str, Any] = {}
    exec(compile(source, "README.md", "exec"), names)
    (test,) = (value for name, value in names.items() if name.startswith("test_"))
    run: Callable[[Path], None] = test
    run(tmp_path)
