"""A broker that kills itself at a point: ``python mortal_broker.py FILE -- mqbroker -c FILE``.

The file holds the name of a point and how often it is passed before the process dies there, by
SIGKILL to itself; an empty file means never. Points lie before and after each step of the timer.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from rocketpost.broker.timer.service import TimerService
from rocketpost.server.__main__ import servers
from rocketpost.server.features import timer as timer_part
from rocketpost.server.writer.log_writer import LogWriter
from rocketpost.store.timer import store as timer_store
from rocketpost.store.timer.log import TimerLog
from rocketpost.store.timer.store import TimerStore
from rocketpost.store.timer.wheel import TimerWheel

STEPS: dict[str, tuple[Any, str]] = {
    "unit": (TimerLog, "append"),
    "units-synced": (TimerLog, "sync_blocking"),
    "journal-or-checkpoint": (timer_store, "write_whole_blocking"),
    "wheel": (TimerWheel, "write_blocking"),
    "save": (TimerStore, "save_blocking"),
    "commit": (LogWriter, "commit"),
    "taken": (TimerService, "_take"),
    "opened": (TimerService, "_open"),
    "loaded": (TimerService, "_load"),
    "judged": (TimerService, "_decide_due"),
    "done": (TimerService, "note_stored"),
    "closed": (TimerService, "_close_or_wait"),
    "recall": (timer_part.TimerFeature, "_recall"),
}
POINTS = [f"{when}-{name}" for name in STEPS for when in ("before", "after")]


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def plant(point: str, passes: int) -> None:
    when, _, name = point.partition("-")
    owner, method = STEPS[name]
    true = getattr(owner, method)
    passed = 0

    def step(*args: Any, **kwargs: Any) -> Any:
        nonlocal passed
        passed += 1
        if passed == passes and when == "before":
            die()
        result = true(*args, **kwargs)
        if passed == passes:
            die()
        return result

    setattr(owner, method, step)


def main() -> None:
    at = sys.argv.index("--")
    text = Path(sys.argv[1]).read_text().split()
    if text:
        plant(text[0], int(text[1]))
    servers(sys.argv[at + 1 :])


if __name__ == "__main__":
    main()
