"""From nothing to a cluster with TLS and access control, with the commands of the guide."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from rocketpost.admin.main import mqadmin
from rocketpost.cli import rocketpost
from rocketpost.client import (
    ClientTls,
    Credentials,
    Message,
    Producer,
    ProducerConfig,
    PushConsumer,
    PushConsumerConfig,
    ReceivedMessage,
    RocketpostError,
    StartFrom,
)
from rocketpost.server.up import SingleNode, settings_of
from rocketpost.testing.waiting import until

pytestmark = pytest.mark.slow


async def run(command: click.Command, *words: str, **environment: str) -> str:
    """Run a command line in a thread of its own; return its output."""
    done = await asyncio.to_thread(CliRunner().invoke, command, words, env=environment)
    assert done.exit_code == 0, (words, done.output)
    return done.output


class Secured:
    """A cluster that one command has made, and its administrator."""

    def __init__(self, made: Path, node: SingleNode) -> None:
        self.made = made
        self.node = node

    async def mqadmin(self, line: str) -> str:
        """Run a command as the command's output says."""
        return await run(
            mqadmin,
            *line.split(),
            *("-n", self.node.address),
            ROCKETMQ_HOME=str(self.made),
            ROCKETMQ_TLS_ENABLE="true",
            ROCKETMQ_TLS_CONFIG_FILE=str(self.made / "tls.properties"),
        )

    def tls(self, user: str) -> ClientTls:
        """Return the settings of a client with a certificate of its own."""
        stem = str(self.made / user)
        return ClientTls(
            trusted=str(self.made / "ca.pem"), certificate=f"{stem}.pem", key=f"{stem}.key"
        )


@pytest.fixture
async def secured(tmp_path: Path) -> AsyncIterator[Secured]:
    made = tmp_path / "secure"
    await run(rocketpost, "secure", "init", "--directory", str(made))
    settings = await asyncio.to_thread(settings_of, made / "broker.conf", None)
    node = SingleNode(tmp_path / "data", settings=settings)
    await node.start()
    try:
        yield Secured(made, node)
    finally:
        await node.stop()


async def test_one_command_makes_a_cluster_with_tls_and_access_control(secured: Secured) -> None:
    names = secured.node.address
    assert secured.node.broker is not None
    broker = secured.node.broker.address
    assert "broker-a" in await secured.mqadmin("clusterList")
    await secured.mqadmin("updateTopic -c DefaultCluster -t orders")
    for address in (names, broker):
        await secured.mqadmin(f"createUser -b {address} -u orders -p from-a-vault")
        rule = "-r Topic:orders,Group:readers -a Pub,Sub -d Allow"
        await secured.mqadmin(f"createAcl -b {address} -s User:orders {rule}")
    await run(rocketpost, "secure", "client", "orders", "--directory", str(secured.made))
    tls = secured.tls("orders")
    got: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        got.append(message.body)

    config = PushConsumerConfig(name_servers=names, tls=tls, start_from=StartFrom.FIRST)
    consumer = PushConsumer("readers", config=config)
    consumer.subscribe("orders", handle)
    async with Producer("P", config=ProducerConfig(name_servers=names, tls=tls)) as producer:
        await producer.send(Message("orders", b"by certificate"))
    keys = Credentials("orders", "from-a-vault")
    signing = ProducerConfig(name_servers=names, tls=tls, credentials=keys)
    async with Producer("P", config=signing) as producer, consumer:
        await producer.send(Message("orders", b"signed"))
        await until(lambda: sorted(got) == [b"by certificate", b"signed"])
        with pytest.raises(RocketpostError, match=r"no permission|no route"):
            await producer.send(Message("payments", b"no right"), timeout=1)
    another = Credentials("admin", "guessed")
    for stranger in (
        ProducerConfig(name_servers=names),
        ProducerConfig(name_servers=names, credentials=keys),
        ProducerConfig(name_servers=names, tls=ClientTls(trusted=str(secured.made / "ca.pem"))),
        ProducerConfig(name_servers=names, tls=tls, credentials=another),
    ):
        with pytest.raises(RocketpostError):
            async with Producer("P", config=stranger) as other:
                await other.send(Message("orders", b"x"), timeout=1)
    assert len(got) == 2


async def test_no_password_is_printed_or_readable_by_others(
    secured: Secured, tmp_path: Path
) -> None:
    tools = await asyncio.to_thread((secured.made / "conf" / "tools.yml").read_text)
    password = tools.split("secretKey: ")[1].strip()
    assert len(password) >= 32
    shown = await run(rocketpost, "secure", "init", "--directory", str(tmp_path / "second"))
    second = await asyncio.to_thread((tmp_path / "second" / "conf" / "tools.yml").read_text)
    assert second.split("secretKey: ")[1].strip() not in shown
    assert second != tools

    def check_blocking() -> None:
        for path in secured.made.rglob("*"):
            mode = stat.S_IMODE(path.stat().st_mode)
            assert path.suffix == ".pem" or mode in (0o600, 0o700), path
        data = tmp_path / "data"
        for path in data.rglob("*"):
            if path.is_file() and path.stat().st_size < 1 << 20:
                assert password.encode() not in path.read_bytes(), path

    await asyncio.to_thread(check_blocking)
