"""Which replica a task pulls from: ``readFrom``.

Slaves spare masters the reading of old messages, and lag behind them. A master alone says what a
queue has, so what a slave does not give (it is away, refuses, or has not come so far) is asked of
the master before anything counts as missing.
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


async def pulled_from(
    read_from: str, at: int, pull: Callable[[Replica], Awaitable[RawPull]]
) -> RawPull:
    """Pull from the replica that ``readFrom`` names, or else from the master.

    Args:
        read_from: ``master``, ``slave`` or ``any``.
        at: The offset that is pulled.
        pull: Pulls from a replica.

    Raises:
        ClientError, Fault: The master gives nothing.
    """
    first = _FIRST[read_from]
    if first is not Replica.MASTER:
        try:
            pulled = await pull(first)
        except (ClientError, Fault):
            pulled = None
        if pulled is not None and _goes_on(pulled, at):
            return pulled
    return await pull(Replica.MASTER)


def _goes_on(pulled: RawPull, at: int) -> bool:
    return pulled.status is not PullStatus.OFFSET_ILLEGAL and pulled.next_offset > at
