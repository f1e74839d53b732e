"""The process of ``mqadmin``: its start, its output in pipes and terminals, its completion."""

from __future__ import annotations

import os
import pty
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketpost.testing import Cluster

pytestmark = pytest.mark.slow

MQADMIN = (sys.executable, "-c", "from rocketpost.admin.main import mqadmin; mqadmin()")
START_SECONDS_MAX = 0.3
LIBRARIES = (sys.executable, "-c", "import asyncio, click, msgspec, uuid")
LIBRARIES_SECONDS = 0.085
"""CPU time of importing the libraries alone, on the machine for which the limit was set."""


@pytest.fixture(scope="module")
def name_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster.addresses


def least_cpu_seconds(*command: str) -> float:
    """Return the CPU time of a process in the most quiet of a few runs."""
    found = []
    for _ in range(5):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        found.append(usage.ru_utime + usage.ru_stime)
    return min(found)


def test_a_command_starts_soon(name_servers: str) -> None:
    slower = max(1.0, least_cpu_seconds(*LIBRARIES) / LIBRARIES_SECONDS)
    spent = least_cpu_seconds(*MQADMIN, "topicList", "-n", name_servers)
    assert spent < START_SECONDS_MAX * slower


def test_a_command_imports_no_clients(name_servers: str) -> None:
    code = """
import sys
from rocketpost.admin.main import mqadmin
mqadmin(standalone_mode=False)
parts = ("client.producer", "client.consumer.push", "client.blocking", "client.admin.", "spark")
print(*(name for name in sys.modules if name.startswith(tuple(f"rocketpost.{p}" for p in parts))))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, "topicList", "-n", name_servers],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "rocketpost.client.admin.cluster"


@pytest.mark.parametrize(
    "words",
    [
        ("clusterList",),
        ("topicList", "-c"),
        ("consumerProgress",),
        ("topicRoute", "-t", "TBW102", "-l"),
        ("getNamesrvConfig",),
        ("topicStatus", "-t", "SELF_TEST_TOPIC", "--json"),
        ("help", "consumerProgress"),
        ("noSuchCommand",),
    ],
    ids=lambda words: words[0],
)
def test_a_pipe_gets_what_a_terminal_shows(name_servers: str, words: tuple[str, ...]) -> None:
    environment = os.environ | {"NAMESRV_ADDR": name_servers, "COLUMNS": "60", "TERM": "xterm"}
    command = [*MQADMIN, *words]
    piped = subprocess.run(command, capture_output=True, check=False, env=environment)
    ours, theirs = pty.openpty()
    shown = b""
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # the terminal is closed
                break
            if not part:
                break
            shown += part
    os.close(ours)
    assert process.returncode == piped.returncode
    assert varying(shown.replace(b"\r\n", b"\n")) == varying(piped.stdout + piped.stderr)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has it")
@pytest.mark.parametrize("words", ["topicList", "topicList --json", "help", "consumerProgress"])
def test_a_full_output_is_one_line(name_servers: str, words: str) -> None:
    environment = os.environ | {"NAMESRV_ADDR": name_servers}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*MQADMIN, *words.split()], stdout=full, stderr=subprocess.PIPE, text=True,
            env=environment, check=False,
        )  # fmt: skip
    assert done.stderr == "mqadmin: cannot write the output: No space left on device\n"
    assert done.returncode == 1


def test_a_closed_pipe_ends_the_command_without_a_word(name_servers: str) -> None:
    environment = os.environ | {"NAMESRV_ADDR": name_servers}
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [*MQADMIN, "topicList"],
        stdout=writing,
        stderr=subprocess.PIPE,
        env=environment,
        check=False,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")


def varying(text: bytes) -> list[bytes]:
    """Return the lines with every number the same: rates and ages differ between two runs."""
    digits = bytes.maketrans(b"123456789", b"000000000")
    return [b" ".join(line.translate(digits).split()) for line in text.splitlines()]


@pytest.fixture
def commands(tmp_path: Path) -> dict[str, str]:
    """Return variables with which a shell finds the commands of this checkout."""
    folder = tmp_path / "commands"
    folder.mkdir()
    for name, module in (("mqadmin", "admin.main"), ("rocketpost", "cli")):
        program = folder / name
        code = f"from rocketpost.{module} import {name}\n{name}(prog_name='{name}')\n"
        program.write_text(f"#!{sys.executable}\n{code}")
        program.chmod(0o755)
    return os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"}


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_commands_and_options(commands: dict[str, str]) -> None:
    """The script that ``rocketpost completion bash`` prints is run by bash."""
    script = """
source <(rocketpost completion bash)
complete_words() {
    COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
    _$1_completion $1
    echo "${COMPREPLY[@]}"
}
complete_words mqadmin topicRo
complete_words mqadmin TOPICRO
complete_words mqadmin consumerProgress --wa
complete_words rocketpost heal
complete_words rocketpost health --js
"""
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=False, env=commands
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["topicRoute", "topicRoute", "--watch", "health", "--json"]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="there is no zsh")
@pytest.mark.parametrize("way", ["fpath", "source"])
def test_zsh_completes_commands_and_options(
    commands: dict[str, str], tmp_path: Path, way: str
) -> None:
    """The script is loaded by zsh from its path, or run; then keys are typed into a zsh."""
    functions = tmp_path / "functions"
    functions.mkdir()
    printed = subprocess.run(
        ["rocketpost", "completion", "zsh"], capture_output=True, check=True, env=commands
    )
    (functions / "_rocketpost").write_bytes(printed.stdout)
    begin = {
        "fpath": f"fpath=({functions} $fpath); autoload -U compinit; compinit -D -u",
        "source": f"autoload -U compinit; compinit -D -u; source {functions}/_rocketpost",
    }[way]
    script = f"""
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell {shlex.quote(begin)}
zpty -w shell 'show() {{ print -r -- "<$BUFFER>"; BUFFER= }}; zle -N show; bindkey "^X" show'
complete_words() {{
    local seen
    zpty -w -n shell "$1"$'\\t\\x18'
    zpty -r shell seen $'*<'${{1%% *}}$' [^\\n]#>*'
    print -r -- ${{${{seen##*<}}%%>*}}
}}
setopt extended_glob
complete_words "mqadmin topicRo"
complete_words "rocketpost heal"
complete_words "mqadmin consumerProgress --wa"
complete_words "rocketpost health --js"
"""
    done = subprocess.run(
        ["zsh", "-f", "-c", script], capture_output=True, text=True, check=False, env=commands
    )
    assert done.stderr == ""
    assert [line.rstrip() for line in done.stdout.splitlines()] == [
        "mqadmin topicRoute",
        "rocketpost health",
        "mqadmin consumerProgress --watch",
        "rocketpost health --json",
    ]
