"""Choice of the replica that a task pulls from: the option ``readFrom``.

Slaves can relieve masters of reads of old messages, but lag behind them. Only a master knows which
messages a queue has. So if a slave returns nothing (it is down, refuses, or lags), the task asks
the master before it counts messages as missing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from rocketpost.client.consumer.fetch import PullStatus, RawPull, Replica
from rocketpost.errors import ClientError, Fault

_FIRST: Final = {
    "master": Replica.MASTER,
    "slave": Replica.SLAVE,
    "any": Replica.SUGGESTED,
}


async def pull_from_replica(
    read_from: str, at: int, pull: Callable[[Replica], Awaitable[RawPull]]
) -> RawPull:
    """Pull from the replica that ``readFrom`` names, or else from the master.

    Args:
        read_from: ``master``, ``slave`` or ``any``.
        at: The offset to pull from.
        pull: Pulls from a replica.

    Raises:
        ClientError, Fault: The master fails, too.
    """
    first = _FIRST[read_from]
    if first is not Replica.MASTER:
        try:
            pulled = await pull(first)
        except (ClientError, Fault):
            pulled = None
        if pulled is not None and _advances(pulled, at):
            return pulled
    return await pull(Replica.MASTER)


def _advances(pulled: RawPull, at: int) -> bool:
    return pulled.status is not PullStatus.OFFSET_ILLEGAL and pulled.next_offset > at
