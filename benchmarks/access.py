"""What signatures and TLS cost: CPU of brokers that check them, beside one that does not.

Four brokers take the same messages of 1 KB, by turns: plain; with access control, from a user with
a rule for the topic and one for its group; with TLS; with both. Frames are made before they are
sent, each with a signature of its own.
"""

from __future__ import annotations

import contextlib
import json
import ssl
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path

from bench import BODY, LARGE_FILES, Bench, cost
from load import pull_fields, send_fields

from rocketpost.client.credentials import Credentials
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.command import Command, encode_command
from rocketpost.settings import format_properties
from rocketpost.testing.cluster import BROKER_READY
from rocketpost.testing.process import ServerProcess, free_port
from rocketpost.testing.secure.certificates import CertificateFolder
from rocketpost.transport.connector import Connector
from rocketpost.transport.tls_contexts import ClientContext, ClientTls

TOPIC = "BenchAccess"
GROUP = "bench"
FRAMES = 4096
PULLED = 32
RATIO_MAX = 1.25
ROOT = Credentials("root", "root-secret-of-the-benchmark")
USER = Credentials("bench", "secret-of-the-benchmark")


class Way:
    """One way to reach a broker, and the broker that serves it."""

    def __init__(self, name: str, directory: Path, *, signs: bool, folder: str) -> None:
        self.name = name
        self.signs = signs
        self.folder = folder
        self.port = free_port()
        self._directory = directory
        self.tls: ssl.SSLContext | None = None
        self.sends: list[float] = []
        self.pulls: list[float] = []

    @contextlib.contextmanager
    def broker(self, certificates: CertificateFolder) -> Iterator[ServerProcess]:
        """Run the broker."""
        values = {
            "listenPort": str(self.port),
            "bindAddress": "127.0.0.1",
            "brokerIP1": "127.0.0.1",
            "brokerName": self.folder,
            "storePathRootDir": str(self._directory / self.folder),
            **LARGE_FILES,
        }
        if self.signs:
            values |= {
                "authenticationEnabled": "true",
                "authorizationEnabled": "true",
                "initAuthenticationUser": json.dumps(
                    {"username": ROOT.access_key, "password": ROOT.secret_key}
                ),
            }
        if "TLS" in self.name:
            keys = certificates.issue()
            values |= {
                "tls.server.mode": "enforcing",
                "tls.server.certPath": keys.certificate,
                "tls.server.keyPath": keys.key,
                "tls.client.trustCertPath": certificates.root,
            }
            self.tls = ssl.create_default_context(cafile=certificates.root)
        path = self._directory / f"{self.folder}.conf"
        path.write_text(format_properties(values))
        with ServerProcess(["mqbroker", "-c", str(path)], ready=BROKER_READY) as process:
            yield process

    def frames(
        self, fields_of: Callable[[int], dict[str, str]], code: int, body: bytes = b""
    ) -> Callable[[int], bytes]:
        """Return ready frames, as a function from a sequence number."""
        made = []
        for number in range(FRAMES):
            fields = fields_of(number)
            if self.signs:
                fields = dict(USER.sign(fields, (body,) if body else ()))
            head = encode_command(code, opaque=number + 1, fields=fields, body_bytes=len(body))
            made.append(head + body)
        return lambda number: made[number % FRAMES]


async def access(bench: Bench, directory: Path) -> None:
    """Sends and pulls with signatures and TLS, beside those without."""
    certificates = CertificateFolder(directory / "certificates")
    ways = [
        Way("plain", directory, signs=False, folder="plain"),
        Way("signed", directory, signs=True, folder="signed"),
        Way("TLS", directory, signs=False, folder="tls"),
        Way("signed, TLS", directory, signs=True, folder="both"),
    ]
    with contextlib.ExitStack() as stack:
        brokers = [stack.enter_context(way.broker(certificates)) for way in ways]
        for way in ways:
            await prepare(way, certificates.root)
        sends = [way.frames(send_of, RequestCode.SEND_MESSAGE_V2, BODY) for way in ways]
        for way, broker, frames in zip(ways, brokers, sends, strict=True):
            await cost(broker.pid, way.port, frames, count=bench.count(20_000), tls=way.tls)
        for _ in range(bench.rounds):
            for way, broker, frames in zip(ways, brokers, sends, strict=True):
                spent, _ = await cost(
                    broker.pid, way.port, frames, count=bench.count(50_000), tls=way.tls
                )
                way.sends.append(spent)
        pulls = [way.frames(pull_of, RequestCode.PULL_MESSAGE) for way in ways]
        for _ in range(bench.rounds):
            for way, broker, frames in zip(ways, brokers, pulls, strict=True):
                spent, _ = await cost(
                    broker.pid, way.port, frames, count=bench.count(5000), window=8, tls=way.tls
                )
                way.pulls.append(spent / PULLED)
    report(bench, ways)


def send_of(number: int) -> dict[str, str]:
    """Return the fields of a send like Java's."""
    properties = f"UNIQ_KEY\x017F0000010000ABCD{number:016X}\x02WAIT\x01true\x02TAGS\x01TagA\x02"
    return send_fields(TOPIC, 0, properties)


def pull_of(number: int) -> dict[str, str]:
    """Return the fields of a pull of 32 messages."""
    return pull_fields(TOPIC, 0, number * PULLED % 2000, count=PULLED)


def report(bench: Bench, ways: list[Way]) -> None:
    """Add the figures: medians, and medians of the ratios of one round."""
    plain = ways[0]
    for kind, of in (("send 1 KB", lambda way: way.sends), ("pull 1 KB", lambda way: way.pulls)):
        for way in ways:
            bench.add(f"{kind}, {way.name}", statistics.median(of(way)), "us/message")
        for way in ways[1:]:
            ratio = statistics.median(
                mine / theirs for mine, theirs in zip(of(way), of(plain), strict=True)
            )
            is_goal = kind.startswith("send") and way.name == "signed"
            bench.add(
                f"{kind}, {way.name}, to plain", ratio, "x", most=RATIO_MAX if is_goal else None
            )


async def prepare(way: Way, trusted: str) -> None:
    """Make the user and its rules, and the topic."""
    tls = ClientContext(ClientTls(trusted=trusted)) if way.tls is not None else None
    connector = Connector(on_request=lambda connection, command: None, tls=tls)
    connection = await connector.connect(f"127.0.0.1:{way.port}")

    async def ask(code: int, fields: dict[str, str], body: bytes = b"") -> Command:
        signed = ROOT.sign(fields, (body,) if body else ()) if way.signs else fields
        answer = await connection.request(code, fields=signed, body=body, timeout=30)
        if answer.code != ResponseCode.SUCCESS:
            raise SystemExit(f"the broker refuses {code}: {answer.remark}")
        return answer

    if way.signs:
        user = {"username": USER.access_key, "password": USER.secret_key}
        name = {"username": USER.access_key}
        await ask(RequestCode.AUTH_CREATE_USER, name, json.dumps(user).encode())
        subject = f"User:{USER.access_key}"
        entries = [
            {"resource": f"Topic:{TOPIC}", "actions": ["Pub", "Sub"], "decision": "Allow"},
            {"resource": f"Group:{GROUP}", "actions": ["Sub"], "decision": "Allow"},
        ]
        rules = {"subject": subject, "policies": [{"entries": entries}]}
        await ask(RequestCode.AUTH_CREATE_ACL, {"subject": subject}, json.dumps(rules).encode())
    await ask(RequestCode.SEND_MESSAGE_V2, send_of(0), BODY)
    await connector.close()
