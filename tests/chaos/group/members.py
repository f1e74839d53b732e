"""The members of a group and its name server, each a process in a network namespace of its own."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from chaos.group.network import Network
from chaos.group.nursery import Child, Nursery, nursery
from chaos.volatile_disk import cut_power
from rocketpost.codec.bodies.stats import decode_key_values
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.command import Command
from rocketpost.errors import ClientError, NotConnected
from rocketpost.settings import format_properties
from rocketpost.testing.campaign import TINY_STORE
from rocketpost.testing.link import BrokerLink

NODES: Final = ("n0", "n1", "n2")
CLIENTS: Final = "clients"
NAMES: Final = "names"
HOSTS: Final = (*NODES, NAMES, CLIENTS)
PORT: Final = 10911
_GROUP_PORT: Final = 40911
_NAMES_PORT: Final = 9876
_UP_SECONDS: Final = 60.0
_CONNECT_SECONDS: Final = 1.0
_SETTINGS: Final[Mapping[str, str]] = {
    **TINY_STORE,
    "slaveTimeout": "1000",
    "flushConsumerOffsetInterval": "1000",
    "scrubCommitLogBytesPerSecond": str(64 * 1024 * 1024),
    "cleanFileForciblyEnable": "false",  # the machine's disk may be full of something else
}


class NotUp(Exception):  # noqa: N818 - named after what happened
    """A member ended by itself, or does not serve."""


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """A member's view of its group."""

    node: str
    is_leading: bool
    leader: str
    term: int
    first: int
    end: int
    committed: int
    is_suspect: bool
    failure: str


class Member:
    """One member. Owned by the loop.

    Args:
        node: Its name, and that of its host.
        network: The network.
        home: The directory of its file and its data.
        nursery: Starts its process.
        bug: A planted bug; empty for none.
        is_volatile: Whether its disk forgets what was not synced, if its power is cut.
    """

    def __init__(
        self,
        node: str,
        *,
        network: Network,
        home: Path,
        nursery: Nursery,
        bug: str = "",
        is_volatile: bool = False,
    ) -> None:
        self.node = node
        self.home = home
        self._network = network
        self._nursery = nursery
        self._bug = bug
        self._mirror = home / "mirror" if is_volatile else None
        self._child: Child | None = None
        self.is_frozen = False
        """Whether its process is stopped by SIGSTOP."""
        home.mkdir(parents=True)
        (home / "broker.conf").write_text(format_properties(self._settings()))

    @property
    def store(self) -> Path:
        """The directory of its data."""
        return self.home / "store"

    @property
    def log_file(self) -> Path:
        """What its processes have printed."""
        return self.home / "broker.log"

    @property
    def address(self) -> str:
        """The address for clients."""
        return f"{self._network.address(self.node)}:{PORT}"

    @property
    def is_running(self) -> bool:
        """Whether its process exists."""
        return self._child is not None and not self._child.ended.done()

    @property
    def is_serving(self) -> bool:
        """Whether its process exists and is not frozen."""
        return self.is_running and not self.is_frozen

    async def launch(self) -> None:
        """Start its process without waiting until it serves."""
        assert not self.is_running
        self.is_frozen = False
        self._child = await self._nursery.start(
            ["mqbroker", "-c", str(self.home / "broker.conf")],
            namespace=self._network.namespace(self.node),
            log=self.log_file,
            bug=self._bug,
            mirror=(str(self.store), str(self._mirror)) if self._mirror is not None else (),
        )

    async def wait_up(self) -> None:
        """Wait until it answers.

        Raises:
            NotUp: It ended, or did not answer in time.
        """
        try:
            async with asyncio.timeout(_UP_SECONDS):
                while self.is_running:
                    with contextlib.suppress(ClientError):
                        await self.status()
                        return
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise NotUp(f"{self.node} does not answer:\n{self._tail()}") from None
        raise NotUp(f"{self.node} ended by itself:\n{self._tail()}")

    async def kill(self) -> None:
        """End its process by SIGKILL."""
        if self._child is not None:
            await self._child.end()
        self.is_frozen = False

    async def stop(self) -> int:
        """End its process in order, and return the exit code."""
        assert self._child is not None
        return await self._child.end(signal.SIGTERM)

    def freeze(self) -> None:
        """Stop its process, which keeps everything."""
        assert self._child is not None
        self._child.send(signal.SIGSTOP)
        self.is_frozen = True

    def thaw(self) -> None:
        """Let a frozen process go on."""
        assert self._child is not None
        self._child.send(signal.SIGCONT)
        self.is_frozen = False

    def forget_unsynced_blocking(self, rng: random.Random) -> None:
        """Make the disk of a killed member what a power cut would have left."""
        assert not self.is_running
        assert self._mirror is not None
        cut_power(self.store, self._mirror, rng)

    # -- questions

    @contextlib.asynccontextmanager
    async def link(self) -> AsyncIterator[BrokerLink]:
        """Open a connection.

        Raises:
            ConnectionLost: Nobody listens.
        """
        link = await BrokerLink.connect(self.address, seconds=_CONNECT_SECONDS)
        try:
            yield link
        finally:
            link.close()

    async def ask(self, code: RequestCode, *, seconds: float = _CONNECT_SECONDS) -> Command:
        """Return the answer to a request without fields.

        Raises:
            ClientError: There is none.
        """
        async with self.link() as link:
            answer = await link.ask(code, seconds=seconds)
        if answer.code != ResponseCode.SUCCESS:
            raise NotConnected(f"{self.node} is between two roles: {answer.remark}")
        return answer

    async def status(self) -> MemberStatus:
        """Return its view of the group.

        Raises:
            ClientError: It does not answer.
        """
        values = decode_key_values((await self.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body)
        return MemberStatus(
            node=self.node,
            is_leading=values["groupRole"] == "LEADER",
            leader=values["groupLeader"],
            term=int(values["groupTerm"]),
            first=int(values["groupLogFirst"]),
            end=int(values["groupLogEnd"]),
            committed=int(values["groupCommitted"]),
            is_suspect=values["groupSuspect"] == "true",
            failure=values["groupFailure"],
        )

    def log_bytes_blocking(self, begin: int, end: int) -> bytes:
        """Return bytes of its commit log, read from its files."""
        found = bytearray()
        for path in sorted((self.store / "commitlog").iterdir()):
            start = int(path.name) if path.name.isdecimal() else end
            if start < end and begin < start + path.stat().st_size:
                data = path.read_bytes()
                found += data[max(0, begin - start) : end - start]
        return bytes(found)

    def _settings(self) -> dict[str, str]:
        network = self._network
        peers = [f"{node}-{network.address(node)}:{_GROUP_PORT}" for node in NODES]
        return {
            "listenPort": str(PORT),
            "bindAddress": network.address(self.node),
            "brokerIP1": network.address(self.node),
            "brokerName": "group",
            "namesrvAddr": f"{network.address(NAMES)}:{_NAMES_PORT}",
            "storePathRootDir": str(self.store),
            "enableDLegerCommitLog": "true",
            "dLegerGroup": "g",
            "dLegerSelfId": self.node,
            "dLegerPeers": ";".join(peers),
            **_SETTINGS,
        }

    def _tail(self) -> str:
        return "\n".join(self.log_file.read_text(errors="replace").splitlines()[-40:])


class Members:
    """Three members and a name server. Owned by the loop; made by :func:`members`."""

    def __init__(self, network: Network, by_name: Mapping[str, Member]) -> None:
        self.network = network
        self.by_name = by_name

    @property
    def all(self) -> list[Member]:
        """All members."""
        return list(self.by_name.values())

    @property
    def serving(self) -> list[Member]:
        """The members whose processes run and are not frozen."""
        return [member for member in self.all if member.is_serving]

    @property
    def name_servers(self) -> str:
        """The address of the name server."""
        return f"{self.network.address(NAMES)}:{_NAMES_PORT}"

    async def start(self, members: Sequence[Member] | None = None) -> None:
        """Start those that do not run, and wait until they answer."""
        stopped = [each for each in members or self.all if not each.is_running]
        await asyncio.gather(*(member.launch() for member in stopped))
        await asyncio.gather(*(member.wait_up() for member in stopped))

    async def cut(self, cuts: Sequence[tuple[str, str]] | set[tuple[str, str]]) -> None:
        """Drop the packets between these hosts, and no others."""
        await asyncio.to_thread(self.network.set_cuts_blocking, cuts)

    async def statuses(self) -> list[MemberStatus]:
        """Return the views of the members that answer."""
        found = await asyncio.gather(
            *(member.status() for member in self.serving), return_exceptions=True
        )
        for each in found:
            if isinstance(each, BaseException) and not isinstance(each, ClientError):
                raise each
        return [each for each in found if isinstance(each, MemberStatus)]

    async def leader(self) -> Member | None:
        """Return the member that leads in the newest term; None if none does."""
        leading = [each for each in await self.statuses() if each.is_leading]
        newest = max(leading, key=lambda status: status.term, default=None)
        return None if newest is None else self.by_name[newest.node]


@contextlib.asynccontextmanager
async def members(
    network: Network, directory: Path, *, bug: str = "", is_volatile: bool = False
) -> AsyncIterator[Members]:
    """Run a name server and three members until the end of a campaign."""
    async with nursery() as starting:
        home = directory / NAMES
        home.mkdir(parents=True)
        values = {
            "listenPort": str(_NAMES_PORT),
            "bindAddress": network.address(NAMES),
            "kvConfigPath": str(home / "kvConfig.json"),
        }
        (home / "namesrv.conf").write_text(format_properties(values))
        await starting.start(
            ["mqnamesrv", "-c", str(home / "namesrv.conf")],
            namespace=network.namespace(NAMES),
            log=home / "namesrv.log",
        )
        by_name = {
            node: Member(
                node,
                network=network,
                home=directory / node,
                nursery=starting,
                bug=bug,
                is_volatile=is_volatile,
            )
            for node in NODES
        }
        yield Members(network, by_name)
