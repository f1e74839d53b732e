"""The example with a database: orders and messages agree, whenever a program dies."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketpost.client import Message, PullStatus
from rocketpost.client.blocking import PullConsumer
from rocketpost.client.message import ReceivedMessage
from rocketpost.testing.cluster import Cluster
from rocketpost.testing.process import free_port

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"
EXAMPLE = EXAMPLES / "transaction_orders.py"
SETTINGS = {"transactionTimeOut": "500", "transactionCheckInterval": "500"}

DIE = f"""
import os, signal, sys
sys.path.insert(0, {str(EXAMPLES)!r})
import transaction_orders as example

point = sys.argv.pop(1)

def die():
    print("dying", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

class Orders(example.Orders):
    def book(self, message, transaction_id):
        if point == "before the database":
            die()
        if point == "before the commit of the database":
            true, self.connect = self.connect, lambda: Dying(true())
        state = super().book(message, transaction_id)
        if point == "between the commits":
            die()
        return state

class Dying:
    def __init__(self, connection):
        self._connection = connection
    def commit(self):
        die()
    def __getattr__(self, name):
        return getattr(self._connection, name)

example.Orders = Orders
example.main("book", 1)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), settings=SETTINGS) as running:
        yield running


def server_of_postgres(directory: Path) -> Iterator[str]:
    """Run PostgreSQL for a test, if it is installed; yields how to reach it."""
    pytest.importorskip("psycopg")
    homes = [*sorted(Path("/usr/lib/postgresql").glob("*/bin")), Path("/usr/local/bin")]
    home = next((path for path in homes if (path / "initdb").exists()), None)
    if home is None:
        pytest.skip("PostgreSQL is not installed")
    data, port = directory / "data", free_port()
    data.mkdir(0o700)
    user = None
    if os.geteuid() == 0:  # as whom it refuses to run
        user = "nobody"
        for path in (directory, data):
            shutil.chown(path, user)
    made = subprocess.run(
        [home / "initdb", "-D", data, "-U", "test", "--auth=trust"],
        capture_output=True, text=True, cwd="/", user=user,
    )  # fmt: skip
    if made.returncode:
        pytest.skip(f"PostgreSQL cannot be set up here: {made.stderr[-200:]}")
    options = ["-D", data, "-p", str(port), "-k", data, "-h", "127.0.0.1", "-F"]
    server = subprocess.Popen(
        [home / "postgres", *options],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/", user=user,
    )  # fmt: skip
    try:
        url = f"postgresql://test@127.0.0.1:{port}/postgres"
        wait_for_postgres(url)
        yield url
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(30)


def wait_for_postgres(url: str) -> None:
    import psycopg

    deadline = time.monotonic() + 60
    while True:
        try:
            psycopg.connect(url).close()
            return
        except psycopg.OperationalError:
            assert time.monotonic() < deadline
            time.sleep(0.1)


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield str(tmp_path / "orders.db")
    else:
        # Not below pytest's directory, which is closed to other users.
        with tempfile.TemporaryDirectory() as directory:
            yield from server_of_postgres(Path(directory))


def run(cluster: Cluster, database: str, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ, "NAMESRV_ADDR": cluster.addresses, "ORDERS_DATABASE": database,
    }  # fmt: skip
    return subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, timeout=60
    )


def booked(database: str) -> list[str]:
    code = (
        f"import sys; sys.path.insert(0, {str(EXAMPLES)!r}); import transaction_orders as example; "
        f"print(*example.Orders({database!r}).names())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def announced(cluster: Cluster) -> list[str]:
    found: list[ReceivedMessage] = []
    with PullConsumer("reader", name_servers=cluster.addresses) as consumer:
        for queue in consumer.queues("ExampleOrders"):
            offset = consumer.min_offset(queue)
            while (result := consumer.pull(queue, offset)).status is PullStatus.FOUND:
                found += result.messages
                offset = result.next_offset
    return sorted(message.body.decode().partition(" ")[0] for message in found)


@pytest.mark.long
def test_orders_and_messages_agree_whenever_the_program_dies(
    cluster: Cluster, database: str
) -> None:
    done = run(cluster, database, str(EXAMPLE), "book", "3")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("COMMIT") == 3
    before = set(announced(cluster)) - set(booked(database))
    printed = ""
    for point in (
        "before the database",
        "before the commit of the database",
        "between the commits",
    ):
        died = run(cluster, database, "-c", DIE, point)
        assert died.returncode == -signal.SIGKILL, died.stderr
        printed += died.stdout
    assert len(booked(database)) == 4
    # Other programs of the group answer for those that died.
    answered = run(cluster, database, str(EXAMPLE), "answer", "4")
    assert answered.returncode == 0, answered.stderr
    answers = dict(re.findall(r"asked about (\w+): (.*)", printed + answered.stdout))
    assert sorted(answers.values()) == ["committed", "rolled back", "rolled back"]
    assert sorted(set(announced(cluster)) - before) == booked(database)
    assert len(announced(cluster)) == len(set(announced(cluster)))


def test_a_decision_of_the_checker_is_final(cluster: Cluster, database: str) -> None:
    sys.path.insert(0, str(EXAMPLES))
    try:
        import transaction_orders as example
    finally:
        sys.path.pop(0)
    orders = example.Orders(database)

    class Asked:
        message_id = "t1"

    assert orders.look_up(Asked()).name == "ROLLBACK"
    with pytest.raises(Exception, match=r"(?i)unique|duplicate"):
        orders.book(Message("ExampleOrders", b"late 3"), "t1")
    assert orders.names() == []
    assert orders.book(Message("ExampleOrders", b"good 3"), "t2").name == "COMMIT"
    Asked.message_id = "t2"
    assert orders.look_up(Asked()).name == "COMMIT"
