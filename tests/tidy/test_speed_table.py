"""The speed table of the README is made from the published result, never written by hand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PUBLISHED = Path(__file__).parents[2] / "benchmarks" / "published.py"


def test_the_speed_table_of_the_readme_is_that_of_the_published_result() -> None:
    command = [sys.executable, str(PUBLISHED), "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
