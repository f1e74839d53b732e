"""Checks of arguments at the call, where a mistake was made."""

from __future__ import annotations

import inspect
import math
import types
import typing
from collections.abc import Callable, Collection
from dataclasses import fields
from typing import Any, Union

from rocketpost.errors import ConfigError
from rocketpost.model.route import MessageQueue


def check_text(name: str, value: object) -> None:
    """Raise unless ``value`` is a string.

    Raises:
        ConfigError: It is not a string.
    """
    if not isinstance(value, str):
        raise ConfigError(f"{name} must be a string, not {value!r}")


def check_seconds(name: str, value: object, *, zero: bool = False) -> None:
    """Raise unless ``value`` is a number of seconds over zero, or zero if ``zero`` is set.

    Raises:
        ConfigError: It is not such a number.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise ConfigError(f"{name} must be a number of seconds, not {value!r}")
    if value < 0 or (value == 0 and not zero):
        raise ConfigError(f"{name} must be {'0 or more' if zero else 'over 0'}, not {value!r}")


def check_timeout(value: object) -> None:
    """Raise unless ``value`` is a timeout, or None for the configured one.

    Raises:
        ConfigError: It is not a timeout.
    """
    if value is not None:
        check_seconds("timeout", value)


def check_number(name: str, value: object, *, least: int = 0) -> None:
    """Raise unless ``value`` is a whole number of ``least`` or more.

    Raises:
        ConfigError: It is not such a number.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name} must be a whole number, not {value!r}")
    if value < least:
        raise ConfigError(f"{name} must be {least} or more, not {value}")


def check_message_queue(name: str, value: object) -> None:
    """Raise unless ``value`` is a queue.

    Raises:
        ConfigError: It is not a queue.
    """
    if not isinstance(value, MessageQueue):
        raise ConfigError(f"{name} must be a MessageQueue, not {value!r}")


def check_queues(queues: Collection[MessageQueue] | None) -> None:
    """Raise unless ``queues`` is a collection of queues, or None for all.

    Raises:
        ConfigError: It is not such a collection.
    """
    if queues is None:
        return
    if isinstance(queues, MessageQueue | str) or not isinstance(queues, Collection):
        raise ConfigError(f"queues must be a list of queues, not {queues!r}")
    for queue in queues:
        check_message_queue("each of queues", queue)


def is_coroutine_function(function: object) -> bool:
    """Tell whether calling ``function`` makes a coroutine, also of an object with __call__."""
    call = getattr(function, "__call__", None)  # noqa: B004 - the kind of method is looked at
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def check_function(
    name: str, function: Callable[..., Any], *, arguments: int, may_be_async: bool = True
) -> None:
    """Raise unless ``function`` can be called with the given number of arguments.

    Raises:
        ConfigError: It cannot be called so, or it is a generator, which would never run.
    """
    if not callable(function):
        raise ConfigError(f"{name} must be a function, not {function!r}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(f"{name} must return, not yield")
    if not may_be_async and is_coroutine_function(function):
        raise ConfigError(f"{name} must be a plain function here, not a coroutine function")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some builtins have no signature
        return
    try:
        signature.bind(*[None] * arguments)
    except TypeError:
        takes = "one argument" if arguments == 1 else f"{arguments} arguments"
        raise ConfigError(f"{name} must take {takes}, not {signature}") from None


_known: dict[type, dict[str, tuple[type, ...]]] = {}


def _field_types(settings: type[Any]) -> dict[str, tuple[type, ...]]:
    known = _known.get(settings)
    if known is None:
        hints = typing.get_type_hints(settings)
        known = {field.name: _types(hints[field.name]) for field in fields(settings)}
        _known[settings] = known
    return known


def _types(hint: Any) -> tuple[type, ...]:
    origin = typing.get_origin(hint)
    if origin in (Union, types.UnionType):
        return tuple(each for part in typing.get_args(hint) for each in _types(part))
    if hint is float:
        return (int, float)
    plain = origin or hint
    return (plain,) if isinstance(plain, type) else (object,)


def check_field_types(settings: Any) -> None:
    """Raise unless every field of a dataclass has a value of its type.

    Raises:
        ConfigError: A field has a value of another type; the text names the field.
    """
    for name, expected in _field_types(type(settings)).items():
        value = getattr(settings, name)
        is_flag = isinstance(value, bool) and bool not in expected and object not in expected
        if is_flag or not isinstance(value, expected):
            wanted = " or ".join("None" if e is types.NoneType else e.__name__ for e in expected)
            raise ConfigError(f"{name} must be {wanted}, not {value!r}")
        if isinstance(value, float) and math.isnan(value):
            raise ConfigError(f"{name} must be a number, not nan")
