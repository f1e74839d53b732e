"""Log lines as text, each record in one line."""

from __future__ import annotations

import logging
from typing import Any

from rocketpost.server.logs.json_lines import TRACEBACK_LENGTH_MAX, VALUE_LENGTH_MAX


class OneLineFormatter(logging.Formatter):
    """Keeps each record in one line, so that no name or remark of a peer can fake another.

    Control characters are escaped, long messages cut, and the lines of a traceback indented.

    Args:
        text: The format of a record.
        prefix: The beginning of every line.
    """

    def __init__(self, text: str, *, prefix: str = "") -> None:
        super().__init__(text)
        self._prefix = prefix

    def format(self, record: logging.LogRecord) -> str:
        """Return the record, with its traceback in lines of their own."""
        return self._prefix + super().format(record).replace("\n", "\n" + self._prefix)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Return the message in one line."""
        text = record.message
        if len(text) > VALUE_LENGTH_MAX:
            text = f"{text[:VALUE_LENGTH_MAX]}... ({len(text)} characters)"
        record.message = text if text.isprintable() else _escape(text)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802 - logging's name
        """Return the traceback, indented."""
        lines = super().formatException(ei)[-TRACEBACK_LENGTH_MAX:].splitlines()
        return "\n".join("    " + _escape(line) for line in lines)


def _escape(text: str) -> str:
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )
