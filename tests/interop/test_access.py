"""Keys against Apache's broker with access control on, whatever the target is."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from interop.jvm import QUICK_START
from interop.servers import SMALL_STORE, Cluster, Jvm
from rocketpost.client import (
    ClientConfig,
    ClientTls,
    Credentials,
    Message,
    Producer,
    ProducerConfig,
    PullConsumer,
    PullConsumerConfig,
    PushConsumer,
    PushConsumerConfig,
    ReceivedMessage,
    StartFrom,
)
from rocketpost.client.admin import AdminClient
from rocketpost.codec.faults import NoPermission
from rocketpost.errors import ClientError
from rocketpost.model.topic import TopicConfig
from rocketpost.spark.session import make_session
from rocketpost.testing.secure.certificates import CertificateFolder

pytestmark = pytest.mark.interop

USER, SECRET = "admin", "not-to-be-seen"
RIGHT = Credentials(USER, SECRET)
PROVIDERS = "org.apache.rocketmq.auth.{kind}.provider.{name}"
SETTINGS = {
    **SMALL_STORE,
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": f'{{"username":"{USER}","password":"{SECRET}"}}',
    "innerClientAuthenticationCredentials": f'{{"accessKey":"{USER}","secretKey":"{SECRET}"}}',
} | {
    f"{kind}{what}": PROVIDERS.format(kind=kind, name=f"{prefix}{kind.capitalize()}{what}")
    for kind in ("authentication", "authorization")
    for what, prefix in (("Provider", "Default"), ("MetadataProvider", "Local"))
}
KEYS = {"ROCKETMQ_ACCESS_KEY": USER, "ROCKETMQ_SECRET_KEY": SECRET}
"""The environment of ``mqadmin``."""
WRONG = [
    (Credentials(USER, "another"), "check signature failed"),
    (Credentials("nobody", SECRET), "User:nobody is not found"),
    (None, "username cannot be null"),
]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> CertificateFolder:
    return CertificateFolder(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def guarded(
    java: None, tmp_path_factory: pytest.TempPathFactory, certificates: CertificateFolder
) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("guarded")
    keys = certificates.issue()
    tls = {
        "tls.test.mode.enable": "false",
        "tls.server.mode": "permissive",
        "tls.server.certPath": keys.certificate,
        "tls.server.keyPath": keys.key,
        "tls.server.need.client.auth": "require",
        "tls.server.authClient": "true",
        "tls.server.trustCertPath": certificates.root,
    }
    jvm = Jvm(options=(*QUICK_START, *(f"-D{key}={text}" for key, text in tls.items())))
    with Cluster(
        directory, "apache", settings=SETTINGS, broker_jvm=jvm, namesrv_jvm=jvm
    ) as cluster:
        asyncio.run(_fill(cluster))
        yield cluster


async def _fill(cluster: Cluster) -> None:
    config = ClientConfig(name_servers=cluster.namesrv, credentials=RIGHT)
    async with AdminClient(config=config) as admin:
        for name in ("Guarded", "Copied"):
            topic = TopicConfig(topic_name=name, read_queue_nums=2, write_queue_nums=2)
            await admin.topics.create(cluster.broker, topic)
    sends = ProducerConfig(name_servers=cluster.namesrv, credentials=RIGHT)
    async with Producer("writers", config=sends) as producer:
        await producer.send_batch([Message("Guarded", b"%d" % n) for n in range(50)])
        await producer.send(Message("Guarded", b"50", sharding_key="k"))
        await producer.send_oneway(Message("Guarded", b"51"))


async def test_every_client_works_with_the_right_keys(guarded: Cluster) -> None:
    found: set[bytes] = set()
    done = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        found.add(bytes(message.body))
        if len(found) == 52:
            done.set()

    config = PushConsumerConfig(
        name_servers=guarded.namesrv, credentials=RIGHT, start_from=StartFrom.FIRST
    )
    consumer = PushConsumer("readers", config=config)
    consumer.subscribe("Guarded", handle)
    async with consumer, asyncio.timeout(60):
        await done.wait()
    pulls = PullConsumerConfig(name_servers=guarded.namesrv, credentials=RIGHT)
    async with PullConsumer("readers", config=pulls) as puller:
        for queue in await puller.queues("Guarded"):
            await puller.commit_offset(queue, 1)
            assert await puller.fetch_offset(queue) == 1


async def test_the_sdk_with_tls_a_certificate_and_keys(
    guarded: Cluster, certificates: CertificateFolder
) -> None:
    own = certificates.issue("our client", is_server=False)
    tls = ClientTls(trusted=certificates.root, certificate=own.certificate, key=own.key)
    names = guarded.namesrv
    config = ProducerConfig(name_servers=names, credentials=RIGHT, tls=tls)
    async with Producer("writers", config=config) as producer:
        sent = await producer.send(Message("Copied", b"by TLS"))
    pulls = PullConsumerConfig(name_servers=names, credentials=RIGHT, tls=tls)
    async with PullConsumer("readers", config=pulls) as puller:
        pulled = await puller.pull(sent.queue, sent.queue_offset)
        assert [bytes(message.body) for message in pulled.messages] == [b"by TLS"]
    strangers = CertificateFolder(certificates.folder / "strangers")
    config = ProducerConfig(name_servers=names, tls=ClientTls(trusted=strangers.root))
    with pytest.raises(ClientError, match="certificate"):
        async with Producer("writers", config=config) as producer:
            await producer.send(Message("Copied", b"to nobody"))


def test_the_tool_with_tls_and_keys(
    guarded: Cluster, certificates: CertificateFolder, tmp_path: Path
) -> None:
    own = certificates.issue("our tool", is_server=False)
    settings = tmp_path / "tls.properties"
    settings.write_text(
        f"tls.client.trustCertPath={certificates.root}\n"
        f"tls.client.certPath={own.certificate}\n"
        f"tls.client.keyPath={own.key}\n"
    )
    tls = {"ROCKETMQ_TLS_ENABLE": "true", "ROCKETMQ_TLS_CONFIG_FILE": str(settings)}
    done = mqadmin(guarded, **KEYS, **tls)
    assert done.returncode == 0, done.stderr
    assert "broker-a" in done.stdout


@pytest.mark.long
def test_the_tool_changes_users_and_rules_of_apaches_broker(guarded: Cluster) -> None:
    where = f"-b {guarded.broker}"
    rule = f"-s User:app -r Topic:Guarded,Group:g -d Allow {where}"
    for line, expected in (
        (f"createUser -u app -p app-secret -t Normal {where}", "create user to"),
        (f"updateUser -u app -p another-secret {where}", "update user to"),
        (f"getUser -u app {where}", "another-secret"),
        (f"listUser {where}", "app"),
        (f"createAcl -a Pub {rule}", "create acl to"),
        (f"updateAcl -a Pub,Sub {rule}", "update acl to"),
        (f"getAcl -s User:app {where}", "[Pub, Sub]"),
        (f"listAcl {where}", "User:app"),
        (f"copyUser -f {guarded.broker} -t {guarded.broker} -u app", "copy user of app"),
        (f"copyAcl -f {guarded.broker} -t {guarded.broker} -s User:app", "copy acl of User:app"),
        (f"deleteAcl -s User:app {where}", "delete acl to"),
        (f"deleteUser -u app {where}", "delete user to"),
    ):
        done = mqadmin(guarded, line, **KEYS)
        assert (done.returncode, done.stderr) == (0, ""), line
        assert expected in done.stdout, line


@pytest.mark.parametrize(("keys", "said"), WRONG)
async def test_the_wrong_keys_get_a_clear_refusal(
    guarded: Cluster, keys: Credentials | None, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = ProducerConfig(name_servers=guarded.namesrv, credentials=keys, retries=0)
    async with Producer("writers", config=config) as producer:
        with pytest.raises(NoPermission, match=said) as raised:
            await producer.send(Message("Guarded", b"x"))
    notes = " ".join(raised.value.__notes__)
    assert ("was not signed" in notes) is (keys is None)
    pulls = PullConsumerConfig(name_servers=guarded.namesrv, credentials=keys)
    async with PullConsumer("readers", config=pulls) as puller:
        [queue, *_] = await puller.queues("Guarded")
        with pytest.raises(NoPermission, match=said):
            await puller.pull(queue, 0)
    assert SECRET not in caplog.text


def mqadmin(
    cluster: Cluster, line: str = "topicStatus -t Guarded", **environment: str
) -> subprocess.CompletedProcess[str]:
    names = ("ROCKETMQ_ACCESS_KEY", "ROCKETMQ_SECRET_KEY", "ROCKETMQ_HOME")
    clean = {name: value for name, value in os.environ.items() if name not in names}
    tool = str(Path(sys.executable).parent / "mqadmin")
    return subprocess.run(
        [tool, *line.split(), "-n", cluster.namesrv],
        env=clean | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_tool_takes_keys_from_the_environment_or_from_its_file(
    guarded: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "tools.yml").write_text(f"accessKey: {USER}\nsecretKey: {SECRET}\n")
    for environment in (
        KEYS,
        {"ROCKETMQ_HOME": str(tmp_path)},
    ):
        done = mqadmin(guarded, **environment)
        assert done.returncode == 0, done.stderr
        assert "broker-a" in done.stdout
    refused = mqadmin(guarded)
    assert refused.returncode == 1
    assert "username cannot be null" in refused.stderr
    assert "was not signed" in refused.stderr


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("events")


@pytest.fixture(scope="module")
def spark(java: None, events: Path) -> Iterator[SparkSession]:
    options = {
        "spark.driver.memory": "1g",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.compress": "false",
    }
    session = make_session("access", master="local[2]", options=options)
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


def table(spark: SparkSession, cluster: Cluster, **options: str) -> DataFrame:
    reader = spark.read.format("rocketmq").option("nameServer", cluster.namesrv)
    return reader.options(topic="Guarded", **options).load().select("body")


@pytest.mark.long
def test_spark_takes_keys_and_nothing_of_it_shows_them(
    guarded: Cluster, spark: SparkSession, events: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = {"accessKey": USER, "secretKey": SECRET, "securityToken": "not-this-either"}
    frame = table(spark, guarded, **keys)
    assert frame.count() >= 52
    frame.explain(True)
    for delivery in ("atLeastOnce", "effectivelyOnce"):
        writer = frame.write.format("rocketmq").mode("append").options(**keys)
        writer = writer.option("nameServer", guarded.namesrv).option("topic", "Copied")
        writer.options(delivery=delivery, sinkId="access").save()
    with pytest.raises(PySparkException, match="check signature failed") as raised:
        table(spark, guarded, accessKey=USER, secretKey="not-right-either").count()
    shown = [str(raised.value), *capsys.readouterr()]
    with pytest.raises(PySparkException, match="was not signed"):
        table(spark, guarded).count()
    log = "".join(path.read_text() for path in events.rglob("*") if path.is_file())
    assert "rocketmq" in log  # the plans are there
    for text in [*shown, log]:
        for secret in (SECRET, "not-this-either", "not-right-either"):
            assert secret not in text
