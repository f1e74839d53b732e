"""The option ``--config``: options of a command in a YAML file.

The command line takes precedence over the file. A list replaces values separated by commas, and
``conf`` may be a mapping:

    name-server: 127.0.0.1:9876
    topic: [Orders, Payments]
    lake: /lake/orders
    conf: {spark.driver.memory: 2g}

Credentials for brokers with access control (``access-key``, ``secret-key``, ``security-token``) may
be in the file or in the environment, but not on the command line. So may TLS (``tls``,
``tls-config-file``), which all processes of Spark must have alike.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import Any, Final

import click
import yaml

from rocketpost.client import tls
from rocketpost.client.credentials import ACCESS_KEY, SECRET_KEY, SECURITY_TOKEN

_NOT_IN_FILES: Final = frozenset({"config", "help"})
_KEYS: Final = {
    "access-key": ACCESS_KEY,
    "secret-key": SECRET_KEY,
    "security-token": SECURITY_TOKEN,
}
_TLS: Final = {"tls": tls.ENABLE, "tls-config-file": tls.FILE}


def _from_file(context: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
    """Use the options of a YAML file as defaults.

    Raises:
        click.UsageError: The file has a name that is not an option of the command.
    """
    if path is None:
        return None
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{path} cannot be read: {error}") from None
    except yaml.YAMLError as error:
        raise click.UsageError(f"{path} cannot be read: {_problem(error)}") from None
    if not isinstance(values, dict):
        raise click.UsageError(f"{path} must contain options, such as topic: Orders")
    known = {
        name.removeprefix("--"): each
        for each in context.command.params
        for name in each.opts
        if name.startswith("--") and each.name not in _NOT_IN_FILES
    }
    _take_keys(values)
    defaults: dict[str, Any] = {}
    for name, value in values.items():
        if name not in known:
            near = difflib.get_close_matches(str(name), known, 1)
            hint = f"; did you mean {near[0]}?" if near else f"; the options are {', '.join(known)}"
            raise click.UsageError(f"{path}: there is no option {name!r}{hint}")
        if value is not None:
            defaults[str(known[name].name)] = _as_given(path, known[name], value)
    context.default_map = defaults
    return path


def _problem(error: yaml.YAMLError) -> str:
    """Return a description of the problem without the text, which may be a secret."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return "it is not YAML"
    return f"line {error.problem_mark.line + 1}: {error.problem}"


def _take_keys(values: dict[str, Any]) -> None:
    """Move credentials and TLS from the file to the environment, for all processes of Spark.

    Credentials are not options, because other users can read command lines.
    """
    for keys in (_KEYS, _TLS):
        found = {name: values.pop(name) for name in keys if values.get(name) is not None}
        if found:
            for name, variable in keys.items():
                os.environ[variable] = _text(found.get(name, ""))


def _as_given(path: Path, option: click.Parameter, value: object) -> object:
    """Return a value in the form of the command line."""
    if isinstance(option, click.Option) and option.multiple:
        if isinstance(value, dict):
            return [f"{key}={_text(each)}" for key, each in value.items()]
        return [_text(each) for each in value] if isinstance(value, list) else [_text(value)]
    if isinstance(value, list):
        return ",".join(_text(each) for each in value)
    if isinstance(value, dict):
        raise click.UsageError(f"{path}: {option.name} must be one value, not {value}")
    return value


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


config_option = click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    callback=_from_file,
    is_eager=True,
    expose_value=False,
    help="A YAML file with options.",
)
