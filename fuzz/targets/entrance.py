"""Everything that a port reads before it knows its peer: first bytes, headers, logins.

port      TLS, plain and PROXY bytes at the entrance of a remoting port, cut anywhere
proxy     a PROXY header by itself
login     the frames by which brokers log in to each other
slave     the positions of a slave of RocketMQ
gRPC      the headers of a call, and the name of its peer
"""

from __future__ import annotations

import asyncio
import ipaddress
import shutil
import tempfile
from pathlib import Path
from typing import Any

from fuzz.finding import Find
from fuzz.supply import Supply
from rocketpost.access.info import UserInfo
from rocketpost.access.peer_proof import NONCE_BYTES
from rocketpost.access.table import AccessTable
from rocketpost.codec.command import Command
from rocketpost.codec.ha_frames import ReportDecoder
from rocketpost.codec.peer_login import (
    MAGIC,
    PROOF_BYTES,
    TEXT_BYTES_MAX,
    Challenge,
    Introduction,
    Proof,
    Verdict,
    encode_login,
    take_login,
)
from rocketpost.codec.proxy_protocol import (
    HEADER_BYTES_MAX,
    SIGNATURE,
    ProxyHeader,
    parse_proxy_header,
)
from rocketpost.errors import RemoteProtocolError
from rocketpost.proxy.calls import identity_of, parse_peer, read_headers
from rocketpost.proxy.refusals import Refusal
from rocketpost.server.access.audit import NoAudit
from rocketpost.server.access.gate import Gate
from rocketpost.server.proxy.guard import LocalGuard
from rocketpost.server.secure.certificates import open_security_blocking
from rocketpost.server.settings.namesrv import NamesrvConfig
from rocketpost.testing.secure.certificates import CertificateFolder
from rocketpost.testing.secure.memory_transport import MemoryTransport
from rocketpost.transport.connection import Connection
from rocketpost.transport.entrance import Entrance, EntranceRules, TlsMode

_MODES = tuple(TlsMode)
_LOGINS = (Introduction, Challenge, Proof, Verdict)
_BEGINNINGS = (
    *(b"", b"\x16\x03\x01", b"\x00\x00\x00", MAGIC, SIGNATURE, b"PROXY TCP4 "),
    *(SIGNATURE + b"\x21\x11\x00\x0c", SIGNATURE + b"\x20\x00\x00\x00", b"PROXY UNKNOWN\r\n"),
)
_HEADERS = (
    *("x-mq-client-id", "x-mq-date-time", "authorization", "x-mq-language", "x-mq-client-version"),
    *("x-mq-authorization-ak", "x-mq-channel-id", "rpc-remote-address"),
)
_VALUES = (
    "MQv2-HMAC-SHA1 Credential=root, SignedHeaders=x-mq-date-time, Signature=00ff",
    *("Credential=root", "Signature=", ",=,", "20261118T101112Z", "ipv4:1:2", "ipv6:[::1]:"),
)


class Target:
    """Offers bytes to everything that reads them before a login."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._errors: list[str] = []
        self._loop.set_exception_handler(
            lambda loop, context: self._errors.append(str(context.get("exception")))
        )
        self._home = Path(tempfile.mkdtemp(prefix="rocketpost-fuzz-"))
        folder = CertificateFolder(self._home)
        keys = folder.issue()
        values = {
            "tls.server.mode": "permissive",
            "tls.server.certPath": keys.certificate,
            "tls.server.keyPath": keys.key,
            "tls.client.trustCertPath": folder.root,
        }
        self._certificates = open_security_blocking(values).certificates
        table = AccessTable()
        user = UserInfo(username="root", password="not-to-be-guessed", user_type="Super")
        table.create_user(user, caller=None)
        config = NamesrvConfig(authentication_enabled=True, authorization_enabled=True)
        gate = Gate(table, config, cluster="C", audit=NoAudit())
        self._guard = LocalGuard(lambda: gate)

    def check(self, data: bytes) -> None:
        """Offer ``data`` in one of the forms."""
        supply = Supply(data)
        kind = supply.byte() % 5
        if kind == 0:
            self._loop.run_until_complete(self._port(supply))
        elif kind == 1:
            self._proxy(supply.pick(_BEGINNINGS) + supply.rest())
        elif kind == 2:
            self._login(supply)
        elif kind == 3:
            self._slave(supply)
        else:
            self._call(supply)
        if self._errors:
            found, self._errors = self._errors, []
            raise Find("; ".join(found))

    def close(self) -> None:
        """Remove the certificates."""
        self._loop.close()
        shutil.rmtree(self._home, ignore_errors=True)

    async def _port(self, supply: Supply) -> None:
        mode = supply.pick(_MODES)
        needs_header = supply.chance(2)
        rules = EntranceRules(
            mode=mode,
            certificates=None if mode is TlsMode.DISABLED else self._certificates,
            proxies=(ipaddress.ip_network("10.0.0.0/8"),) if needs_header else (),
        )
        served: list[Command] = []
        made: list[Connection] = []

        def make() -> Connection:
            made.append(Connection(on_request=lambda connection, command: served.append(command)))
            return made[-1]

        entrance = Entrance(rules, make)
        transport = MemoryTransport(entrance.admit()).connect()
        stream = supply.pick(_BEGINNINGS)
        cut = supply.number(1, 64)
        stream += supply.rest()
        for at in range(0, len(stream), cut):
            if not transport.is_closed:
                transport.deliver(stream[at : at + cut])
        if mode is TlsMode.ENFORCING and served:
            raise Find("a plain request was decoded where TLS is required")
        if needs_header and made and not stream.startswith((b"PROXY ", SIGNATURE)):
            raise Find("a connection was made without the PROXY header that it needs")
        transport.lose()
        await asyncio.sleep(0)
        if entrance.count:
            raise Find("a stranger is counted although it is gone")

    def _proxy(self, data: bytes) -> None:
        whole = _header_of(data)
        if isinstance(whole, ProxyHeader):
            if not 0 < whole.size <= min(len(data), HEADER_BYTES_MAX):
                raise Find(f"a header of {whole.size} bytes in {len(data)}")
            if whole.source is not None:
                ipaddress.ip_address(whole.source[0])
            for size in range(1, whole.size):
                if isinstance(_header_of(data[:size]), ProxyHeader):
                    raise Find("a part of the header means something else")
            if _header_of(data + b"more") != whole:
                raise Find("bytes after the header change its meaning")

    def _login(self, supply: Supply) -> None:
        kind = supply.pick(_LOGINS)
        if supply.chance(2):
            size = NONCE_BYTES if kind in (Introduction, Challenge) else PROOF_BYTES
            number = (supply.raw(size) + bytes(size))[:size]
            stream = bytearray(encode_login(_login_of(kind, supply, number)) + supply.rest())
        else:
            stream = bytearray(supply.pick(_BEGINNINGS) + supply.rest())
        if not stream:
            return
        pieces, whole = bytearray(), bytearray(stream)
        try:
            frame = take_login(kind, whole)
        except RemoteProtocolError:
            return
        if frame is None:
            if len(stream) > len(MAGIC) + 2 + TEXT_BYTES_MAX:
                raise Find("more than a frame is held")
            return
        for byte in stream[: len(stream) - len(whole)]:
            pieces.append(byte)
            found = take_login(kind, pieces)
        if found != frame:
            raise Find("another cutting means another frame")

    def _slave(self, supply: Supply) -> None:
        cut, stream = supply.number(1, 16), supply.rest()
        decoder = ReportDecoder()
        found: list[int] = []
        try:
            for at in range(0, len(stream), cut):
                found += decoder.feed(stream[at : at + cut])
        except RemoteProtocolError:
            return
        if found != ReportDecoder().feed(stream):
            raise Find("another cutting means other positions")

    def _call(self, supply: Supply) -> None:
        metadata: list[tuple[str, Any]] = []
        for _ in range(supply.number(0, 8)):
            name = supply.pick(_HEADERS)
            value = supply.pick(_VALUES) if supply.chance(2) else supply.text()
            metadata.append((name, value))
        headers = read_headers(metadata)
        address = parse_peer(supply.pick(_VALUES) if supply.chance(2) else supply.text())
        if not address[1] >= 0:
            raise Find(f"a port {address[1]}")
        if self._guard.is_signed(metadata):
            raise Find("headers without the secret prove a user")
        try:
            identity = identity_of(headers, address)
            self._guard.admit(identity, headers, "SendMessage")
        except Refusal:
            return
        raise Find("a call without the secret was admitted")


def _header_of(data: bytes) -> ProxyHeader | str | None:
    try:
        return parse_proxy_header(data)
    except RemoteProtocolError:
        return "refused"


def _login_of(kind: type, supply: Supply, number: bytes) -> Any:
    if kind is Introduction:
        return Introduction(user=supply.text()[:100], purpose=supply.text()[:100], nonce=number)
    if kind is Challenge:
        return Challenge(nonce=number)
    return Proof(proof=number) if kind is Proof else Verdict(proof=number)
