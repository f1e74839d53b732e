"""The choice of the replica to pull from: the master of a broker, or one of its slaves.

Each answer to a pull suggests the id of the broker for the next one. If that broker cannot be
reached, or name servers do not list it, any other replica will do: slaves have the same messages at
the same offsets. A replica that has failed is avoided for a while, longer after each failure, and
tried again by one pull. If it had not been reachable, an open connection to it ends this early.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from rocketpost.client.route_cache import RouteCache
from rocketpost.errors import RouteNotFound
from rocketpost.model.route import MASTER_ID, MessageQueue

AVOID_SECONDS_MIN: Final = 1.0
AVOID_SECONDS_MAX: Final = 30.0


class Chosen(NamedTuple):
    """The replica for one pull."""

    address: str
    is_slave: bool
    is_suggested: bool
    """Whether it is the one that the last answer suggested."""


class _Failure:
    """Consecutive failures of one replica."""

    __slots__ = ("count", "is_useless", "until")

    def __init__(self) -> None:
        self.count = 0
        self.until = 0.0
        """Time at which it is tried again."""
        self.is_useless = False
        """Whether it accepts connections but does not serve pulls."""


class ReplicaChoice:
    """Chooses replicas for one consumer. Belongs to the event loop.

    Args:
        routes: The addresses of all replicas.
        is_connected: Tells whether there is an open connection to an address.
        clock: Returns monotonic seconds.
    """

    def __init__(
        self,
        routes: RouteCache,
        *,
        is_connected: Callable[[str], bool],
        clock: Callable[[], float],
    ) -> None:
        self._routes = routes
        self._is_connected = is_connected
        self._clock = clock
        self._suggested: dict[MessageQueue, int] = {}
        self._failures: dict[str, _Failure] = {}

    def suggest(self, queue: MessageQueue, broker_id: int) -> None:
        """Take the id that a broker suggests for the next pull of a queue."""
        if broker_id != MASTER_ID:
            self._suggested[queue] = broker_id
        elif self._suggested:
            self._suggested.pop(queue, None)

    def is_listed(self, queue: MessageQueue) -> bool:
        """Tell whether the suggested replica of a queue has a known address."""
        known = self._routes.replicas(queue.broker_name)
        return self._suggested.get(queue, MASTER_ID) in known

    def choose(self, queue: MessageQueue) -> Chosen:
        """Return the replica for the next pull of a queue.

        Raises:
            RouteNotFound: No address of that broker is known.
        """
        suggested = self._suggested.get(queue, MASTER_ID)
        address = self._routes.replicas(queue.broker_name).get(suggested)
        if address is not None and self._is_usable(address):
            return Chosen(address, suggested != MASTER_ID, True)
        order = self._order(queue)
        return next((each for each in order if self._is_usable(each.address)), order[0])

    def choose_other(self, queue: MessageQueue, tried: Collection[str]) -> Chosen | None:
        """Return a replica that was not tried and has not failed lately, or None."""
        for each in self._order(queue):
            if each.address not in tried and self._is_usable(each.address):
                return each
        return None

    def report_failure(self, address: str, *, is_useless: bool) -> None:
        """Avoid a replica for some time.

        Args:
            address: The replica.
            is_useless: Whether it accepts connections but does not serve pulls.
        """
        failure = self._failures.setdefault(address, _Failure())
        failure.count += 1
        failure.is_useless = is_useless
        failure.until = self._clock() + _avoid_seconds(failure.count)

    def report_success(self, address: str) -> None:
        """Use a replica again that has answered."""
        if self._failures:
            self._failures.pop(address, None)

    def _order(self, queue: MessageQueue) -> list[Chosen]:
        """Return the replicas of a queue, the preferred one first, then by their ids."""
        known = self._routes.replicas(queue.broker_name)
        if not known:
            raise RouteNotFound(f"the broker {queue.broker_name} is unknown")
        suggested = self._suggested.get(queue, MASTER_ID)
        # As Java does: a slave that is not there is replaced by the next one.
        wished = suggested if suggested in known or not suggested else suggested + 1
        ids = sorted(known, key=lambda broker_id: (broker_id != wished, broker_id))
        return [Chosen(known[each], each != MASTER_ID, each == suggested) for each in ids]

    def _is_usable(self, address: str) -> bool:
        failure = self._failures.get(address) if self._failures else None
        if failure is None:
            return True
        if not failure.is_useless and self._is_connected(address):
            return True
        now = self._clock()
        if now < failure.until:
            return False
        failure.until = now + _avoid_seconds(failure.count)  # this pull alone tries it
        return True


def _avoid_seconds(count: int) -> float:
    return min(AVOID_SECONDS_MAX, AVOID_SECONDS_MIN * (1 << min(count - 1, 10)))
