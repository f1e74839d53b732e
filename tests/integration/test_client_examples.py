"""Every example does what it says, run as a user would run it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketpost.client import Fault, Message, RouteNotFound
from rocketpost.client.blocking import AdminClient, Producer
from rocketpost.testing.cluster import Cluster

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def name_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster.addresses


def run(name: str, name_servers: str, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name), *words],
        env={**os.environ, "NAMESRV_ADDR": name_servers},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_produced_messages_are_consumed_and_pulled(name_servers: str) -> None:
    printed = run("produce.py", name_servers)
    assert "SEND_OK" in printed
    assert "100 more stored" in printed
    consumed = run("consume.py", name_servers, "104").splitlines()
    assert len(consumed) == 104
    orders = [line.rpartition(" ")[2] for line in consumed if " order " in line]
    assert sorted(orders) == ["b'created'", "b'paid'", "b'shipped'"]
    pulled = run("pull.py", name_servers).splitlines()
    assert sum(int(line.split()[1]) for line in pulled) == 104


def test_batches_are_split_and_stored(name_servers: str) -> None:
    assert "50000 stored" in run("batch.py", name_servers)


def test_a_script_needs_no_loop(name_servers: str) -> None:
    assert len(run("script.py", name_servers).splitlines()) == 10


BLOCKING_CONSUMER = """
from rocketpost.client.blocking import PushConsumer

consumer = PushConsumer("signalled-threads")
consumer.subscribe("ExampleTopic", print)
consumer.start()
print("ready", flush=True)
consumer.run_forever()
"""


def handles(pid: int, number: signal.Signals) -> bool:
    """Tell whether a process has a handler of its own for a signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def is_member(admin: AdminClient, group: str) -> bool:
    """Tell whether the group has its one member."""
    try:
        found = admin.call(lambda a: a.groups.connections(group))
    except (Fault, RouteNotFound):
        return False
    return len(found.connection_set) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    ("program", "group"),
    [
        ([str(EXAMPLES / "consume.py")], "example-consumer"),
        (["-c", BLOCKING_CONSUMER], "signalled-threads"),
    ],
)
def test_a_signal_makes_a_consumer_leave_its_group(
    name_servers: str, program: list[str], group: str, number: signal.Signals
) -> None:
    with Producer("signals", name_servers=name_servers) as producer:
        producer.send(Message("ExampleTopic", b"hello", tags="greeting"))
    with (
        subprocess.Popen(
            [sys.executable, "-W", "error", *program],
            env={**os.environ, "NAMESRV_ADDR": name_servers, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
        AdminClient(name_servers=name_servers) as admin,
        contextlib.ExitStack() as stack,
    ):
        stack.callback(process.kill)  # does nothing once it has ended
        assert process.stdout is not None
        process.stdout.readline()
        while not is_member(admin, group):  # the route of its retry topic may come a moment later
            time.sleep(0.01)
        while not handles(process.pid, signal.SIGTERM):
            time.sleep(0.01)
        process.send_signal(number)
        _, errors = process.communicate(timeout=30)
        assert (process.returncode, errors) == (0, "")
        with pytest.raises(Fault):  # nobody of the group is online
            admin.call(lambda a: a.groups.connections(group))


def test_every_example_is_run() -> None:
    tested = {"produce.py", "consume.py", "pull.py", "batch.py", "script.py"}
    tested |= {"transaction_orders.py"}  # by test_transaction_example
    tested |= {"failover.py"}  # by test_failover_example
    by_spark = ("windows", "join", "deduplicate", "stateful", "table", "formats")
    tested |= {f"spark_{name}.py" for name in by_spark}  # by spark/test_jobs
    assert {path.name for path in EXAMPLES.glob("*.py")} == tested
