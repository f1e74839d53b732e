"""Options of a command from a YAML file."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from rocketpost.spark.pipelines.options_file import config_option


@click.command()
@config_option
@click.option("--topic", "-t", required=True)
@click.option("--max-offsets", type=click.IntRange(1))
@click.option("--deep", is_flag=True)
@click.option("--conf", multiple=True)
def show(topic: str, max_offsets: int | None, deep: bool, conf: tuple[str, ...]) -> None:
    click.echo(f"{topic} {max_offsets} {deep} {conf}")


def run(tmp_path: Path, text: str, *more: str) -> Result:
    file = tmp_path / "options.yaml"
    file.write_text(text)
    return CliRunner().invoke(show, ["--config", str(file), *more])


def test_a_file_gives_defaults_and_the_command_line_wins(tmp_path: Path) -> None:
    text = "topic: [A, B]\nmax-offsets: 5\ndeep: true\nconf: {a.b: 1, c: true}\n"
    assert run(tmp_path, text).output == "A,B 5 True ('a.b=1', 'c=true')\n"
    assert run(tmp_path, text, "-t", "C", "--max-offsets", "7").output.startswith("C 7 True")
    assert run(tmp_path, "topic: 2024\nconf: [x=1]\nmax-offsets:\n").output == (
        "2024 None False ('x=1',)\n"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("topics: A\n", "there is no option 'topics'; did you mean topic?"),
        ("zzz: A\n", "there is no option 'zzz'; there are topic, max-offsets, deep, conf"),
        ("config: A\n", "there is no option 'config'"),
        ("t: A\n", "there is no option 't'"),
        ("1: A\n", "there is no option 1"),
        ("- a\n", "must hold options"),
        ("a: b: c\n", "cannot be read"),
        ("topic: {a: b}\n", "topic must be one value"),
        ("topic: A\nmax-offsets: 0\n", "Invalid value for '--max-offsets'"),
        ("topic: A\nmax-offsets: many\n", "Invalid value for '--max-offsets'"),
        ("", "Missing option '--topic'"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path: Path, text: str, said: str) -> None:
    result = run(tmp_path, text)
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())
