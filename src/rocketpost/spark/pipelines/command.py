"""What the commands of pipelines share: options from a file, a session, failures in words.

Options may also stand in a YAML file (``--config``), by the names they have here; the command line
wins. Commands exit with 0 when they did all of their work, 1 when something failed, and 2 when an
option makes no sense.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import click
import yaml
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from rich.console import Console

from rocketpost.errors import ConfigError, RocketpostError
from rocketpost.spark.session import LOCAL_MASTER, make_session

console = Console(highlight=False)


def _from_file(context: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
    """Take the options of a YAML file as defaults.

    Raises:
        click.UsageError: A name in it is no option of the command.
    """
    if path is None:
        return None
    try:
        values = yaml.safe_load(path.read_text()) or {}
    except (OSError, yaml.YAMLError) as error:
        raise click.UsageError(f"{path} cannot be read: {error}") from None
    if not isinstance(values, dict):
        raise click.UsageError(f"{path} must hold options, such as topic: Orders")
    known = {name.lstrip("-"): each.name for each in context.command.params for name in each.opts}
    unknown = [name for name in values if name not in known]
    if unknown:
        raise click.UsageError(f"{path}: there is no option {unknown[0]!r}")
    context.default_map = {str(known[name]): value for name, value in values.items()}
    return path


config_option = click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    callback=_from_file,
    is_eager=True,
    expose_value=False,
    help="A YAML file with options.",
)
master_option = click.option(
    "--master", default=LOCAL_MASTER, show_default=True, help="Where Spark runs."
)
conf_option = click.option(
    "--conf", multiple=True, metavar="KEY=VALUE", help="A setting of Spark's; may be repeated."
)


class _Time(click.ParamType[int]):
    """Milliseconds since the epoch, or a time such as 2026-11-16T12:00:00 (UTC if it says none)."""

    name = "time"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        if isinstance(value, int):
            return value
        text = str(value)
        if text.isdecimal():
            return int(text)
        try:
            time = datetime.fromisoformat(text)
        except ValueError:
            self.fail(f"{text!r} is neither milliseconds nor a time like 2026-11-16T12:00:00")
        if time.tzinfo is None:
            time = time.replace(tzinfo=UTC)
        return int(time.timestamp() * 1000)


since_option = click.option(
    "--since", type=_Time(), help="Stored then or later: ms, or a UTC time."
)
until_option = click.option("--until", type=_Time(), help="Stored before.")


@contextlib.contextmanager
def session(name: str, master: str, conf: tuple[str, ...]) -> Iterator[SparkSession]:
    """Have a session of Spark, with settings of the user's.

    Raises:
        ConfigError: A setting is none, or there is no Java.
    """
    settings = {}
    for pair in conf:
        key, separator, value = pair.partition("=")
        if not separator:
            raise ConfigError(f"--conf {pair} must be KEY=VALUE")
        settings[key] = value
    with console.status("starting Spark"):
        spark = make_session(f"rocketpost {name}", master=master, options=settings)
    try:
        yield spark
    finally:
        spark.stop()


@contextlib.contextmanager
def failures() -> Iterator[None]:
    """Let a command end with one line that says what failed."""
    try:
        yield
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    except RocketpostError as error:
        raise click.ClickException(str(error)) from None
    except PySparkException as error:
        raise click.ClickException(f"Spark failed: {_reason(error)}") from None


def _reason(error: PySparkException) -> str:
    """Return the line of a Spark error that says why, if it was ours, else its first one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("rocketpost.")]
    return ours[-1].partition(": ")[2] if ours else (lines or ["no reason given"])[0]
