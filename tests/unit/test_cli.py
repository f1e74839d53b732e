"""The ``rocketpost`` command."""

from __future__ import annotations

import subprocess
import sys

import pytest
from click.testing import CliRunner

from rocketpost import VERSION
from rocketpost.cli import rocketpost
from rocketpost.kernel import FORM
from rocketpost.testing import free_port

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


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["-b", "bad"], "the broker 'bad' is not host:port"),
        (["-b", "10911"], "the broker '10911' is not host:port"),
        (["-n", "127.0.0.1:9876;bad"], "the name server 'bad' is not host:port"),
        (["-n", ";"], "the name server ';' is not host:port"),
    ],
)
def test_a_wrong_address_of_health_is_one_line(words: list[str], problem: str) -> None:
    result = CliRunner().invoke(rocketpost, ["health", *words])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"Error: {problem}\n"


def test_health_asks_each_name_server_of_a_list() -> None:
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    result = CliRunner().invoke(rocketpost, ["health", "-n", ";".join(addresses)])
    assert result.exit_code == 1
    assert [line.split(": ")[0] for line in result.stdout.splitlines()] == [
        f"name server {address} not ready" for address in addresses
    ]
