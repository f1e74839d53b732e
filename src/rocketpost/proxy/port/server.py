"""The gRPC port."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

import grpc

from rocketpost.errors import ConfigError
from rocketpost.proxy.methods import MethodTable
from rocketpost.proxy.port.credentials import CredentialSource
from rocketpost.proxy.port.front import Front
from rocketpost.proxy.settings import ProxyConfig
from rocketpost.transport.entrance import TlsMode
from rocketpost.transport.listener import room_of_process
from rocketpost.transport.tls_layer import HANDSHAKE_SECONDS

logger = logging.getLogger(__name__)

_DESCRIPTORS: Final = 3
"""Open files of a connection that passes through the front."""
_STOP_SECONDS: Final = 1.0
"""Time for calls to end. Streams of clients do not end by themselves."""
_OPTIONS: Final = (
    ("grpc.so_reuseport", 0),
    ("grpc.server_handshake_timeout_ms", round(HANDSHAKE_SECONDS * 1000)),
)
_SHARE: Final = 4
"""Connections have this part of those that a process may have: its other ports have the rest."""


class GrpcServer:
    """Serves the methods on a port. Belongs to the event loop.

    Args:
        methods: The methods.
        config: The settings.
        keys: The certificate; without one the port is plain.
    """

    def __init__(
        self, methods: MethodTable, config: ProxyConfig, keys: CredentialSource | None
    ) -> None:
        self._config = config
        self._methods = methods
        self._keys = keys
        self._mode = config.tls_mode if keys is not None else TlsMode.DISABLED
        options = (
            *_OPTIONS,
            # Clients send pings while they make no call.
            ("grpc.http2.min_ping_interval_without_data_ms", config.ping_interval_ms),
            ("grpc.keepalive_permit_without_calls", int(config.allows_idle_pings)),
            ("grpc.max_concurrent_streams", config.calls_max),
            ("grpc.max_receive_message_length", config.call_bytes_max),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_connection_idle_ms", config.idle_ms),
            (
                "grpc.max_allowed_incoming_connections",
                max(room_of_process().connections_max // _SHARE, 16),
            ),
        )
        self._server = grpc.aio.server(options=options)
        self._server.add_generic_rpc_handlers((methods.handler,))
        self._front: Front | None = None
        self.port = 0
        """The bound port."""

    async def start(self) -> None:
        """Bind the port and serve.

        Raises:
            ConfigError: The port cannot be bound, or the certificate cannot be used.
        """
        host = self._config.bind_address or "0.0.0.0"
        credentials = None
        if self._keys is not None:
            credentials = await asyncio.to_thread(self._keys.make_blocking)
        if credentials is None or self._mode is not TlsMode.PERMISSIVE:
            target = f"[{host}]" if ":" in host else host
            self.port = self._bind(f"{target}:{self._config.port}", credentials)
            await self._server.start()
        else:
            await self._start_with_front(host, credentials)
        logger.info("gRPC port open: address=%s:%s tls=%s", host, self.port, self._mode.value)

    async def _start_with_front(self, host: str, credentials: grpc.ServerCredentials) -> None:
        front = Front(connections_max=room_of_process().connections_max // _DESCRIPTORS)
        front.plain.bound = self._bind(front.plain.target, None)
        front.secure.bound = self._bind(front.secure.target, credentials)
        await self._server.start()
        await front.start(host, self._config.port)
        self._methods.peer_of = front.peer_of
        self._front, self.port = front, front.port

    def _bind(self, target: str, credentials: grpc.ServerCredentials | None) -> int:
        port: int
        try:
            if credentials is None:
                port = self._server.add_insecure_port(target)
            else:
                port = self._server.add_secure_port(target, credentials)
        except RuntimeError:
            port = 0
        if not port:
            raise ConfigError(
                f"cannot listen on {target} for gRPC: is another server running there? Set "
                "grpcServerPort to a free port"
            )
        return port

    async def stop(self) -> None:
        """Serve no new calls, let those that run end, and close the port."""
        if self._front is not None:
            self._front.stop_listening()
        with contextlib.suppress(asyncio.CancelledError):
            await self._server.stop(grace=_STOP_SECONDS)
        if self._front is not None:
            await self._front.close()
