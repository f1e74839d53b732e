"""Settings: frozen dataclasses read from properties text with RocketMQ's keys.

A settings class is a frozen dataclass whose fields are made with :func:`option`; several classes
share one file, as in RocketMQ. :func:`parse_properties` reads Java's ``.properties`` syntax,
:func:`build` fills one class from the values, and :func:`reject_unknown` names every key that no
class has. Nothing here reads a file.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from rocketpost.errors import ConfigError

T = TypeVar("T")
_hints: dict[type[Any], dict[str, Any]] = {}  # to find them takes a millisecond

_NUMBER_MAX = 2**63 - 1
"""As in Java; larger numbers overflow timers and compiled loops."""
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def option(
    key: str,
    default: Any,
    *,
    mutable: bool = False,
    important: bool = False,
    secret: bool = False,
    clamp: tuple[int, int] | None = None,
    below: int | None = None,
) -> Any:
    """Declare a settings field.

    Args:
        key: The key in the properties file.
        default: The value if the file has none.
        mutable: Whether an administrator may change it while the process runs.
        important: Whether ``mqbroker -m`` lists it.
        secret: Whether it is never shown.
        clamp: Minimum and maximum in force, for keys whose file may say more or less, as in
            RocketMQ; the class calls :func:`apply_clamps`. :func:`adjustments` reports a clamped
            value; a change at run time refuses it.
        below: Value in force below the minimum; the minimum itself if None.
    """
    metadata = {
        "key": key,
        "mutable": mutable,
        "important": important,
        "secret": secret,
        "clamp": clamp,
        "below": below,
    }
    return dataclasses.field(default=default, metadata=metadata, repr=not secret)


def parse_properties(text: str) -> dict[str, str]:
    """Read Java ``.properties`` text: comments, continuations, escapes; the last value wins."""
    values: dict[str, str] = {}
    for line in _logical_lines(text):
        key, value = _split(line)
        if key:
            values[key] = value
    return values


def format_properties(values: Mapping[str, str]) -> str:
    """Write ``key=value`` lines, sorted by key, escaped for :func:`parse_properties`."""
    lines = [f"{_escape(key, key=True)}={_escape(values[key])}\n" for key in sorted(values)]
    return "".join(lines)


def keys_of(cls: type) -> dict[str, dataclasses.Field[Any]]:
    """Return the settings fields of ``cls`` by their key."""
    fields = dataclasses.fields(cls)
    return {field.metadata["key"]: field for field in fields if "key" in field.metadata}


def build(cls: type[T], values: Mapping[str, str]) -> T:
    """Fill ``cls`` from ``values``; ignore keys of other classes.

    Raises:
        ConfigError: A value is invalid; the text names the key and the accepted values.
    """
    hints = _hints_of(cls)
    given = {
        field.name: _parse(key, values[key], hints[field.name])
        for key, field in keys_of(cls).items()
        if key in values
    }
    return cls(**given)


def apply_clamps(settings: object) -> None:
    """Clamp the numbers of a new settings object; called by its ``__post_init__``."""
    for field in keys_of(type(settings)).values():
        if field.metadata["clamp"] is None:
            continue
        low, high = field.metadata["clamp"]
        value = getattr(settings, field.name)
        if value < low and field.metadata["below"] is not None:
            value = field.metadata["below"]
        object.__setattr__(settings, field.name, min(max(value, low), high))


def adjustments(settings: object, values: Mapping[str, str]) -> list[str]:
    """Return a sentence for each value that is clamped, and so not in force as the file has it."""
    hints = _hints_of(type(settings))
    told = []
    for key, field in keys_of(type(settings)).items():
        in_force = getattr(settings, field.name)
        if type(in_force) is not int or key not in values:
            continue
        if _parse(key, values[key], hints[field.name]) != in_force:
            clamp = field.metadata["clamp"]
            why = "" if clamp is None else f", it must be {clamp[0]} to {clamp[1]}"
            told.append(f"{key}={values[key].strip()}{why}: {in_force} is in force")
    return told


def apply_changes(current: T, values: Mapping[str, str]) -> T:
    """Return ``current`` with the mutable keys among ``values`` replaced.

    Raises:
        ConfigError: A key is unknown to the class, fixed after the start, or has a bad value; a
            value outside its clamp is bad.
    """
    fields = keys_of(type(current))
    hints = _hints_of(type(current))
    updates = {}
    for key, text in values.items():
        field = fields.get(key)
        if field is None:
            raise ConfigError(f"{key} is not a known setting")
        if not field.metadata["mutable"]:
            raise ConfigError(
                f"{key} cannot be changed at run time; set it in the configuration file and restart"
            )
        updates[field.name] = value = _parse(key, text, hints[field.name])
        if value == "" and field.default != "":
            raise ConfigError(f"{key} needs a value, such as {key}={field.default}")
        clamp = field.metadata["clamp"]
        if clamp is not None and not clamp[0] <= value <= clamp[1]:
            raise ConfigError(f"{key}={value} must be between {clamp[0]} and {clamp[1]}")
    return dataclasses.replace(current, **updates)  # type: ignore[type-var]


def to_properties(settings: object) -> dict[str, str]:
    """Return every option of ``settings`` that is not secret as text, by key."""
    fields = keys_of(type(settings))
    return {
        key: format_value(getattr(settings, field.name))
        for key, field in fields.items()
        if not field.metadata["secret"]
    }


def format_value(value: object) -> str:
    """Write a value in the form that :func:`build` reads."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, enum.Enum):
        return value.name
    return "" if value is None else str(value)


def reject_unknown(
    values: Iterable[str], *acting: Iterable[str], inactive: Iterable[str] = ()
) -> None:
    """Raise if a key is in neither ``acting`` nor ``inactive``.

    Only acting keys are suggested for a misspelled one.

    Raises:
        ConfigError: The text names every such key.
    """
    all_acting = {key for keys in acting for key in keys}
    unknown = sorted(set(values) - all_acting - set(inactive))
    if unknown:
        names = ", ".join(with_suggestion(key, all_acting) for key in unknown)
        raise ConfigError(f"unknown setting: {names}; check the spelling or remove it")


def with_suggestion(key: str, known: Iterable[str]) -> str:
    """Return a key that is not known, with the nearest one that is."""
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.8)
    return f"{key} (did you mean {near[0]}?)" if near else key


def _parse(key: str, text: str, hint: Any) -> Any:
    text = text.strip()
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if type(None) in options and not text:
        return None
    kind = next(option for option in options if option is not type(None))
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        for member in kind:
            if member.name == text.upper():
                return member
        names = " or ".join(member.name for member in kind)
        raise ConfigError(f"{key}={text!r} is not valid: it must be {names}")
    if kind is bool:
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        raise ConfigError(f"{key}={text!r} is not valid: it must be true or false")
    if kind is int or kind is float:
        try:
            number = kind(text)
            if -_NUMBER_MAX <= number <= _NUMBER_MAX:
                return number
            raise ValueError
        except ValueError:
            wanted = "a whole number" if kind is int else "a number"
            raise ConfigError(f"{key}={text!r} is not valid: it must be {wanted}") from None
    return text


def _logical_lines(text: str) -> Iterable[str]:
    pending = ""
    for raw in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        line = raw.lstrip(" \t\f")
        if not pending and (not line or line[0] in "#!"):
            continue
        trailing = len(line) - len(line.rstrip("\\"))
        if trailing % 2:
            pending += line[:-1]
            continue
        yield pending + line
        pending = ""
    if pending:
        yield pending


def _split(line: str) -> tuple[str, str]:
    at = 0
    while at < len(line) and line[at] not in "=: \t\f":
        at += 2 if line[at] == "\\" else 1
    key, rest = line[:at], line[at:].lstrip(" \t\f")
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(" \t\f")
    return _unescape(key), _unescape(rest)


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    at = 0
    while at < len(text):
        char = text[at]
        at += 1
        if char != "\\" or at == len(text):
            out.append(char)
            continue
        char = text[at]
        at += 1
        if char == "u":
            digits = text[at : at + 4]
            try:
                out.append(chr(int(digits, 16)))
            except ValueError:
                raise ConfigError(f"bad escape \\u{digits} in {text!r}") from None
            at += 4
        else:
            out.append(_ESCAPES.get(char, char))
    # Two escapes may spell one character beyond the basic plane.
    return "".join(out).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _escape(text: str, *, key: bool = False) -> str:
    out = []
    for at, char in enumerate(text):
        if char == "\\":
            out.append("\\\\")
        elif char in "\t\n\r\f":
            out.append({"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}[char])
        elif (char in "=:#!" and key) or (char == " " and (key or at == 0)):
            out.append("\\" + char)
        elif ord(char) > 0xFFFF:
            pair = char.encode("utf-16-be").hex().upper()
            out.append(f"\\u{pair[:4]}\\u{pair[4:]}")
        elif not 0x20 <= ord(char) <= 0x7E:
            out.append(f"\\u{ord(char):04X}")
        else:
            out.append(char)
    return "".join(out)


def _hints_of(cls: type[Any]) -> dict[str, Any]:
    """Return the types of the fields of a class."""
    found = _hints.get(cls)
    if found is None:
        found = _hints[cls] = typing.get_type_hints(cls)
    return found
