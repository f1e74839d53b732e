"""A group of three brokers in this process, with real sockets and real files."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

from rocketpost.broker.group.queue_locks import HeldQueues
from rocketpost.codec.bodies.cluster import decode_member_group
from rocketpost.codec.bodies.offset import decode_offset_table
from rocketpost.codec.codes import RequestCode as Code
from rocketpost.codec.codes import ResponseCode
from rocketpost.codec.command import to_fields
from rocketpost.codec.headers.namesrv import GetMemberGroup
from rocketpost.errors import NotConnected
from rocketpost.model.route import MessageQueue
from rocketpost.server.broker import BrokerServer
from rocketpost.server.group.member import GroupMember
from rocketpost.server.term import LeaderTerm
from rocketpost.store.message_store import MessageStore
from rocketpost.testing import free_port
from rocketpost.transport.connector import split_address

from .replicas import log_of
from .settings.harness import Peer, peer_at

NODES = ("n0", "n1", "n2")
TOPIC = "T"


def settings_of(root: Path, node: str, ports: dict[str, int], **more: object) -> dict[str, str]:
    """Return the settings of one member; ``ports`` are those for the other members."""
    values: dict[str, object] = {
        "storePathRootDir": root / node,
        "brokerName": "broker-g",
        "brokerIP1": "127.0.0.1",
        "bindAddress": "127.0.0.1",
        "listenPort": 0,
        "mappedFileSizeCommitLog": 1024 * 1024,
        "maxMessageSize": 128 * 1024,
        "maxHashSlotNum": 100,
        "maxIndexNum": 4000,
        "enableDLegerCommitLog": "true",
        "dLegerGroup": "g",
        "dLegerSelfId": node,
        "dLegerPeers": ";".join(f"{each}-127.0.0.1:{port}" for each, port in ports.items()),
    }
    return {key: str(value) for key, value in (values | more).items()}


def ends_of(store: MessageStore) -> tuple[int, int]:
    """Return the ends of the visible and of the written log."""
    return store.confirmed_position, store.written_position


class Group:
    """Three brokers, of which some may be stopped."""

    def __init__(self, root: Path, **settings: object) -> None:
        self._root = root
        self._settings = settings
        self.ports = {node: free_port() for node in NODES}
        self.servers: dict[str, BrokerServer] = {}
        self.stored: dict[int, bytes] = {}
        """Acknowledged messages by offset."""

    async def start(self, nodes: Iterable[str] = NODES, *, is_alone: bool = False) -> None:
        """Start members, or brokers that are in no group with the stores of members."""
        for node in nodes:
            ports = self.ports if node not in NODES else {each: self.ports[each] for each in NODES}
            values = settings_of(self._root, node, ports, **self._settings)
            if is_alone:
                values = {key: each for key, each in values.items() if "leger" not in key.lower()}
            server = BrokerServer(values)
            await server.start()
            self.servers[node] = server

    async def stop(self, nodes: Iterable[str] | None = None) -> None:
        """Stop members in order."""
        for node in list(self.servers if nodes is None else nodes):
            await self.servers.pop(node).stop()

    def new_member(self, node: str) -> str:
        """Choose a port for a further member; returns its address for the others."""
        self.ports[node] = free_port()
        return f"127.0.0.1:{self.ports[node]}"

    def lose_disk(self, node: str) -> None:
        """Delete everything that a stopped member has."""
        assert node not in self.servers
        shutil.rmtree(self._root / node)

    def member(self, node: str) -> GroupMember:
        """Return a running member."""
        member = self.servers[node].group
        assert member is not None
        return member

    def isolate(self, node: str) -> Callable[[], None]:
        """Cut a member off from the others, as a lost network does; returns the remedy."""
        member = self.member(node)
        incoming = member.links.incoming
        links, take = list(member.links), incoming.on_message
        for link in links:
            link.send = lambda *_: True  # type: ignore[method-assign]
        incoming.on_message = lambda *_: None

        def heal() -> None:
            for link in links:
                del link.send
            incoming.on_message = take

        return heal

    def serving(self) -> dict[str, int]:
        """Return the members that serve as leaders, and their terms."""
        return {
            node: server._term._sends._term
            for node, server in self.servers.items()
            if isinstance(server._term, LeaderTerm) and server._term._sends.writer.term
        }

    async def leader(self, *, but: str = "", seconds: float = 15) -> str:
        """Return the member that serves as leader, once there is one."""
        async with asyncio.timeout(seconds):
            while True:
                found = [node for node in self.serving() if node != but]
                if found:
                    return found[0]
                await asyncio.sleep(0.005)

    @contextlib.asynccontextmanager
    async def client(self, node: str) -> AsyncIterator[Peer]:
        if node not in self.servers:
            raise NotConnected(f"{node} does not run")
        server = self.servers[node]
        async with peer_at("127.0.0.1", server.port) as peer:
            peer.server = server
            yield peer

    async def send(self, node: str, count: int, *, start: int | None = None) -> None:
        """Send messages to a member, and note those that it acknowledges."""
        first = len(self.stored) if start is None else start
        async with self.client(node) as peer:
            bodies = [b"%d of %s" % (first + number, node.encode()) for number in range(count)]
            answers = await asyncio.gather(*(peer.send(TOPIC, body) for body in bodies))
        for body, answer in zip(bodies, answers, strict=True):
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            self.stored[int(answer.fields["queueOffset"])] = body

    async def until_registered(self, address: str, leader: str) -> None:
        """Wait until a name server knows every running member in its role."""
        own = {node: f"127.0.0.1:{server.port}" for node, server in self.servers.items()}
        ids = {0 if node == leader else int(node[1:]) + 1: own[node] for node in own}
        host, port = split_address(address)
        header = GetMemberGroup(cluster_name="DefaultCluster", broker_name="broker-g")
        async with asyncio.timeout(15), peer_at(host, port) as peer:
            while True:
                answer = await peer.call(Code.GET_BROKER_MEMBER_GROUP, **to_fields(header))
                if decode_member_group(answer.body).broker_addrs == ids:
                    return
                await asyncio.sleep(0.02)

    async def bodies(self, node: str) -> dict[int, bytes]:
        """Return the visible messages of a member by offset."""
        found: dict[int, bytes] = {}
        async with self.client(node) as peer:
            while records := await peer.records(TOPIC, offset=len(found)):
                found |= {record.queue_offset: record.body for record in records}
        return found

    def knows_topic(self, node: str) -> bool:
        """Tell whether a member has taken over the topic, which follows its first message."""
        return self.servers[node]._context.tables.topics.find(TOPIC) is not None

    def tables(self, node: str) -> dict[str, Any]:
        """Return what a member knows beside the messages, in a form that can be compared."""
        context = self.servers[node]._context
        tables = context.tables
        is_leading = isinstance(self.servers[node]._term, LeaderTerm)
        return {
            "topics": tables.topics.body(),
            "groups": tables.groups.body(),
            "auto topics": tables.topics.auto.to_json(),
            "auto groups": tables.groups.auto.to_json(),
            "offsets": decode_offset_table(tables.offsets.to_json()),
            "modes": tables.modes.to_json(),
            "named filters": tables.named.to_json(),
            "order info": tables.batches.to_json(),
            "deletions": context.store.deletions.snapshot(),
            "locks": context.locks.holders()
            if is_leading
            else {
                group: _held(queues) for group, queues in context.locks._followed.items() if queues
            },
        }

    async def until_equal_tables(self) -> dict[str, Any]:
        """Wait until all members have the same tables, and return them."""
        async with asyncio.timeout(15):
            while True:
                first, *others = [self.tables(node) for node in self.servers]
                if all(other == first for other in others):
                    return first
                await asyncio.sleep(0.02)

    async def check(self) -> None:
        """Check that all members have the same log, and every acknowledged message."""
        stores = [server._context.store for server in self.servers.values()]
        async with asyncio.timeout(15):
            while len({at for each in stores for at in ends_of(each)}) > 1:
                await asyncio.sleep(0.01)
            while not all(self.knows_topic(node) for node in self.servers):
                await asyncio.sleep(0.01)
        logs = {node: log_of(server) for node, server in self.servers.items()}
        assert len(set(logs.values())) == 1
        for node in self.servers:
            found = await self.bodies(node)
            assert {at: found.get(at) for at in self.stored} == self.stored


def _held(queues: dict[MessageQueue, str]) -> list[HeldQueues]:
    clients: dict[str, list[MessageQueue]] = {}
    for queue, client in queues.items():
        clients.setdefault(client, []).append(queue)
    return [HeldQueues(client, held) for client, held in clients.items()]


@contextlib.asynccontextmanager
async def group_of_three(root: Path, **settings: object) -> AsyncIterator[Group]:
    """Run a group until the end of a test."""
    group = Group(root, **settings)
    try:
        await group.start()
        yield group
    finally:
        await group.stop()
