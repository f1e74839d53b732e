"""A server that everybody can use says so: at its start, in its log, and in ``clusterList``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rocketpost.testing.cluster import Cluster
from rocketpost.testing.process import ServerProcess

WARNING = "it listens on 0.0.0.0 and checks no user"


def printed(server: ServerProcess) -> str:
    return "\n".join(server.output)


def cluster_list(cluster: Cluster) -> subprocess.CompletedProcess[str]:
    script = Path(sys.executable).parent / "mqadmin"
    command = [str(script), "clusterList", "-n", cluster.addresses]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)


@pytest.mark.slow
def test_a_broker_that_everybody_can_use_warns_in_three_places(tmp_path: Path) -> None:
    log = tmp_path / "broker.log"
    settings = {"bindAddress": "0.0.0.0", "logFile": str(log)}
    with Cluster(tmp_path, settings=settings) as cluster:
        assert f"warning: broker is open to everybody: reason={WARNING}" in printed(
            cluster.brokers[0]
        )
        assert f"broker is open to everybody: reason={WARNING}" in log.read_text()
        [address] = cluster.broker_addresses
        assert f"warning: broker-0 at {address}: {WARNING}" in cluster_list(cluster).stderr


@pytest.mark.slow
def test_a_broker_for_this_machine_alone_does_not_warn(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        assert "everybody" not in printed(cluster.brokers[0])
        assert cluster_list(cluster).stderr == ""


@pytest.mark.slow
def test_a_name_server_that_everybody_can_use_warns(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    [path] = tmp_path.glob("namesrv-*/namesrv.conf")
    path.write_text(path.read_text().replace("127.0.0.1", "0.0.0.0"))
    with cluster:
        text = printed(cluster.name_servers[0])
    assert f"name server is open to everybody: reason={WARNING}" in text
