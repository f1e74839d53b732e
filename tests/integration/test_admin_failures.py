"""mqadmin when name servers are dead, as a process of its own where the exit status counts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rocketpost.admin.main import mqadmin
from rocketpost.testing import Cluster, free_port

pytestmark = pytest.mark.slow

CLUSTER = "DefaultCluster"


def run(name_servers: str, *words: str) -> Result:
    return CliRunner().invoke(mqadmin, [*words, "-n", name_servers])


@pytest.fixture(scope="module")
def half_dead(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with two name servers, the first of which is dead."""
    with Cluster(tmp_path_factory.mktemp("half"), name_servers=2) as cluster:
        ports = sorted(cluster.name_server_ports)
        dead = cluster.name_server_ports.index(ports[0])  # the one that is asked first
        cluster.name_servers[dead].kill()
        yield cluster


def alive(cluster: Cluster) -> str:
    return f"127.0.0.1:{max(cluster.name_server_ports)}"


def test_reading_needs_one_name_server(half_dead: Cluster) -> None:
    for _ in range(3):
        result = run(half_dead.addresses, "topicList")
        assert result.exit_code == 0
        assert "TBW102" in result.stdout


def test_a_change_reaches_live_brokers_and_names_dead_ones(half_dead: Cluster) -> None:
    assert run(half_dead.addresses, "updateTopic", "-c", CLUSTER, "-t", "T").exit_code == 0
    words = ("updateOrderConf", "-t", "T", "-m", "put", "-v", "broker-0:4")
    changed = run(half_dead.addresses, *words)
    assert changed.exit_code == 1
    [line] = changed.stderr.splitlines()
    assert f"cannot connect to 127.0.0.1:{min(half_dead.name_server_ports)}" in line
    assert f"done by the name servers {alive(half_dead)}" in line
    read = run(alive(half_dead), "updateOrderConf", "-t", "T", "-m", "get")
    assert "orderConf=[broker-0:4]" in read.stdout


def test_a_deletion_reaches_live_brokers(half_dead: Cluster) -> None:
    made = run(half_dead.addresses, "updateTopic", "-c", CLUSTER, "-t", "Gone")
    assert made.exit_code == 0
    deleted = run(half_dead.addresses, "deleteTopic", "-c", CLUSTER, "-t", "Gone")
    assert deleted.exit_code == 1
    assert f"done by the name servers {alive(half_dead)}" in deleted.stderr
    assert run(alive(half_dead), "topicRoute", "-t", "Gone").exit_code == 1


@pytest.fixture(scope="module")
def brokerless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A name server whose brokers are gone."""
    with Cluster(tmp_path_factory.mktemp("brokerless"), brokers=0) as cluster:
        yield cluster


@pytest.mark.parametrize(
    "words",
    [
        "explain -t Pay",
        "explain -g payers",
        "startMonitoring -r 1",
        "startMonitoring -r 1 --json",
        "startMonitoring -r 1 -g payers",
        "dlqList -g payers",
        "dlqList -g payers -c",
        "dlqShow -g payers -i X",
        "dlqExport -g payers",
        "dlqResend -g payers",
        "consumerProgress",
        "consumerProgress -g payers",
        "consumerStatus -g payers",
        "consumerStatus -g payers -i client",
        "consumerConnection -g payers",
        "clusterRT -r 1",
        "statsAll",
    ],
)
def test_a_search_for_problems_fails_if_no_broker_can_report_one(
    brokerless: Cluster, words: str
) -> None:
    result = run(brokerless.addresses, *words.split())
    assert result.exit_code == 1
    [line] = result.stderr.splitlines()
    assert line.startswith(
        f"mqadmin: no broker is registered at the name server {brokerless.addresses}"
    )


def test_a_list_of_no_brokers_is_empty_and_says_so(brokerless: Cluster) -> None:
    result = run(brokerless.addresses, "clusterList", "--json")
    assert (result.exit_code, result.stdout) == (0, "[]\n")
    assert result.stderr.startswith("note: no broker is registered at the name server")


def mqadmin_process(*words: str) -> subprocess.CompletedProcess[str]:
    script = Path(sys.executable).parent / "mqadmin"
    environment = {key: value for key, value in os.environ.items() if key != "NAMESRV_ADDR"}
    return subprocess.run(
        [str(script), *words], capture_output=True, text=True, timeout=60, env=environment
    )


def test_the_script_prints_one_line_and_fails() -> None:
    address = f"127.0.0.1:{free_port()}"
    done = mqadmin_process("clusterList", "-n", address)
    assert done.returncode == 1
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert line.startswith(f"mqadmin: no name server answers: cannot connect to {address}")


def test_the_script_works(half_dead: Cluster) -> None:
    done = mqadmin_process("topicclusterlist", "-t", "TBW102", "-n", alive(half_dead))
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{CLUSTER}\n", "")
