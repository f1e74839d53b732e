"""Notices to brokers that another member of their group has the smallest id.

RocketMQ's brokers serve these requests on their own port only, so each notice opens a connection
and closes it again. A notice that cannot be delivered is dropped: brokers also ask for the members
of their group every second.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from typing import Final

from rocketpost.codec.codes import RequestCode
from rocketpost.codec.command import to_fields
from rocketpost.codec.headers.namesrv import NotifyMinBrokerIdChange
from rocketpost.errors import RocketpostError
from rocketpost.namesrv.min_broker import MinBrokerChange
from rocketpost.server.peers import Peers

logger = logging.getLogger(__name__)

_CONNECT_SECONDS: Final = 1.0
_CONNECTIONS_MAX: Final = 32


class MinBrokerNotices:
    """Sends NOTIFY_MIN_BROKER_ID_CHANGE to the members of broker groups. Belongs to the loop."""

    def __init__(self, peers: Peers | None = None) -> None:
        self._connector = (peers or Peers()).connector(connect_seconds=_CONNECT_SECONDS)
        self._latest: dict[str, dict[str, str]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._room = asyncio.Semaphore(_CONNECTIONS_MAX)

    def tell(self, change: MinBrokerChange) -> None:
        """Notify the members of a change; a later change replaces one that is not sent yet."""
        logger.info(
            "smallest broker id changed: name=%s id=%s address=%s gone=%s told=%s",
            change.name, change.id, change.address, change.offline_address,
            ",".join(change.recipients),
        )  # fmt: skip
        fields = to_fields(
            NotifyMinBrokerIdChange(
                min_broker_id=change.id,
                min_broker_addr=change.address,
                offline_broker_addr=change.offline_address,
                ha_broker_addr=change.ha_address,
            )
        )
        for address in change.recipients:
            self._latest[address] = fields
            if address not in self._tasks:
                self._start(address)

    async def close(self) -> None:
        """Drop the notices that are not sent yet, and close all connections."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._connector.close()

    def _start(self, address: str) -> None:
        task = asyncio.create_task(self._send(address), name=f"notice to {address}")
        task.add_done_callback(functools.partial(self._end, address))
        self._tasks[address] = task

    async def _send(self, address: str) -> None:
        try:
            async with self._room:
                while (fields := self._latest.pop(address, None)) is not None:
                    connection = await self._connector.connect(address)
                    connection.send_oneway(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, fields=fields)
                    self._connector.drop(address)
        except RocketpostError as error:
            logger.info("notice not delivered: broker=%s reason=%s", address, error)

    def _end(self, address: str, task: asyncio.Task[None]) -> None:
        del self._tasks[address]
        if task.cancelled():
            self._latest.pop(address, None)
        elif address in self._latest:  # told while the task was ending
            self._start(address)
