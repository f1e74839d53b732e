"""The second port of a broker, which old Java clients use."""

from __future__ import annotations

import logging
from typing import Final

from rocketpost.errors import ConfigError
from rocketpost.transport.listener import Listener

logger = logging.getLogger(__name__)

VIP_STEP: Final = 2
"""Distance of the port for old Java clients below the broker's port."""


async def listen_vip(listener: Listener, host: str, broker_port: int) -> None:
    """Listen below the broker's port; a port that cannot be bound is only logged."""
    port = broker_port - VIP_STEP
    if port <= 0:
        return
    try:
        await listener.start(host, port)
    except ConfigError as error:
        logger.warning("no port for old clients: port=%s reason=%s", port, error)
