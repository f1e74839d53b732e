"""Options of a command from a YAML file."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from rocketpost.client import Credentials
from rocketpost.client.credentials import environment_credentials
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
        ("zzz: A\n", "there is no option 'zzz'; the options are topic, max-offsets, deep, conf"),
        ("config: A\n", "there is no option 'config'"),
        ("t: A\n", "there is no option 't'"),
        ("1: A\n", "there is no option 1"),
        ("- a\n", "must contain options"),
        ("a: b: c\n", "cannot be read"),
        ("topic: {a: b}\n", "topic must be one value"),
        ("topic: A\nmax-offsets: 0\n", "Invalid value for '--max-offsets'"),
        ("topic: A\nmax-offsets: many\n", "Invalid value for '--max-offsets'"),
        ("", "Missing option '--topic'"),
    ],
)
def test_errors_in_a_file_are_named(tmp_path: Path, text: str, said: str) -> None:
    result = run(tmp_path, text)
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())


def test_keys_of_a_file_go_to_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROCKETMQ_ACCESS_KEY", "another")
    monkeypatch.setenv("ROCKETMQ_SECRET_KEY", "another")
    monkeypatch.setenv("ROCKETMQ_SECURITY_TOKEN", "another")
    result = run(tmp_path, "topic: A\naccess-key: me\nsecret-key: 123\n")
    assert result.output == "A None False ()\n"
    assert environment_credentials() == Credentials("me", "123")


def test_an_error_about_a_broken_file_does_not_show_its_keys(tmp_path: Path) -> None:
    result = run(tmp_path, 'topic: A\nsecret-key: "hush\n')
    assert "cannot be read: line" in result.output
    assert "hush" not in result.output


def test_no_option_takes_a_key(tmp_path: Path) -> None:
    result = run(tmp_path, "topic: A\n", "--secret-key", "hush")
    assert result.exit_code == 2
    assert "No such option" in result.output
