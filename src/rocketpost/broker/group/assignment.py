"""Assignment of queues to members, for clients that leave it to the broker.

All brokers of a topic know the same members (each client sends heartbeats to all of them) and the
same route, so every broker gives the same answer. A member gets the share that it would compute
itself. A member of a group that pops gets more, since such members share queues.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from rocketpost.broker.group.membership import BROADCASTING, ConsumerGroup
from rocketpost.broker.group.request_modes import RequestModes
from rocketpost.codec.bodies.assignment import (
    ALL_QUEUES,
    POP,
    Assignment,
    QueryAssignment,
    RequestMode,
)
from rocketpost.codec.faults import InvalidParameter
from rocketpost.model.route import MessageQueue
from rocketpost.model.shares import average_share, circle_share, java_order

Share = Callable[[Sequence[MessageQueue], int, int], list[MessageQueue]]

STRATEGIES: Final[dict[str, Share]] = {"AVG": average_share, "AVG_BY_CIRCLE": circle_share}


class Members(Protocol):
    """The part of the membership that assignment uses."""

    def consumer_group(self, group: str) -> ConsumerGroup | None:
        """Return the connected members of a group; None if no member is connected."""
        ...


class AssignmentService:
    """Assigns queues to members. Owned by the event loop; waits for nothing."""

    def __init__(self, *, members: Members, modes: RequestModes) -> None:
        self._members = members
        self._modes = modes
        self.shares_out = True
        """Whether queues are divided among members; otherwise every member gets all of them."""

    def assign(
        self, request: QueryAssignment, queues: Sequence[MessageQueue] | None
    ) -> list[Assignment] | None:
        """Return the client's queues; None if they are unknown, and the client keeps those it has.

        Args:
            request: The request, with the client and the topic.
            queues: The queues of the topic on all brokers, None if the topic is unknown.

        Raises:
            InvalidParameter: The broker does not know the strategy.
        """
        if queues is None:
            return None
        mode = self._modes.find(request.topic, request.consumer_group)
        if request.message_model == BROADCASTING or not self.shares_out:
            return _in_mode(queues, mode)
        strategy = STRATEGIES.get(request.strategy_name)
        if strategy is None:
            raise InvalidParameter(
                f"the broker does not know the strategy {request.strategy_name!r}; "
                f"it knows {' and '.join(STRATEGIES)}"
            )
        group = self._members.consumer_group(request.consumer_group)
        if group is None:
            return None
        members = sorted(group.client_ids, key=java_order)
        if request.client_id not in members:
            # Its heartbeat has not arrived yet. Keeping its queues is safe; dropping them is not.
            return None
        ordered = sorted(queues, key=lambda queue: queue.sort_key)
        index = members.index(request.client_id)
        if mode.mode == POP:
            share = _pop_share(ordered, index, len(members), strategy, mode.pop_share_queue_num)
        else:
            share = strategy(ordered, index, len(members))
        return _in_mode(share, mode)


def _pop_share(
    queues: Sequence[MessageQueue], index: int, count: int, strategy: Share, neighbours: int
) -> list[MessageQueue]:
    """Return the queues that one of ``count`` members pops from."""
    if neighbours <= 0 or neighbours >= count - 1:
        brokers = dict.fromkeys((queue.topic, queue.broker_name) for queue in queues)
        return [MessageQueue(broker, ALL_QUEUES, topic) for topic, broker in brokers]
    if count > len(queues):
        return [queues[index % len(queues)]] if queues else []
    shares = [strategy(queues, (index + step) % count, count) for step in range(neighbours + 1)]
    return [queue for share in shares for queue in share]


def _in_mode(queues: Sequence[MessageQueue], mode: RequestMode) -> list[Assignment]:
    return [Assignment(message_queue=queue, mode=mode.mode) for queue in queues]
