"""A broker that kills itself at a point: ``python once_broker.py POINT COUNT -- mqbroker -c FILE``.

The point is one of ``POINTS``; the process ends by SIGKILL when it comes there for the COUNT-th
time. It is otherwise the real one.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from rocketpost.server.__main__ import servers
from rocketpost.server.features import dedup_recovery as once_recovery
from rocketpost.server.writer.log_writer import LogWriter
from rocketpost.store.files import RealFiles
from rocketpost.store.message_store import MessageStore
from rocketpost.store.tables import TableFile

_left = 0


def die() -> None:
    """End at the COUNT-th call, as kill -9 does."""
    global _left
    _left -= 1
    if _left <= 0:
        os.kill(os.getpid(), signal.SIGKILL)


def around(owner: Any, name: str, *, before: bool, when: Callable[..., bool]) -> None:
    """Die before or after a function, if ``when`` says so of its arguments."""
    true = getattr(owner, name)

    def replaced(*args: Any, **kwargs: Any) -> Any:
        matters = when(*args, **kwargs)
        if matters and before:
            die()
        result = true(*args, **kwargs)
        if matters and not before:
            die()
        return result

    setattr(owner, name, replaced)


def _writes(store: Any) -> bool:
    return bool(store.end_position > store.written_position)


def _sends(writer: Any) -> bool:
    return any(send.times_out for send in writer._appended)


def _is_snapshot(*args: Any, **_: Any) -> bool:
    return any("producerState" in str(getattr(each, "_path", each)) for each in args)


def _to_backup(_: Any, source: str, target: str) -> bool:
    return "producerState" in source and target.endswith(".bak")


def _always(*_: Any, **__: Any) -> bool:
    return True


POINTS: dict[str, Callable[[], None]] = {
    "before the write": lambda: around(MessageStore, "commit", before=True, when=_writes),
    "after the write": lambda: around(MessageStore, "commit", before=False, when=_writes),
    "after the answer": lambda: around(LogWriter, "commit", before=False, when=_sends),
    "before a snapshot": lambda: around(TableFile, "save_blocking", before=True, when=_is_snapshot),
    "in a snapshot": lambda: around(TableFile, "_write", before=False, when=_is_snapshot),
    "between two names": lambda: around(RealFiles, "rename", before=False, when=_to_backup),
    "after a snapshot": lambda: around(TableFile, "save_blocking", before=False, when=_is_snapshot),
    "while it reads the log": lambda: around(once_recovery, "stamp_of", before=True, when=_always),
    "after it read the log": lambda: around(once_recovery, "_replay", before=False, when=_always),
}


def main() -> None:
    global _left
    at = sys.argv.index("--")
    point, count = sys.argv[1:at]
    _left = int(count)
    POINTS[point]()
    servers(sys.argv[at + 1 :])


if __name__ == "__main__":
    main()
