"""Detection of finds, and the log that is watched for them."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Find(AssertionError):  # noqa: N818 - named after what it is
    """A promise about hostile input does not hold."""


class Watch(logging.Handler):
    """Keeps what the log says: a traceback in it means that something was not foreseen."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.tracebacks: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one record."""
        line = record.getMessage()
        self.lines.append(line)
        if record.exc_info and record.exc_info[0] is not None:
            formatter = logging.Formatter()
            self.tracebacks.append(line + "\n" + formatter.formatException(record.exc_info))

    def clear(self) -> None:
        """Forget everything."""
        self.lines.clear()
        self.tracebacks.clear()

    def judge(self) -> None:
        """Raise if a traceback was logged since the last :meth:`clear`.

        Raises:
            Find: With the traceback.
        """
        if self.tracebacks:
            raise Find("a traceback was logged: " + "\n".join(self.tracebacks))


def judge_ignored(check: Callable[[bytes], None]) -> Callable[[bytes], None]:
    """Return ``check`` with exceptions that Python ignores as finds.

    Functions of the kernel that are declared ``noexcept`` cannot raise: a failed bounds check in
    one of them is only reported.
    """
    ignored: list[str] = []

    def note(failure: sys.UnraisableHookArgs) -> None:
        ignored.append(f"{failure.exc_value!r} in {failure.object!r}")

    def judge(data: bytes) -> None:
        sys.unraisablehook = note
        check(data)
        if ignored:
            text = "; ".join(ignored)
            ignored.clear()
            raise Find(f"an exception was ignored: {text}")

    return judge


@contextmanager
def watched() -> Iterator[Watch]:
    """Send every log record to a :class:`Watch`, and nowhere else."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    watch = Watch()
    root.handlers[:] = [watch]
    root.setLevel(logging.INFO)
    hook = threading.excepthook

    def died(failure: threading.ExceptHookArgs) -> None:
        watch.tracebacks.append(f"thread {failure.thread} died: {failure.exc_value!r}")

    threading.excepthook = died
    try:
        yield watch
    finally:
        threading.excepthook = hook
        root.handlers[:] = before
        root.setLevel(level)
