"""Apache's clients and ``mqadmin`` with keys and with TLS, against our servers."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from interop.jvm import RESOURCES
from interop.peer import Peer, PeerError, named
from interop.servers import SMALL_STORE, Cluster
from rocketpost.testing.secure.certificates import CertificateFolder

pytestmark = pytest.mark.interop

USER, SECRET = "admin", "admin-secret"
ON: Final = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": f'{{"username":"{USER}","password":"{SECRET}"}}',
    "innerClientAuthenticationCredentials": f'{{"accessKey":"{USER}","secretKey":"{SECRET}"}}',
}
KEYS: Final = {"accessKey": USER, "secretKey": SECRET}
APP: Final = {"accessKey": "app", "secretKey": "app-secret"}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> CertificateFolder:
    return CertificateFolder(tmp_path_factory.mktemp("certificates"))


def cluster_in(directory: Path, **tls: str) -> Cluster:
    return Cluster(
        directory,
        "rocketpost",
        settings=SMALL_STORE | ON | tls,
        namesrv_settings={**ON, **tls, "authConfigPath": str(directory / "ns")},
        is_closed_to_strangers=True,
    )


@pytest.fixture(scope="module")
def guarded(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Servers that check signatures."""
    with cluster_in(tmp_path_factory.mktemp("guarded")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def secured(
    java: None, tmp_path_factory: pytest.TempPathFactory, certificates: CertificateFolder
) -> Iterator[Cluster]:
    """Servers that check signatures and require TLS, with certificates of clients."""
    keys = certificates.issue()
    tls = {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": keys.certificate,
        "tls.server.keyPath": keys.key,
        "tls.server.need.client.auth": "require",
        "tls.server.authClient": "true",
        "tls.server.trustCertPath": certificates.root,
        "tls.client.trustCertPath": certificates.root,
        "tls.client.certPath": keys.certificate,
        "tls.client.keyPath": keys.key,
    }
    with cluster_in(tmp_path_factory.mktemp("secured"), **tls) as cluster:
        yield cluster


def home_with_keys(home: Path) -> Path:
    """Return a home of Apache's tools, which find the administrator's keys there."""
    shutil.copytree(RESOURCES / "conf", home / "conf", dirs_exist_ok=True)
    (home / "conf" / "tools.yml").write_text(f"accessKey: {USER}\nsecretKey: {SECRET}\n")
    return home


@pytest.fixture(scope="module")
def client(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    home = home_with_keys(tmp_path_factory.mktemp("home"))
    with Peer("5.3", home, f"-Drocketmq.home.dir={home}") as peer:
        yield peer


@pytest.fixture(scope="module")
def old_client(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    home = home_with_keys(tmp_path_factory.mktemp("old-home"))
    with Peer("4.9", home, f"-Drocketmq.home.dir={home}") as peer:
        yield peer


@pytest.fixture(scope="module")
def tls_client(
    secured: Cluster, certificates: CertificateFolder, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Peer]:
    home = home_with_keys(tmp_path_factory.mktemp("tls-home"))
    own = certificates.issue("a Java client", is_server=False)
    properties = {
        "rocketmq.home.dir": str(home),
        "tls.enable": "true",
        "tls.test.mode.enable": "false",
        "tls.client.authServer": "true",
        "tls.client.trustCertPath": certificates.root,
        "tls.client.certPath": own.certificate,
        "tls.client.keyPath": own.key,
    }
    with Peer("5.3", home, *(f"-D{key}={text}" for key, text in properties.items())) as peer:
        yield peer


def test_users_and_rules_by_the_tool_admit_a_producer_and_a_consumer(
    client: Peer, guarded: Cluster
) -> None:
    def tool(line: str) -> str:
        return client.mqadmin(guarded.namesrv, line)

    where, topic = f"-b {guarded.broker}", "Guarded"
    assert "success" in tool(f"updateTopic {where} -t {topic} -r 2 -w 2")
    for address in (guarded.broker, guarded.namesrv):
        made = tool(f"createUser -b {address} -u app -p app-secret -t Normal")
        assert f"create user to {address} success." in made
    common = {"namesrv": guarded.namesrv, "topic": topic}
    with pytest.raises(PeerError, match=r"no permission|No route info"):
        client.run("send", **common, **APP)
    for address in (guarded.broker, guarded.namesrv):
        for resource, actions in ((f"Topic:{topic}", "Pub,Sub"), ("Group:readers", "Sub")):
            rule = f"-s User:app -r {resource} -a {actions} -d Allow"
            made = tool(f"createAcl -b {address} {rule}")
            assert f"create acl to {address} success." in made
    assert len(named(client.run("send", **common, **APP, count=5), "sent")) == 5
    got = client.run("push", **common, **APP, group="readers", count=5)
    assert len(named(got, "message")) == 5
    with pytest.raises(PeerError, match=r"check signature failed|No route info"):
        client.run("send", **common, **APP | {"secretKey": "wrong"})
    assert "app-secret" in tool(f"getUser {where} -u app")
    assert "Topic:Guarded" in tool(f"getAcl {where} -s User:app")
    assert "User:app" in tool(f"listAcl {where}")
    copied = tool(f"copyUser -f {guarded.broker} -t {guarded.namesrv} -u app")
    assert "copy user of app" in copied
    assert "copy acl of User:app" in tool(
        f"copyAcl -f {guarded.broker} -t {guarded.namesrv} -s User:app"
    )
    tool(f"updateUser {where} -u app -s disable")
    with pytest.raises(PeerError, match="check signature failed"):
        client.run("send", **common, **APP)
    assert "success" in tool(f"deleteAcl {where} -s User:app")
    assert "success" in tool(f"deleteUser {where} -u app")


def check_the_super_user(client: Peer, cluster: Cluster) -> None:
    """Use a cluster as its super user: the tool, a producer, a consumer."""
    topic = f"Both{client.version.replace('.', '')}"
    made = client.mqadmin(cluster.namesrv, f"updateTopic -b {cluster.broker} -t {topic} -r 2 -w 2")
    assert "success" in made
    assert topic in client.mqadmin(cluster.namesrv, "topicList").split()
    assert cluster.broker in client.mqadmin(cluster.namesrv, "clusterList")
    common = {"namesrv": cluster.namesrv, "topic": topic}
    assert len(named(client.run("send", **common, **KEYS, count=3), "sent")) == 3
    got = client.run("push", **common, **KEYS, group=f"g{topic}", count=3)
    assert len(named(got, "message")) == 3


def test_the_release_before_works_with_keys(old_client: Peer, guarded: Cluster) -> None:
    check_the_super_user(old_client, guarded)
    common = {"namesrv": guarded.namesrv, "topic": "Both49"}
    for wrong in ({}, {"accessKey": "ghost", "secretKey": "x"}):
        with pytest.raises(PeerError):
            old_client.run("send", **common, **wrong)


def test_tls_with_a_certificate_of_the_client_and_keys(tls_client: Peer, secured: Cluster) -> None:
    check_the_super_user(tls_client, secured)
    made = tls_client.mqadmin(
        secured.namesrv, "createUser -c DefaultCluster -u app -p app-secret -t Normal"
    )
    assert f"create user to {secured.broker} success." in made
    listed = tls_client.mqadmin(secured.namesrv, f"listUser -b {secured.broker}")
    assert "app-secret" in listed


@pytest.mark.long
def test_without_tls_or_a_certificate_nothing_is_served(
    secured: Cluster, certificates: CertificateFolder, tmp_path: Path
) -> None:
    trusting = ("-Dtls.enable=true", "-Dtls.test.mode.enable=false")
    for number, properties in enumerate(((), trusting)):
        home = home_with_keys(tmp_path / str(number))
        with Peer("5.3", home, f"-Drocketmq.home.dir={home}", *properties) as stranger:
            with pytest.raises(PeerError):
                stranger.run("send", namesrv=secured.namesrv, topic="Both53", **KEYS)
            printed = stranger.mqadmin(
                secured.namesrv, f"updateTopic -b {secured.broker} -t Stranger{number}"
            )
            assert "success" not in printed
    assert not list((secured.store / "consumequeue").glob("Stranger*"))
    assert "Stranger" not in (secured.store / "config" / "topics.json").read_text()
