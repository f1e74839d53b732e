"""A check that the address which clients get leads to a server at all.

A broker in a container or behind a firewall often announces an address that nobody can reach.
Clients then find the broker at a name server and cannot connect, and the broker would not notice.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from rocketpost.transport.connector import reason_of

logger = logging.getLogger(__name__)

DIAL_SECONDS: Final = 5.0


async def check_announced(address: str, *, seconds: float = DIAL_SECONDS) -> bool:
    """Connect to the announced address; log a warning if that fails.

    A warning only: in some networks, only the machine itself cannot reach its public address.
    """
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(seconds):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except (OSError, TimeoutError) as error:
        late = f"no answer in {seconds:g} s"
        reason = late if isinstance(error, TimeoutError) else reason_of(error)
        logger.warning(
            "clients may not reach this broker: announced=%s reason=%s; set brokerIP1 (or "
            "ROCKETPOST_ADVERTISE) to an address that they can connect to",
            address,
            reason,
        )
        return False
    writer.close()
    return True
