"""Lets programs use the ports that a page prints although others have them.

Every Python process that has this directory in ``PYTHONPATH`` loads this module at its start.
``PRINTED_PORTS`` is a JSON object of printed ports and real ones: whoever connects to a printed
port of any host, or listens on it, gets the real port of 127.0.0.1.
"""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

PORTS = {int(printed): real for printed, real in json.loads(os.environ["PRINTED_PORTS"]).items()}


def map_ports(loop: type[Any]) -> None:
    """Change where an event loop connects to and listens."""
    connect, listen = loop.create_connection, loop.create_server

    async def create_connection(
        self: Any, factory: Any, host: Any = None, port: Any = None, **more: Any
    ) -> Any:
        if port in PORTS:
            host, port = "127.0.0.1", PORTS[port]
        return await connect(self, factory, host, port, **more)

    async def create_server(
        self: Any, factory: Any, host: Any = None, port: Any = None, **more: Any
    ) -> Any:
        if port in PORTS:
            host, port = "127.0.0.1", PORTS[port]
        return await listen(self, factory, host, port, **more)

    loop.create_connection = create_connection
    loop.create_server = create_server


map_ports(asyncio.BaseEventLoop)
try:
    import uvloop
except ImportError:
    pass
else:
    map_ports(uvloop.Loop)
