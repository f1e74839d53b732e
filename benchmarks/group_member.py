"""A member of a group of brokers, as a process of its own.

    python benchmarks/group_member.py SETTINGS_AS_JSON

Prints its port for clients when it serves.
"""

from __future__ import annotations

import json
import logging
import sys

import uvloop

from rocketpost.server.broker import BrokerServer
from rocketpost.server.settings.group import group_settings


async def run(values: dict[str, str]) -> None:
    """Serve until the process is killed."""
    server = BrokerServer(values, group=group_settings(values | {"enableDLegerCommitLog": "true"}))
    await server.start()
    print(server.port, flush=True)
    print(await server.wait_failed(), file=sys.stderr, flush=True)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    uvloop.run(run(json.loads(sys.argv[1])))
