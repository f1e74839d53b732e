"""TLS of whole servers and clients: every kind of request, and nothing without it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rocketpost.client import (
    ClientTls,
    Message,
    NotConnected,
    Producer,
    ProducerConfig,
    PullConsumer,
    PullConsumerConfig,
    PushConsumer,
    PushConsumerConfig,
    ReceivedMessage,
    RocketpostError,
    SimpleConsumer,
    StartFrom,
)
from rocketpost.client.config import ClientConfig
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.command import encode_command
from rocketpost.server.broker import BrokerServer
from rocketpost.server.namesrv.process import NameServer
from rocketpost.server.settings.namesrv import NamesrvConfig
from rocketpost.testing.secure.certificates import CertificateFolder
from rocketpost.testing.waiting import until
from rocketpost.transport.connection import Connection
from rocketpost.transport.connector import Connector
from rocketpost.transport.tls_contexts import ClientContext, KeyPair

SMALL = {
    "mappedFileSizeCommitLog": str(8 * 1024**2),
    "maxHashSlotNum": "1000",
    "maxIndexNum": "4000",
    "brokerIP1": "127.0.0.1",
    "bindAddress": "127.0.0.1",
    "listenPort": "0",
    "haListenPort": "0",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> CertificateFolder:
    return CertificateFolder(tmp_path_factory.mktemp("certificates"))


class Cluster:
    """A name server and a broker with TLS."""

    def __init__(self, folder: CertificateFolder, mode: str) -> None:
        self.folder = folder
        self.keys: KeyPair = folder.issue()
        self.values = {
            "tls.server.mode": mode,
            "tls.server.certPath": self.keys.certificate,
            "tls.server.keyPath": self.keys.key,
            "tls.client.trustCertPath": folder.root,
            "tls.reload.interval": "5",
        }
        self.tls = ClientTls(trusted=folder.root)
        self.broker: BrokerServer
        self.name_server: NameServer

    @property
    def name_servers(self) -> str:
        return f"127.0.0.1:{self.name_server.port}"

    def producer(self, tls: ClientTls | None) -> Producer:
        return Producer("P", config=ProducerConfig(name_servers=self.name_servers, tls=tls))


@contextlib.asynccontextmanager
async def cluster(folder: CertificateFolder, path: Path, mode: str) -> AsyncIterator[Cluster]:
    made = Cluster(folder, mode)
    config = NamesrvConfig(listen_port=0, bind_address="127.0.0.1", kv_config_path=None)
    made.name_server = NameServer(config, tls=made.values)
    await made.name_server.start()
    try:
        made.broker = BrokerServer(
            SMALL
            | made.values
            | {"storePathRootDir": str(path / "store"), "namesrvAddr": made.name_servers}
        )
        await made.broker.start()
        try:
            yield made
        finally:
            await made.broker.stop()
    finally:
        await made.name_server.stop()


async def test_every_kind_of_request_works_with_tls(
    folder: CertificateFolder, tmp_path: Path
) -> None:
    async with cluster(folder, tmp_path, "enforcing") as servers:
        here = {"name_servers": servers.name_servers, "tls": servers.tls}
        got: list[bytes] = []

        async def handle(message: ReceivedMessage) -> None:
            got.append(message.body)

        consumer = PushConsumer("G", config=PushConsumerConfig(start_from=StartFrom.FIRST, **here))
        bodies = [b"%d" % number * 100 for number in range(50)] + [os.urandom(300_000)]
        async with servers.producer(servers.tls) as producer:
            results = [await producer.send(Message("T", body)) for body in bodies]
            consumer.subscribe("T", handle)
            async with consumer:
                await until(lambda: len(got) == len(bodies))
                late = asyncio.create_task(producer.send(Message("T", b"held pulls are woken")))
                await until(lambda: len(got) == len(bodies) + 1)
                await late
            assert sorted(got[:-1]) == sorted(bodies)
            async with PullConsumer("G2", config=PullConsumerConfig(**here)) as puller:
                found = await puller.pull(results[0].queue, results[0].queue_offset)
                assert found.messages[0].body == bodies[0]
            async with SimpleConsumer(
                "G3", start_from=StartFrom.FIRST, config=ClientConfig(**here)
            ) as popper:
                await popper.subscribe("T")
                popped = await popper.receive(count_max=1, invisible_seconds=30)
                assert popped[0].body in bodies
                await popper.ack(popped[0])


async def test_a_plain_request_does_nothing_where_tls_is_required(
    folder: CertificateFolder, tmp_path: Path
) -> None:
    """RocketMQ's broker closes such a connection, but carries out its first request."""
    fields = {
        "topic": "Stolen", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
        "defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG",
    }  # fmt: skip
    frame = encode_command(RequestCode.UPDATE_AND_CREATE_TOPIC, opaque=1, fields=fields)
    async with cluster(folder, tmp_path, "enforcing") as servers:
        for port in (servers.broker.port, servers.broker.port - 2, servers.name_server.port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(frame)
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
            writer.close()
        assert servers.broker._context.tables.topics.find("Stolen") is None
        with pytest.raises(RocketpostError):
            async with servers.producer(None) as plain:
                await plain.send(Message("T", b"x"), timeout=1)


async def test_a_client_checks_the_server_unless_told_not_to(
    folder: CertificateFolder, tmp_path: Path
) -> None:
    strange = CertificateFolder(tmp_path / "strange")
    async with cluster(folder, tmp_path, "permissive") as servers:

        async def try_with(tls: ClientTls) -> None:
            connector = Connector(
                on_request=lambda connection, command: None, tls=ClientContext(tls)
            )
            try:
                await connector.connect(servers.name_servers)
            finally:
                await connector.close()

        await try_with(servers.tls)
        await try_with(ClientTls(check_server=False))
        with pytest.raises(NotConnected, match="certificate is not accepted"):
            await try_with(ClientTls(trusted=strange.root))
        with pytest.raises(NotConnected, match="certificate is not accepted"):
            await try_with(ClientTls())


@pytest.mark.slow
async def test_certificates_change_under_load(folder: CertificateFolder, tmp_path: Path) -> None:
    """Swap the files a hundred times: no send fails, every certificate is served, none stays."""
    swaps, warm = 100, 40
    async with cluster(folder, tmp_path, "enforcing") as servers:
        stopping, sent = asyncio.Event(), 0

        async def send_on() -> None:
            nonlocal sent
            while not stopping.is_set():
                async with servers.producer(servers.tls) as producer:
                    for _ in range(20):
                        await producer.send(Message("T", b"x" * 100))
                        sent += 1

        load = [asyncio.create_task(send_on()) for _ in range(2)]
        serials: set[str] = set()
        for _ in range(swaps):
            if len(serials) == warm:
                contexts, resident = live_contexts(), resident_bytes()
            await asyncio.to_thread(folder.replace, servers.keys)
            wanted = await asyncio.to_thread(serial_in, servers.keys.certificate)
            await until_served(servers, wanted)
            serials.add(wanted)
        stopping.set()
        await asyncio.gather(*load)
        assert len(serials) == swaps
        assert sent > swaps
        # A context for each of 60 certificates would be 3 MB. Those of open connections stay.
        assert live_contexts() <= contexts + 10
        assert resident_bytes() - resident < 3_000_000


def live_contexts() -> int:
    """Return the number of TLS contexts in this process."""
    gc.collect()
    return sum(isinstance(each, ssl.SSLContext) for each in gc.get_objects())


def resident_bytes() -> int:
    """Return the memory of this process that no file backs."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("/proc has no RssAnon")


def serial_in(path: str) -> str:
    from cryptography import x509

    return f"{x509.load_pem_x509_certificate(Path(path).read_bytes()).serial_number:X}"


async def until_served(servers: Cluster, serial: str) -> None:
    """Connect until the broker shows the certificate with a serial number."""
    context = ClientContext(servers.tls)
    async with asyncio.timeout(30):
        while True:
            served: list[str] = []
            connector = Connector(on_request=lambda connection, command: None, tls=context)
            connection: Connection = await connector.connect(f"127.0.0.1:{servers.broker.port}")
            assert connection._transport is not None
            tls: ssl.SSLObject = connection._transport.get_extra_info("ssl_object")
            certificate = tls.getpeercert()
            assert certificate is not None
            served.append(str(certificate["serialNumber"]).lstrip("0"))
            await connector.close()
            if served == [serial.lstrip("0")]:
                return


@pytest.mark.slow
async def test_mqadmin_uses_the_tls_of_its_environment(
    folder: CertificateFolder, tmp_path: Path
) -> None:
    file = tmp_path / "tls.properties"
    file.write_text(f"tls.client.trustCertPath={folder.root}\n")
    async with cluster(folder, tmp_path, "enforcing") as servers:
        command = [
            sys.executable, "-c", "from rocketpost.admin.main import mqadmin; mqadmin()",
            "clusterList", "-n", servers.name_servers,
        ]  # fmt: skip
        tls = {"ROCKETMQ_TLS_ENABLE": "true", "ROCKETMQ_TLS_CONFIG_FILE": str(file)}
        for environment, code in ((tls, 0), ({}, 1)):
            done = await asyncio.to_thread(
                subprocess.run,
                command,
                env=os.environ | environment,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == code, done.stderr
            assert ("ASYNC_MASTER" in done.stdout) is (code == 0)


@pytest.mark.slow
@pytest.mark.parametrize("program", ["mqbroker", "mqnamesrv"])
def test_wrong_settings_stop_the_start(
    folder: CertificateFolder, tmp_path: Path, program: str
) -> None:
    one, other = folder.issue(), folder.issue()
    file = tmp_path / "server.conf"
    for lines, reason in (
        (["tls.server.mode=enforced"], "tls.server.mode=enforced is not valid"),
        (["tls.server.mode=enforcing"], "needs a certificate"),
        (
            [f"tls.server.certPath={one.certificate}", f"tls.server.keyPath={other.key}"],
            "the key is not that of the certificate",
        ),
    ):
        file.write_text("\n".join([*lines, "listenPort=0"]))
        start = f"from rocketpost.server.main import {program}; {program}()"
        done = subprocess.run(
            [sys.executable, "-c", start, "-c", str(file)],
            env=os.environ | {"HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 2
        assert reason in done.stderr
