"""Log lines as JSON objects, for programs that collect logs.

The code logs an event and its values, as in ``broker gone: name=%s reason=%s``. The text of the
event becomes ``event``, each value a field of its own, and advice at the end a ``hint``:

    {"ts":"2026-11-18T06:00:00.000Z","level":"WARNING","logger":"rocketpost.server","pid":1,
     "event":"broker gone","name":"broker-a","reason":"connection lost"}
"""

from __future__ import annotations

import functools
import logging
import os
import re
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import msgspec

VALUE_LENGTH_MAX: Final = 4096
TRACEBACK_LENGTH_MAX: Final = 16_384
_FIRST_PAIR: Final = re.compile(r":? (?=[a-zA-Z_]\w*=)")
_PAIR: Final = re.compile(r"(?:^|,? )([a-zA-Z_]\w*)=")
_CONVERSION: Final = re.compile(r"%(?:[-+ #0-9.]*[a-z]|%)")
_SINGLE: Final = frozenset({"%s", "%r", "%d"})
_REST: Final = re.compile(r"[;:] (?P<hint>.+)$| (?P<detail>%s)$")
_OWN: Final = frozenset({"ts", "level", "logger", "pid", "server", "event", "exc"})


class Part(NamedTuple):
    """A piece of a log message: the name of its field, its text, and how many values it takes."""

    name: str
    text: str
    value_count: int

    def value(self, args: tuple[Any, ...]) -> Any:
        """Return the value of the field; a number stays one."""
        if self.text in _SINGLE and isinstance(args[0], bool | int | float):
            return args[0]
        return _cut(self.text % args)


@functools.lru_cache(maxsize=4096)
def split_template(text: str) -> tuple[Part, ...]:
    """Return the parts of a log message's template; the first is the event.

    After the values may come a text for people (``hint``) or a last value without a name
    (``detail``).
    """
    event, *rest = _FIRST_PAIR.split(text, maxsplit=1)
    parts = [_part("event", event)]
    if not rest:
        return tuple(parts)
    _, *found = _PAIR.split(rest[0])
    pairs = list(zip(found[::2], found[1::2], strict=True))
    for name, value in pairs[:-1]:
        parts.append(_part(name, value))
    name, value = pairs[-1]
    end = _REST.search(value)
    parts.append(_part(name, value if end is None else value[: end.start()]))
    if end is not None:
        kind = "hint" if end["hint"] else "detail"
        parts.append(_part(kind, end[kind]))
    return tuple(parts)


def _part(name: str, text: str) -> Part:
    count = sum(each != "%%" for each in _CONVERSION.findall(text))
    return Part(f"{name}_" if name in _OWN and name != "event" else name, text, count)


class JsonFormatter(logging.Formatter):
    """Writes a record as one line of JSON.

    Args:
        server: Name of the server, if there are several in one log; none if empty.
    """

    def __init__(self, *, server: str = "") -> None:
        super().__init__()
        self._server = server
        self._pid = os.getpid()

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        made = datetime.fromtimestamp(record.created, UTC)
        fields: dict[str, Any] = {
            "ts": made.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "pid": self._pid,
        }
        if self._server:
            fields["server"] = self._server
        fields |= _event(record)
        if record.exc_info:
            fields["exc"] = self.formatException(record.exc_info)[-TRACEBACK_LENGTH_MAX:]
        return msgspec.json.encode(fields).decode()


def _event(record: logging.LogRecord) -> dict[str, Any]:
    """Return the event of a record and its values."""
    args = record.args
    if not isinstance(record.msg, str) or not isinstance(args, tuple) or not args:
        return {"event": _cut(record.getMessage())}
    parts = split_template(record.msg)
    if sum(part.value_count for part in parts) != len(args):
        return {"event": _cut(record.getMessage())}
    fields: dict[str, Any] = {}
    at = 0
    for part in parts:
        fields[part.name] = part.value(args[at : at + part.value_count])
        at += part.value_count
    return fields


def _cut(text: str) -> str:
    if len(text) > VALUE_LENGTH_MAX:
        text = f"{text[:VALUE_LENGTH_MAX]}... ({len(text)} characters)"
    return text.encode("utf-8", "backslashreplace").decode()  # a peer may send lone surrogates
