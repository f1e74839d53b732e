"""Every method of gRPC, called by all kinds of callers: only those with the right are served.

The table of rights is the only source: a new method is tested as soon as it is in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from rocketpost.access.info import AclInfo, EntryInfo, PolicyInfo, UserInfo
from rocketpost.access.table import AccessTable
from rocketpost.proxy.rights import NEEDED, Right, of_settings
from rocketpost.proxy.wire import messages
from rocketpost.proxy.wire.enums import ClientType, Code
from rocketpost.server.proxy.broker import ProxiedBroker
from rocketpost.testing.waiting import until

from .calls import Client, message, proxied_broker
from .test_access import GUARDED, signed

pytestmark = pytest.mark.slow

STRANGERS = {
    "anonymous": (),
    "wrong signature": signed("root", "another"),
    "unknown user": signed("ghost", "root-secret"),
    "disabled user": signed("off", "off-secret"),
}
NONE = signed("none", "none-secret")
EXACT = signed("exact", "exact-secret")
ROOT = signed("root", "root-secret")
STREAMING = ("ReceiveMessage", "PullMessage")


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[ProxiedBroker]:
    topics = {"normal": "NORMAL"}
    async with proxied_broker(tmp_path / "store", topics=topics, **GUARDED) as running:
        table = running._context.access.table
        for name, status in (("exact", "enable"), ("none", "enable"), ("off", "disable")):
            info = UserInfo(username=name, password=f"{name}-secret", user_status=status)
            table.create_user(info, caller=None)
        yield running


def grant(table: AccessTable, rights: list[Right], *, left_out: int | None = None) -> None:
    """Give the user ``exact`` one action for each right, and nothing else."""
    if table.rules("User:exact") is not None:
        table.delete_rules("User:exact", caller=None)
    entries = [
        EntryInfo(
            resource=f"{right.kind.value}:{right.name}",
            actions=[right.actions[-1].value],
            decision="Allow",
        )
        for number, right in enumerate(rights)
        if number != left_out
    ]
    if entries:
        info = AclInfo(subject="User:exact", policies=[PolicyInfo(entries=entries)])
        table.put_rules(info, caller=None)


def request(name: str) -> Any:
    """Return a request that names a topic and a group wherever it can."""
    made = messages.message_class(f"{name}Request")()
    fields = made.DESCRIPTOR.fields_by_name
    if "topic" in fields:
        made.topic.name = "normal"
    if "group" in fields:
        made.group.name = "group"
    if "message_queue" in fields:
        made.message_queue.topic.name = "normal"
    if "messages" in fields:
        made.messages.append(message("normal", b"x"))
    if "batch_size" in fields:
        made.batch_size = 1
    return made


async def code_of(broker: ProxiedBroker, name: str, headers: Any) -> int:
    async with Client(broker.grpc_port, headers=headers) as client:
        if name in STREAMING:
            read = messages.message_class(f"{name}Response").FromString
            [first, *_] = [read(each) async for each in client.stream(name, request(name))]
        else:
            first = await client.call(name, request(name))
    code: int = first.status.code
    return code


@pytest.mark.parametrize("name", sorted(NEEDED))
async def test_only_users_with_the_rights_are_served(broker: ProxiedBroker, name: str) -> None:
    gate, table = broker._context.access.gate, broker._context.access.table
    assert gate is not None
    for kind, headers in STRANGERS.items():
        assert await code_of(broker, name, headers) == Code.UNAUTHORIZED, kind
        gate.failures._records.clear()
    needed = NEEDED[name](request(name))
    assert needed, name
    assert await code_of(broker, name, NONE) == Code.UNAUTHORIZED
    for left_out in range(len(needed)):
        grant(table, needed, left_out=left_out)
        assert await code_of(broker, name, EXACT) == Code.UNAUTHORIZED, needed[left_out]
    assert gate.denied_count == 1 + len(needed)
    grant(table, needed)
    for headers in (EXACT, ROOT):
        assert await code_of(broker, name, headers) != Code.UNAUTHORIZED


@pytest.mark.parametrize("kind", ["publishing", "subscription"])
async def test_settings_need_the_rights_to_all_that_they_name(
    broker: ProxiedBroker, kind: str
) -> None:
    table = broker._context.access.table
    settings = messages.Settings()
    if kind == "publishing":
        settings.client_type = ClientType.PRODUCER
        settings.publishing.topics.add(name="normal")
        settings.publishing.topics.add(name="other")
    else:
        settings.client_type = ClientType.SIMPLE_CONSUMER
        settings.subscription.group.name = "group"
        settings.subscription.subscriptions.add().topic.name = "normal"

    async def answer(headers: Any) -> int:
        async with Client(broker.grpc_port, headers=headers) as client:
            code: int = (await client.start(settings)).status.code
            return code

    needed = of_settings(settings)
    for left_out in range(len(needed)):
        grant(table, needed, left_out=left_out)
        assert await answer(EXACT) == Code.UNAUTHORIZED
    grant(table, needed)
    assert await answer(EXACT) == Code.OK


@pytest.mark.parametrize("name", sorted(NEEDED))
async def test_no_message_of_a_stranger_is_read(broker: ProxiedBroker, name: str) -> None:
    """The answer comes although the caller never sends its message."""
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{broker.grpc_port}")
    method = channel.stream_stream(f"/{messages.SERVICE}/{name}")
    call = method(metadata=(("x-mq-client-id", "stranger"), ("x-mq-language", "GO")))
    async with asyncio.timeout(10):
        answer = messages.message_class(f"{name}Response").FromString(await call.read())
    assert answer.status.code == Code.UNAUTHORIZED
    call.cancel()
    await channel.close(None)


async def test_a_retry_topic_counts_as_its_group(broker: ProxiedBroker) -> None:
    table = broker._context.access.table
    entries = [
        EntryInfo(resource="Topic:*", actions=["All"], decision="Allow"),
        EntryInfo(resource="Group:mine", actions=["Sub"], decision="Allow"),
    ]
    info = AclInfo(subject="User:exact", policies=[PolicyInfo(entries=entries)])
    table.put_rules(info, caller=None)
    async with Client(broker.grpc_port, headers=EXACT) as client:
        await client.consume("mine", "normal")
        for topic, code in (
            ("%RETRY%theirs", Code.UNAUTHORIZED),
            ("%RETRY%theirs+normal", Code.UNAUTHORIZED),
        ):
            assert (await client.receive_raw(topic, "mine"))[0] == code
            made = request("PullMessage")
            made.message_queue.topic.name, made.group.name = topic, "mine"
            read = messages.PullMessageResponse.FromString
            [first, *_] = [read(each) async for each in client.stream("PullMessage", made)]
            assert first.status.code == code


async def test_two_users_with_one_client_id_are_two_clients(broker: ProxiedBroker) -> None:
    assert broker._proxy is not None
    clients = broker._proxy.clients
    async with (
        Client(broker.grpc_port, client_id="same", headers=ROOT) as own,
        Client(broker.grpc_port, client_id="same", headers=NONE) as other,
    ):
        await own.produce("normal")
        refused = await other.produce("normal")
        assert refused.status.code == Code.UNAUTHORIZED
        found = clients.find("same", "root")
        assert found is not None
        assert len(found.streams) == 1
        made = messages.NotifyClientTerminationRequest()
        assert (await other.call("NotifyClientTermination", made)).status.code != Code.OK
        assert clients.find("same", "root") is found
        assert clients.producer_of("normal", lambda client: client.user == "none") is None


async def test_a_receive_that_waits_delivers_nothing_once_its_right_is_taken(
    broker: ProxiedBroker,
) -> None:
    table = broker._context.access.table
    needed = NEEDED["ReceiveMessage"](request("ReceiveMessage"))
    grant(table, needed)
    async with (
        Client(broker.grpc_port, headers=EXACT) as consumer,
        Client(broker.grpc_port, headers=ROOT) as admin,
    ):
        await consumer.consume("group", "normal")
        await admin.produce("normal")
        held = broker.held_count
        waiting = asyncio.create_task(consumer.receive_raw("normal", "group", poll=20))
        await until(lambda: broker.held_count > held)
        grant(table, needed, left_out=1)
        await admin.send("normal", b"secret")
        assert await waiting == (Code.UNAUTHORIZED, [])
        grant(table, needed)
        (received,) = await consumer.receive("normal", "group", poll=20)
        assert received.body == b"secret", "it was given back"


async def test_a_user_that_is_deleted_gets_nothing_more(broker: ProxiedBroker) -> None:
    table = broker._context.access.table
    grant(table, NEEDED["Heartbeat"](request("Heartbeat")))
    assert await code_of(broker, "Heartbeat", EXACT) != Code.UNAUTHORIZED
    table.delete_user("exact", caller=None)
    assert await code_of(broker, "Heartbeat", EXACT) == Code.UNAUTHORIZED
