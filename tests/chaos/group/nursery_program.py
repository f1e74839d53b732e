"""Starts brokers quickly: imports the server once, and forks a process for each order.

An order is a line of JSON on standard input:

    {"number": 1, "namespace": "...", "log": "...", "arguments": ["mqbroker", "-c", "..."],
     "bug": "", "mirror": ["store", "mirror"]}

The answers are lines of JSON on standard output: ``{"number": 1, "pid": 42}`` when a process was
born, and ``{"pid": 42, "code": 0}`` when it has ended. ``bug`` names a function of ``bugs``, and
``mirror`` is given to ``volatile_disk``. A process dies with this program, and is otherwise a
server like every other.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import selectors
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import rocketpost.server.broker  # noqa: F401 - so that no process imports it again
from chaos import volatile_disk
from chaos.group import bugs
from chaos.group.network import enter
from rocketpost.server.__main__ import servers

_SET_DEATH_SIGNAL = 1


def become(order: dict[str, Any]) -> None:
    """Be the server of an order; never returns."""
    code = 1
    try:
        os.setsid()
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        os.closerange(3, 64)
        enter(order["namespace"])
        if order["mirror"]:
            volatile_disk.install(*order["mirror"])
        if order["bug"]:
            bugs.BUGS[order["bug"]]()
        servers(order["arguments"])
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def say(**values: int) -> None:
    print(json.dumps(values), flush=True)


def reap() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        say(pid=pid, code=os.waitstatus_to_exitcode(status))


def main() -> None:
    gc.collect()
    gc.freeze()
    wake, waker = os.pipe()
    for fd in (wake, waker):
        os.set_blocking(fd, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker)
    selector = selectors.DefaultSelector()
    for source in (0, wake):
        selector.register(source, selectors.EVENT_READ)
    pending = b""
    while True:
        for key, _ in selector.select():
            if key.fd == wake:
                os.read(wake, 4096)
                reap()
                continue
            data = os.read(0, 65536)
            if not data:
                return
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                order = json.loads(line)
                pid = os.fork()
                if pid == 0:
                    become(order)
                say(number=order["number"], pid=pid)


if __name__ == "__main__":
    main()
