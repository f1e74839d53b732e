"""A leader that is removed, or finds that it has lost something, while clients send."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import pytest

from rocketpost.client import Message
from rocketpost.client.admin import AdminClient
from rocketpost.codec.group.frames import Framed
from rocketpost.codec.group.hello import History
from rocketpost.errors import StoreError
from rocketpost.raft.messages import AppendReply
from rocketpost.server.group.member import GroupMember
from rocketpost.testing import SimulatedCluster

pytestmark = pytest.mark.slow


async def send(cluster: SimulatedCluster) -> None:
    async with cluster.producer() as producer:
        await producer.send(Message("Orders", b"order"), timeout=60)


def leading(cluster: SimulatedCluster) -> GroupMember:
    leader = cluster.leader()
    assert leader is not None
    member = cluster.brokers[leader].group
    assert member is not None
    return member


def append(member: GroupMember) -> None:
    """Append a record, as for a client whose send arrives in this turn of the loop."""
    writer = member._office.writer
    if writer is None:
        return
    with contextlib.suppress(StoreError):  # it takes nothing any more
        writer.put([member._log.draft_of_term()]).add_done_callback(asyncio.Future.exception)


def with_sends(
    member: GroupMember, take: Callable[[str, Framed, bytes], None]
) -> Callable[[str, Framed, bytes], None]:
    """Have a send arrive just before each acknowledgement of a follower."""

    def take_together(peer: str, message: Framed, body: bytes) -> None:
        if isinstance(message, AppendReply) and member.node.node not in member.node.members.voters:
            append(member)
        take(peer, message, body)

    return take_together


@pytest.mark.parametrize("is_sending", [False, True])
def test_a_leader_that_is_removed_lets_another_lead(is_sending: bool) -> None:
    with SimulatedCluster(nodes=3, seed=4) as cluster:
        cluster.run(send(cluster))
        member = leading(cluster)
        old = member.node.node
        if is_sending:
            member.links.incoming.on_message = with_sends(member, member.links.incoming.on_message)

        async def remove() -> None:
            async with AdminClient(name_servers=cluster.name_servers) as admin:
                await admin.brokers.change_group(cluster.address_of(old), "remove", old)

        cluster.run(remove())
        # Less than an election time-out, unless another member has got more of the log by now.
        cluster.run_for(3 if is_sending else 0.4)
        assert leading(cluster).node.members.voters == set(cluster.nodes) - {old}
        assert not cluster.brokers[old].is_leader
        cluster.run(send(cluster))
        cluster.run_for(5)
        assert old in cluster.brokers, "it runs on until it is stopped"
        for node in set(cluster.nodes) - {old}:
            other = cluster.brokers[node].group
            assert other is not None
            assert old not in other.links.incoming.connected


def test_a_leader_that_has_lost_something_steps_down_while_clients_send() -> None:
    with SimulatedCluster(nodes=3, seed=4) as cluster:
        cluster.run(send(cluster))
        member = leading(cluster)
        peer = next(node for node in cluster.nodes if node != member.node.node)

        async def meet() -> None:
            append(member)
            member.links._on_history(peer, History(), History(saves=1000))

        cluster.run(meet())
        assert not member.is_leading
        cluster.run(send(cluster))
        assert len(cluster.brokers) == 3
        assert not member.node.is_suspect
