"""The steps of a broker before it goes online in a group whose smallest slave acts.

``replication.acting.PreOnline`` says which step comes next; these perform it. A returning master
takes from each slave the offsets that consumers committed there, wherever they are higher than its
own, before clients find it again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from rocketpost.broker.group.offsets import OffsetTable
from rocketpost.codec.bodies.offset import decode_offset_table
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.command import Command, to_fields
from rocketpost.codec.headers.replication import ExchangeHaInfo, HaInfo
from rocketpost.errors import ClientError
from rocketpost.model.names import is_own_offset
from rocketpost.replication.acting import Ask, AwaitLink, Step, TakeBack, Tell
from rocketpost.server.peers import Peers
from rocketpost.server.replication.master_address import MasterAddress
from rocketpost.server.replication.status import MasterStatus, SlaveStatus

logger = logging.getLogger(__name__)

_ANSWER_SECONDS: Final = 3.0
_LOOK_MS: Final = 50


class Preparation(Protocol):
    """Performs the steps of one broker."""

    async def perform(self, step: Step, member: int) -> None:
        """Perform a step that concerns a member.

        Raises:
            RocketpostError: The step failed.
        """
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


class _Requests:
    """Requests to other members."""

    def __init__(self, peers: Peers | None) -> None:
        self._connector = (peers or Peers()).connector()

    async def send(self, address: str, code: RequestCode, fields: dict[str, str]) -> Command:
        connection = await self._connector.connect(address)
        answer = await connection.request(code, fields=fields, timeout=_ANSWER_SECONDS)
        answer.raise_for_code()
        return answer

    async def close(self) -> None:
        await self._connector.close()


class MasterPreparation:
    """Performs the steps of a master. Owned by the loop.

    Args:
        address: Where the master serves requests.
        ha_address: Returns where it sends its log.
        log_end: The end of its log when it started.
        status: Returns the slaves that are connected.
        offsets: The offsets of consumers.
        peers: Makes the connections.
    """

    def __init__(
        self,
        *,
        address: str,
        ha_address: Callable[[], str],
        log_end: int,
        status: Callable[[], MasterStatus],
        offsets: OffsetTable,
        peers: Peers | None = None,
    ) -> None:
        self._requests = _Requests(peers)
        self._address = address
        self._ha_address = ha_address
        self._log_end = log_end
        self._status = status
        self._offsets = offsets

    async def perform(self, step: Step, member: int) -> None:
        """Perform a step that concerns a slave.

        Raises:
            RocketpostError: The step failed.
        """
        match step:
            case Tell(address):
                header = ExchangeHaInfo(
                    master_ha_address=self._ha_address(),
                    master_flush_offset=self._log_end,
                    master_address=self._address,
                )
                code = RequestCode.EXCHANGE_BROKER_HA_INFO
                await self._requests.send(address, code, to_fields(header))
            case AwaitLink(address, timeout_ms):
                await _wait(lambda: self._is_linked(address, member), timeout_ms, address)
            case TakeBack(address):
                answer = await self._requests.send(address, RequestCode.GET_ALL_CONSUMER_OFFSET, {})
                taken = take_higher(self._offsets, answer.body)
                logger.info("offsets taken back: slave=%s count=%s", address, taken)
            case _:
                raise AssertionError(step)

    async def close(self) -> None:
        """Close all connections."""
        await self._requests.close()

    def _is_linked(self, address: str, member: int) -> bool:
        host = address.rpartition(":")[0]
        return any(
            replica.next_position >= 0
            and (
                replica.broker_id == member
                or (replica.broker_id is None and replica.address.rpartition(":")[0] == host)
            )
            for replica in self._status().replicas
        )


class SlavePreparation:
    """Performs the steps of a slave. Owned by the loop.

    Args:
        master: Where the master is.
        status: Returns the state of the connection to it.
        peers: Makes the connections.
    """

    def __init__(
        self,
        *,
        master: MasterAddress,
        status: Callable[[], SlaveStatus],
        peers: Peers | None = None,
    ) -> None:
        self._requests = _Requests(peers)
        self._master = master
        self._status = status

    async def perform(self, step: Step, member: int) -> None:
        """Perform a step that concerns the master.

        Raises:
            RocketpostError: The step failed.
        """
        match step:
            case Ask(address):
                answer = await self._requests.send(address, RequestCode.EXCHANGE_BROKER_HA_INFO, {})
                ha_address = answer.read(HaInfo).master_ha_address or ""
                self._master.learn(remoting=address, ha=ha_address)
            case AwaitLink(address, timeout_ms):
                await _wait(lambda: self._status().is_connected, timeout_ms, address)
            case _:
                raise AssertionError(step)

    async def close(self) -> None:
        """Close all connections."""
        await self._requests.close()


async def _wait(is_linked: Callable[[], bool], timeout_ms: int, address: str) -> None:
    for _ in range(timeout_ms // _LOOK_MS):
        if is_linked():
            return
        await asyncio.sleep(_LOOK_MS / 1000)
    raise ClientError(f"no log flows between this broker and {address} after {timeout_ms} ms")


def take_higher(offsets: OffsetTable, body: bytes | memoryview) -> int:
    """Take the offsets of another broker's table that are higher; return their number.

    An offset that an administrator set, and that its consumer does not know yet, stays. So do those
    of the broker's own progress.

    Raises:
        RemoteProtocolError: The body is not such a table.
    """
    taken = 0
    for name, row in decode_offset_table(body).offset_table.items():
        topic, _, group = name.rpartition("@")
        if is_own_offset(topic, group):
            continue  # with another log, its records would count as done
        for queue_id, offset in row.items():
            if offset > offsets.query(topic, group, queue_id):
                taken += offsets.commit(topic, group, queue_id, offset)
    return taken
