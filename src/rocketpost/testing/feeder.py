"""A producer program that may be killed at any time.

``python -m rocketpost.testing.feeder NAMESRV DIRECTORY`` sends numbered messages to ``TOPIC``, each
with a sharding key, up to the number in DIRECTORY/target, and ends when that is reached and
DIRECTORY/stop exists. DIRECTORY/fed has the number up to which all are acknowledged; a later run
begins there. A message that is sent twice has the same sequence, so that brokers store it once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from pathlib import Path
from typing import Final

from rocketpost.client import Message, Producer, ProducerConfig
from rocketpost.errors import RocketpostError

TOPIC: Final = "Fed"
KEYS: Final = 37
_TOGETHER: Final = 250
_LOOK_SECONDS: Final = 0.05

logger = logging.getLogger(__name__)


def key_of(number: int) -> str:
    """Return the sharding key of a message."""
    return f"key-{number % KEYS}"


def write_number(path: Path, number: int) -> None:
    """Write a number atomically: a reader finds the old one or the new one."""
    fresh = path.with_suffix(".new")
    fresh.write_text(str(number))
    os.replace(fresh, path)


def read_number(path: Path) -> int:
    """Return the number in a file; 0 if there is none."""
    return int(path.read_text()) if path.exists() else 0


async def feed(name_servers: str, directory: Path) -> None:
    """Send up to the target until told to stop.

    Raises:
        RocketpostError: Messages could not be sent; a later run sends them again.
    """
    config = ProducerConfig(
        name_servers=name_servers, send_timeout=60.0, attempt_timeout=1.0, route_seconds=1.0
    )
    fed = read_number(directory / "fed")
    async with Producer("feeder", config=config, idempotent=True, producer_id="feeder") as producer:
        while True:
            is_last = (directory / "stop").exists()
            target = read_number(directory / "target")
            if fed < target:
                end = min(target, fed + _TOGETHER)
                futures = [
                    await producer.send_soon(
                        Message(TOPIC, b"%d" % n, sharding_key=key_of(n)), sequence=n
                    )
                    for n in range(fed, end)
                ]
                await asyncio.gather(*futures)
                fed = end
                write_number(directory / "fed", fed)
            elif is_last:
                return
            else:
                await asyncio.sleep(_LOOK_SECONDS)


async def _main(name_servers: str, directory: Path) -> None:
    while True:
        try:
            await feed(name_servers, directory)
        except RocketpostError as error:
            logger.warning("sending again after an error: %s", error)
            await asyncio.sleep(_LOOK_SECONDS)
        else:
            return


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], Path(sys.argv[2])))
