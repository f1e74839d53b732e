"""The ``rocketpost`` command."""

from __future__ import annotations

import subprocess
import sys

from click.testing import CliRunner

from rocketpost import VERSION
from rocketpost.cli import rocketpost
from rocketpost.kernel import FORM

HEAVY = ("pyspark", "pyarrow", "numpy", "asyncio", "msgspec")


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from click.testing import CliRunner; from rocketpost.cli import rocketpost; "
        "before = set(sys.modules); "
        "assert 'pipeline' in CliRunner().invoke(rocketpost, ['--help']).output; "
        f"print([name for name in {HEAVY} if name in set(sys.modules) - before])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", (done.stdout, done.stderr)


def test_pipelines_are_found() -> None:
    shown = CliRunner().invoke(rocketpost, ["pipeline", "--help"]).output
    assert "archive" in shown
    assert "--help" in CliRunner().invoke(rocketpost, ["pipeline", "archive", "--help"]).output


def test_the_version_is_shown() -> None:
    shown = CliRunner().invoke(rocketpost, ["--version"]).output
    assert shown == f"rocketpost, version {VERSION}, kernel {FORM.word}\n"
