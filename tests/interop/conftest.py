"""Fixtures of the interop suite.

``INTEROP_TARGET`` chooses whose servers are under test: ``rocketpost`` (the default), or
``apache``, which proves the suite itself against the original.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop.jvm import CLIENT_VERSIONS, JavaMissingError, classpath, client_classpath
from interop.peer import Peer
from interop.servers import MAKERS, SERVER_PROFILE, SMALL_STORE, Cluster, Maker

_TOPIC_NUMBERS = itertools.count(1)

# Transactions are asked about soon.
QUICK_ANSWERS = {"transactionCheckInterval": "2000", "transactionTimeOut": "1000"}
# Off by default in the original.
FILTERS = {"enablePropertyFilter": "true"}


@pytest.fixture(scope="session")
def target() -> Maker:
    """Whose servers are under test."""
    chosen = os.environ.get("INTEROP_TARGET", "rocketpost")
    assert chosen in MAKERS, f"INTEROP_TARGET is one of {MAKERS}"
    return chosen


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "kind(name): the type of the topic that the test is given")
    config.addinivalue_line("markers", "later(feature): the original has it, this version not yet")


@pytest.fixture(autouse=True)
def _expect_later(request: pytest.FixtureRequest, target: Maker) -> None:
    """Expect tests of features to come to fail; once one passes, its mark has to go."""
    mark = request.node.get_closest_marker("later")
    if mark is not None and target == "rocketpost":
        reason = f"{mark.args[0]}: not in this version"
        request.applymarker(pytest.mark.xfail(reason=reason, strict=True))


@pytest.fixture(scope="session")
def java() -> None:
    """Skip what needs Java when it, Maven or the artifacts are out of reach."""
    try:
        for version in CLIENT_VERSIONS:
            client_classpath(version)
        classpath(SERVER_PROFILE)
    except JavaMissingError as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def cluster(
    java: None, target: Maker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """One name server and one broker of the target, shared by the session."""
    directory = tmp_path_factory.mktemp("cluster")
    settings = {**SMALL_STORE, **QUICK_ANSWERS, **FILTERS}
    with Cluster(directory, target, settings=settings) as running:
        yield running


@pytest.fixture(scope="session", params=CLIENT_VERSIONS)
def peer(
    request: pytest.FixtureRequest, java: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Peer]:
    """A Java client, once per version."""
    with Peer(request.param, tmp_path_factory.mktemp("peer")) as running:
        yield running


@pytest.fixture(scope="session")
def other_peer(java: None, peer: Peer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    """A second JVM of the same version, for what takes two."""
    with Peer(peer.version, tmp_path_factory.mktemp("other-peer")) as running:
        yield running


@pytest.fixture(params=CLIENT_VERSIONS)
def binary_peer(request: pytest.FixtureRequest, java: None, tmp_path: Path) -> Iterator[Peer]:
    """A Java client that speaks the binary header encoding."""
    with Peer(request.param, tmp_path / "home", "-Drocketmq.serialize.type=ROCKETMQ") as running:
        yield running


@pytest.fixture
def topic(cluster: Cluster, peer: Peer) -> str:
    """A fresh topic with four queues."""
    name = f"Topic{next(_TOPIC_NUMBERS)}"
    printed = peer.mqadmin(cluster.namesrv, f"updateTopic -b {cluster.broker} -t {name} -r 4 -w 4")
    assert "success" in printed
    return name
