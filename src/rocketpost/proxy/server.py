"""The gRPC port."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

import grpc

from rocketpost.errors import ConfigError
from rocketpost.proxy.methods import MethodTable
from rocketpost.proxy.settings import ProxyConfig

logger = logging.getLogger(__name__)

_OPTIONS: Final = (
    ("grpc.so_reuseport", 0),
    # Clients send pings while they make no call.
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.max_concurrent_streams", 10_000),
)


class GrpcServer:
    """Serves the methods on a port. Belongs to the event loop.

    Args:
        methods: The methods.
        config: The settings.
    """

    def __init__(self, methods: MethodTable, config: ProxyConfig) -> None:
        self._config = config
        options = (
            *_OPTIONS,
            ("grpc.max_receive_message_length", config.call_bytes_max),
            ("grpc.max_send_message_length", -1),
        )
        self._server = grpc.aio.server(options=options)
        self._server.add_generic_rpc_handlers((methods.handler,))
        self.port = 0
        """The bound port."""

    async def start(self) -> None:
        """Bind the port and serve.

        Raises:
            ConfigError: The port cannot be bound.
        """
        config = self._config
        host = config.bind_address or "0.0.0.0"
        host = f"[{host}]" if ":" in host else host
        address = f"{host}:{config.port}"
        try:
            self.port = self._server.add_insecure_port(address)
        except RuntimeError:
            self.port = 0
        if not self.port:
            raise ConfigError(
                f"cannot listen on {address} for gRPC: is another server running there? Set "
                "grpcServerPort to a free port"
            )
        await self._server.start()
        logger.info("gRPC port open: address=%s:%s", host, self.port)

    async def stop(self) -> None:
        """Serve no new calls, let those that run end, and close the port."""
        with contextlib.suppress(asyncio.CancelledError):
            await self._server.stop(grace=min(self._config.stop_seconds, 1))
