"""The protection of connections between brokers that carry the log: TLS first, then a login.

The port of the called broker has the modes of its other ports. If TLS is required, nothing that
arrives without it is decoded. With access control on, a broker speaks only with brokers that log
in. RocketMQ's own brokers cannot do either on these ports: they are served, and called, without it
if their address is in ``haTrustedNetworks`` (ADR 0173).
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from typing import Final

from rocketpost.errors import NotConnected, ReplicationError
from rocketpost.server.peer_ports.login import PeerLogin
from rocketpost.transport.entrance import EntranceRules, Network, TlsMode
from rocketpost.transport.tls_contexts import ClientContext
from rocketpost.transport.tls_layer import HANDSHAKE_SECONDS
from rocketpost.transport.tls_socket import StreamSocket, shake_hands

CALL_SECONDS: Final = 5.0
"""Time of the called broker for TLS and login."""


class PeerSecurity:
    """TLS and logins of a broker's connections to and from others. Owned by the loop.

    Args:
        login: The secret that servers share; None if access control is off.
        trusted: Networks whose brokers need neither TLS nor a login.
    """

    def __init__(self, login: PeerLogin | None = None, trusted: Sequence[Network] = ()) -> None:
        self.login = login
        self._trusted = tuple(trusted)
        self.rules = EntranceRules()
        """The mode and the certificates of this broker's ports."""
        self.client: ClientContext | None = None
        """TLS of connections that this broker makes; plain ones if None."""
        self.seconds = HANDSHAKE_SECONDS
        """Time that a caller has for its first byte, TLS and login together."""

    @property
    def is_needed(self) -> bool:
        """Whether the first bytes of callers have to be looked at."""
        return self.login is not None or self.rules.mode is not TlsMode.DISABLED

    def is_trusted(self, host: str) -> bool:
        """Tell whether a peer needs neither TLS nor a login."""
        if not self._trusted:
            return False
        address = ipaddress.ip_address(host.partition("%")[0])
        address = getattr(address, "ipv4_mapped", None) or address
        return any(address in network for network in self._trusted)

    async def call(self, sock: socket.socket, host: str, purpose: str) -> StreamSocket:
        """Protect a connection that this broker has made; returns the socket to use from now on.

        Args:
            sock: The connected socket. It is closed if this fails.
            host: The name or address that was called, which the certificate must have.
            purpose: The purpose of the connection.

        Raises:
            RocketpostError: The other one is not who it should be, or refuses; the text says why.
        """
        made: StreamSocket = sock
        try:
            async with asyncio.timeout(CALL_SECONDS):
                if self.client is not None:
                    made = await shake_hands(
                        sock,
                        self.client.current(),
                        server_side=False,
                        server_name=self.client.config.server_name(host),
                    )
                if self.login is not None:
                    await self.login.prove(made, purpose)
            return made
        except TimeoutError:
            made.close()
            raise NotConnected(
                f"no TLS or login in {CALL_SECONDS:g} s: does it have the same tls.server.mode and "
                "authenticationEnabled?"
            ) from None
        except OSError as error:
            made.close()
            raise NotConnected(error.strerror or str(error)) from None
        except BaseException:
            made.close()
            raise

    def check_foreign(self, host: str) -> None:
        """Check that a broker of RocketMQ, which cannot log in, may be called.

        Raises:
            ReplicationError: It may not be called.
        """
        if self.login is not None and not self.is_trusted(host):
            raise ReplicationError(
                f"the master at {host} does not log in, as a broker of RocketMQ or one without "
                "access control: switch on authenticationEnabled there, or list its address in "
                "haTrustedNetworks here"
            )

    def check_login(self, is_needed: bool) -> None:
        """Check that a master of ours and this broker agree on whether brokers log in.

        Args:
            is_needed: Whether slaves log in there.

        Raises:
            ReplicationError: They do not agree.
        """
        if is_needed and self.login is None:
            raise ReplicationError(
                "the master sends its log only to brokers that log in: set "
                "authenticationEnabled=true here, too, with its "
                "innerClientAuthenticationCredentials. Otherwise anybody could read it here"
            )
        if self.login is not None and not is_needed:
            raise ReplicationError(
                "the master does not log in, so it might be anybody: set authenticationEnabled=true"
                " there, too, with the same innerClientAuthenticationCredentials"
            )
