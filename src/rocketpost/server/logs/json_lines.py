"""Log lines as JSON objects, for programs that collect logs.

The code logs an event and its values, as in ``broker gone: name=%s reason=%s``. The text of the
event becomes ``event``, each value a field of its own:

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
_TEMPLATE: Final = re.compile(r"(?P<event>[^%]*?):? (?P<pairs>\w+=%[sr](?: \w+=%[sr])*)")
_PAIR: Final = re.compile(r"(\w+)=%[sr]")
_OWN: Final = frozenset({"ts", "level", "logger", "pid", "server", "event", "exc"})


class Template(NamedTuple):
    """An event, and the names of the values that follow it."""

    event: str
    names: tuple[str, ...]


@functools.lru_cache(maxsize=4096)
def split_template(text: str) -> Template | None:
    """Return the parts of a log message's template; None if it has another form."""
    found = _TEMPLATE.fullmatch(text)
    if found is None:
        return None
    return Template(found["event"], tuple(_PAIR.findall(found["pairs"])))


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
    template = split_template(record.msg) if isinstance(record.msg, str) else None
    args = record.args
    if template is None or not isinstance(args, tuple) or len(args) != len(template.names):
        return {"event": _cut(record.getMessage())}
    fields: dict[str, Any] = {"event": template.event}
    for name, value in zip(template.names, args, strict=True):
        key = f"{name}_" if name in _OWN else name
        fields[key] = value if isinstance(value, bool | int | float) else _cut(str(value))
    return fields


def _cut(text: str) -> str:
    if len(text) > VALUE_LENGTH_MAX:
        text = f"{text[:VALUE_LENGTH_MAX]}... ({len(text)} characters)"
    return text.encode("utf-8", "backslashreplace").decode()  # a peer may send lone surrogates
