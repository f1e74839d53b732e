"""One member of a group in a process of its own, for tests that kill it.

Usage: group_process.py <settings as JSON>; prints its port when it serves.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys

from rocketpost.server.broker import BrokerServer


async def run(values: dict[str, str]) -> None:
    """Run the member until the process is killed or cannot go on."""
    server = BrokerServer(values)
    await server.start()
    print(server.port, flush=True)
    print(await server.wait_failed(), flush=True)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    asyncio.run(run(json.loads(sys.argv[1])))
