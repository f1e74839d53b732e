"""Runs programs and commands as a guide prints them, on servers at other ports than it prints.

    python run_printed.py '{"9876": 23456, "10911": 23457}' < jobs

Each line of the standard input is a job: ``{"kind": "python", "text": ..., "until": seconds}`` or
``{"kind": "mqadmin", "arguments": [...]}``. A line with exit code and output answers it. One
interpreter has imported everything and forks for each job, so that a job costs what it does.
A program that runs for ever gets SIGTERM once it has printed something.
"""

from __future__ import annotations

import asyncio
import json
import os
import runpy
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import uvloop

import rocketpost.admin.main
import rocketpost.client.admin
import rocketpost.client.blocking
from rocketpost.testing import Cluster  # noqa: F401

PORTS = {int(printed): real for printed, real in json.loads(sys.argv[1]).items()}


def map_ports(loop: Any) -> None:
    connect = loop.create_connection

    async def mapped(
        self: Any, factory: Any, host: Any = None, port: Any = None, **more: Any
    ) -> Any:
        return await connect(self, factory, host, PORTS.get(port, port), **more)

    loop.create_connection = mapped


def run(job: dict[str, Any], output: str) -> None:
    with open(output, "wb", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    map_ports(asyncio.BaseEventLoop)
    map_ports(uvloop.Loop)  # of blocking clients
    if job["kind"] == "mqadmin":
        sys.argv = ["mqadmin", *job["arguments"]]
        rocketpost.admin.main.mqadmin()
    else:
        path = Path("printed.py")
        path.write_text(job["text"])
        runpy.run_path(str(path), run_name="__main__")


def do(job: dict[str, Any]) -> tuple[int, str]:
    with tempfile.NamedTemporaryFile() as output:
        child = os.fork()
        if not child:
            try:
                run(job, output.name)
            except SystemExit as end:
                sys.stdout.flush()
                os._exit(int(end.code or 0) if not isinstance(end.code, str) else 1)
            except BaseException:
                sys.excepthook(*sys.exc_info())
                sys.stdout.flush()
                os._exit(1)
            sys.stdout.flush()
            os._exit(0)
        deadline = time.monotonic() + 40
        while True:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                break
            size = os.path.getsize(output.name)
            if time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
            elif job.get("endless") and size:
                job["endless"] = False
                os.kill(child, signal.SIGTERM)
            time.sleep(0.01)
        return os.waitstatus_to_exitcode(status), Path(output.name).read_text(errors="replace")


for line in sys.stdin:
    print(json.dumps(do(json.loads(line))), flush=True)
