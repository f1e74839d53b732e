"""Brokers know clients of the gRPC port, in their own process and behind a proxy."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from integration.console_client import make_first_user, run_console
from rocketpost.broker.group.membership import Membership
from rocketpost.client.admin import AdminClient
from rocketpost.codec.record import message_id, pack_host
from rocketpost.diagnosis.explanation import explain_message, find_indexed
from rocketpost.diagnosis.fate import State
from rocketpost.model.topic import TopicChange
from rocketpost.proxy.clients import ClientTable
from rocketpost.proxy.settings import read_proxy_settings
from rocketpost.proxy.wire import messages
from rocketpost.proxy.wire.enums import ClientType, Code
from rocketpost.server.broker import BrokerServer
from rocketpost.server.namesrv.process import NameServer, NamesrvConfig
from rocketpost.server.proxy.broker import ProxiedBroker
from rocketpost.server.proxy.process import ProxyServer
from rocketpost.testing.waiting import until

from .calls import SMALL, Client

pytestmark = pytest.mark.slow


@dataclass
class Running:
    """A cluster with a gRPC port."""

    port: int
    admin: AdminClient
    broker: BrokerServer
    clients: ClientTable

    @property
    def membership(self) -> Membership:
        """The groups that the broker knows."""
        found: Membership = self.broker._context.membership
        return found

    @property
    def address(self) -> str:
        """The address of the broker."""
        return self.broker.address


@pytest.fixture(params=["local", "apart"])
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Running]:
    config = NamesrvConfig(
        listen_port=0, bind_address="127.0.0.1", kv_config_path=str(tmp_path / "kv.json")
    )
    name_server = NameServer(config, tls={})
    await name_server.start()
    address = f"127.0.0.1:{name_server.port}"
    values = {
        **SMALL,
        "brokerName": "broker-a",
        "listenPort": "0",
        "brokerIP1": "127.0.0.1",
        "bindAddress": "127.0.0.1",
        "namesrvAddr": address,
        "storePathRootDir": str(tmp_path / "store"),
    }
    settings = {
        "grpcServerPort": 0,
        "remotingListenPort": 0,
        "bindAddress": "127.0.0.1",
        "namesrvAddr": address,
    }
    proxy_config = read_proxy_settings(json.dumps(settings))[0]
    proxy = None
    broker: BrokerServer
    if request.param == "local":
        broker = ProxiedBroker(values, proxy=proxy_config)
    else:
        broker = BrokerServer(values)
    await broker.start()
    broker._context.tables.topics.update(TopicChange(topic_name="topic"))
    await broker._term.registration.wait_registered()  # type: ignore[attr-defined]
    serving = broker if isinstance(broker, ProxiedBroker) else None
    if serving is None:
        proxy = ProxyServer(proxy_config)
        await proxy.start()
    grpc_proxy = (proxy or serving)._proxy  # type: ignore[union-attr]
    assert grpc_proxy is not None
    async with AdminClient(name_servers=address) as admin:
        yield Running(grpc_proxy.port, admin, broker, grpc_proxy.clients)
    if proxy is not None:
        await proxy.stop()
    await broker.stop()
    await name_server.stop()


def _client(cluster: Running) -> Client:
    headers = (("x-mq-client-version", "5.1.2"),)
    return Client(cluster.port, language="GO", headers=headers)


async def _consume(cluster: Running, client: Client) -> None:
    """Start as a push consumer, and return when the broker knows it."""
    await client.consume("group", "topic", kind=ClientType.PUSH_CONSUMER)
    await until(lambda: cluster.membership.consumer("group", client.client_id))


async def test_members_are_listed_with_language_version_and_protocol(cluster: Running) -> None:
    groups = cluster.admin.groups
    async with _client(cluster) as client, _client(cluster) as producer:
        await _consume(cluster, client)
        found = await groups.connections("group", cluster.address)
        (member,) = found.connection_set
        assert member.client_id == client.client_id
        assert (member.language, member.version_shown) == ("GO", "5.1.2 (gRPC)")
        assert "topic" in found.subscription_table
        await producer.produce("topic")
        await until(lambda: cluster.membership.producer(producer.client_id))
        (made,) = (await groups.producers(cluster.address))["topic"]
        assert (made.client_id, made.version_shown) == (producer.client_id, "5.1.2 (gRPC)")
        request = messages.NotifyClientTerminationRequest()
        assert (await client.call("NotifyClientTermination", request)).status.code == Code.OK
        await until(lambda: cluster.membership.consumer_group("group") is None)


async def test_explanations_know_what_became_of_their_messages(cluster: Running) -> None:
    async with _client(cluster) as client:
        await _consume(cluster, client)
        sent = await client.send("topic", b"body")
        (received,) = await client.receive("topic", "group", auto_renew=True)
        (found,) = await find_indexed(cluster.admin, "topic", sent.message_id)
        for wanted in (State.IN_FLIGHT, State.CONSUMED):
            (fate,) = (await explain_message(cluster.admin, found)).fates
            assert (fate.group, fate.state) == ("group", wanted)
            assert await client.ack("group", received) == Code.OK


async def test_the_console_shows_them(cluster: Running, tmp_path: Path) -> None:
    async with _client(cluster) as client, _client(cluster) as producer, AsyncExitStack() as stack:
        await _consume(cluster, client)
        await producer.produce("topic")
        await until(lambda: cluster.membership.producer(producer.client_id))
        running = run_console(cluster.broker.name_servers, tmp_path / "console")
        console = await asyncio.to_thread(running.__enter__)
        stack.callback(running.__exit__, None, None, None)
        browser = await asyncio.to_thread(make_first_user, console)
        wanted = {"/groups/group": client.client_id, "/clients": producer.client_id}
        async with asyncio.timeout(30):
            while wanted:  # it looks at the cluster once a round
                for path, name in list(wanted.items()):
                    page = (await asyncio.to_thread(browser.get, path)).text
                    rows = [row for row in page.split("<tr") if name in row]
                    if any("GO" in row and "5.1.2 (gRPC)" in row for row in rows):
                        del wanted[path]


async def test_a_client_is_asked_for_its_state_and_its_stacks(cluster: Running) -> None:
    async with _client(cluster) as client:
        await _consume(cluster, client)

        async def answer() -> None:
            command = (await client.hear()).print_thread_stack_trace_command
            reply = messages.TelemetryCommand()
            reply.status.code = Code.OK
            reply.thread_stack_trace.nonce = command.nonce
            reply.thread_stack_trace.thread_stack_trace = "main: waits"
            await client.tell(reply)

        text, _ = await asyncio.gather(
            cluster.admin.groups.running_info(
                cluster.address, "group", client.client_id, stacks=True
            ),
            answer(),
        )
        info = json.loads(text)
        assert info["jstack"] == "main: waits"
        assert info["properties"]["PROP_CLIENT_VERSION"] == "GO 5.1.2 (gRPC)"
        assert [each["topic"] for each in info["subscriptionSet"]] == ["topic"]


@pytest.mark.parametrize(
    ("code", "result"),
    [(Code.OK, "CR_SUCCESS"), (Code.FAILED_TO_CONSUME_MESSAGE, "CR_LATER")],
)
async def test_a_message_is_handled_on_demand(cluster: Running, code: Code, result: str) -> None:
    async with _client(cluster) as client:
        await _consume(cluster, client)
        await client.send("topic", b"body")
        (received,) = await client.receive("topic", "group")
        position = int(received.system_properties.receipt_handle.split()[-1])
        host, _, port = cluster.address.rpartition(":")

        async def answer() -> None:
            command = (await client.hear()).verify_message_command
            assert command.message.body == b"body"
            reply = messages.TelemetryCommand()
            reply.status.code = code
            reply.verify_message_result.nonce = command.nonce
            await client.tell(reply)

        report, _ = await asyncio.gather(
            cluster.admin.messages.consume_directly(
                cluster.address,
                group="group",
                client_id=client.client_id,
                offset_id=message_id(pack_host(host, int(port)), position),
            ),
            answer(),
        )
        assert json.loads(report)["consumeResult"] == result


async def test_headers_that_only_a_server_sets_have_no_effect(cluster: Running) -> None:
    forged = (
        ("x-mq-channel-id", "another"),
        ("x-mq-authorization-ak", "admin"),
        ("rpc-remote-address", "10.9.9.9:1"),
        ("proxy_protocol_addr", "10.9.9.9"),
    )
    async with Client(cluster.port, headers=forged) as client:
        await _consume(cluster, client)
        found = await cluster.admin.groups.connections("group", cluster.address)
        (member,) = found.connection_set
        assert member.client_addr.startswith("127.0.0.1:")


async def test_a_client_that_was_paused_is_a_member_again_with_its_next_heartbeat(
    cluster: Running,
) -> None:
    """It has kept its stream, and does not know that it was taken for dead."""
    async with _client(cluster) as client:
        await _consume(cluster, client)
        known = cluster.clients.find(client.client_id)
        assert known is not None
        known.seen_at -= 130
        await cluster.clients._look_at(known)
        member = cluster.membership.consumer("group", client.client_id)
        assert member is not None
        member.connection.close()  # type: ignore[attr-defined]  # as brokers do with silent ones
        await until(lambda: cluster.membership.consumer("group", client.client_id) is None)
        request = messages.HeartbeatRequest(client_type=ClientType.PUSH_CONSUMER)
        assert (await client.call("Heartbeat", request)).status.code == Code.OK
        await until(lambda: cluster.membership.consumer("group", client.client_id))
        await client.send("topic", b"next")
        (received,) = await client.receive("topic", "group", auto_renew=True)
        assert await client.ack("group", received) == Code.OK


async def test_a_message_that_is_found_for_a_client_that_has_left_is_delivered_to_another(
    cluster: Running,
) -> None:
    async with _client(cluster) as client, _client(cluster) as other:
        await _consume(cluster, client)
        poll = asyncio.ensure_future(client.receive_raw("topic", "group", auto_renew=True, poll=8))
        await until(lambda: cluster.broker._term.features.held)
        request = messages.NotifyClientTerminationRequest()
        assert (await client.call("NotifyClientTermination", request)).status.code == Code.OK
        await other.send("topic", b"late")
        assert await poll == (Code.MESSAGE_NOT_FOUND, [])
        (received,) = await other.receive("topic", "group", auto_renew=True, poll=8)
        assert received.body == b"late"
