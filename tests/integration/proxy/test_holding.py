"""Messages that clients hold: renewed while they live, returned when they leave."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rocketpost.proxy.wire import messages
from rocketpost.proxy.wire.enums import ClientType, Code
from rocketpost.testing.waiting import until

from .calls import Client, proxied_broker

pytestmark = pytest.mark.slow

SHORT = (
    '{"defaultInvisibleTimeMills": 2000, "renewSchedulePeriodMillis": 200, '
    '"renewAheadTimeMillis": 1500, "invisibleTimeMillisWhenClear": 100, '
    '"grpcClientConsumerMinLongPollingTimeoutMillis": 100}'
)


async def test_a_message_stays_invisible_while_its_push_consumer_handles_it(
    tmp_path: Path,
) -> None:
    """The client shows the handle that it got; it is good after renewals, too."""
    async with (
        proxied_broker(tmp_path, proxy=SHORT, topics={"topic": "NORMAL"}) as broker,
        Client(broker.grpc_port) as client,
        Client(broker.grpc_port) as other,
    ):
        await client.consume("group", "topic", kind=ClientType.PUSH_CONSUMER)
        await other.consume("group", "topic", kind=ClientType.PUSH_CONSUMER)
        await client.send("topic", b"slow")
        (received,) = await client.receive("topic", "group", auto_renew=True)
        (held,) = broker._proxy._renewals._held.values()  # type: ignore[union-attr]
        await until(lambda: held.renewals)
        # The time of its first handle runs out here, and nobody else gets it.
        assert await other.receive("topic", "group", auto_renew=True, poll=3) == []
        assert await client.ack("group", received) == Code.OK
        assert await other.receive("topic", "group", auto_renew=True, poll=1) == []


async def test_messages_of_a_client_that_leaves_are_delivered_to_others(tmp_path: Path) -> None:
    async with (
        proxied_broker(tmp_path, proxy=SHORT, topics={"topic": "NORMAL"}) as broker,
        Client(broker.grpc_port) as client,
        Client(broker.grpc_port) as other,
    ):
        await client.consume("group", "topic", kind=ClientType.PUSH_CONSUMER)
        await other.consume("group", "topic", kind=ClientType.PUSH_CONSUMER)
        await client.send("topic", b"given back")
        assert len(await client.receive("topic", "group", auto_renew=True)) == 1
        request = messages.NotifyClientTerminationRequest()
        assert (await client.call("NotifyClientTermination", request)).status.code == Code.OK
        (received,) = await other.receive("topic", "group", auto_renew=True, poll=5)
        assert received.system_properties.delivery_attempt == 2


async def test_a_server_with_too_many_waiting_consumers_says_so(tmp_path: Path) -> None:
    async with (
        proxied_broker(tmp_path, topics={"topic": "NORMAL"}, popPollingSize="2") as broker,
        Client(broker.grpc_port) as client,
    ):
        await client.consume("group", "topic")
        polls = [client.receive_raw("topic", "group", poll=5) for _ in range(4)]
        codes = sorted([code for code, _ in await asyncio.gather(*polls)])
        assert codes == [Code.MESSAGE_NOT_FOUND] * 2 + [Code.TOO_MANY_REQUESTS] * 2


async def test_a_consumer_is_served_before_its_settings_arrive(tmp_path: Path) -> None:
    """Some clients do not wait for the answer to their settings, or send them late to a new server.

    A message that such a client holds is returned when it leaves, like that of any other.
    """
    async with (
        proxied_broker(tmp_path, proxy=SHORT, topics={"topic": "NORMAL"}) as broker,
        Client(broker.grpc_port) as client,
        Client(broker.grpc_port) as other,
    ):
        await client.send("topic", b"early")
        (received,) = await client.receive("topic", "group", auto_renew=True)
        assert received.body == b"early"
        request = messages.NotifyClientTerminationRequest()
        answer = await client.call("NotifyClientTermination", request)
        assert answer.status.code == Code.UNRECOGNIZED_CLIENT_TYPE
        (received,) = await other.receive("topic", "group", auto_renew=True, poll=5)
        assert await other.ack("group", received) == Code.OK
