"""Pulls and pops from within the broker's process, without a connection.

A second protocol can call the broker through this module. The same services decide, and the same
tables hold waiting requests, as for the remoting protocol. A call returns when there is an answer.
A cancelled call stops waiting.
"""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

from rocketpost.broker.pop.requests import PopAnswer
from rocketpost.broker.pull.service import PullAnswer, PullHold, PullService
from rocketpost.codec.headers.message import PullMessage
from rocketpost.codec.headers.pop import PopMessage
from rocketpost.server.access.gate import Gate
from rocketpost.server.cold_reads import ColdReads
from rocketpost.server.long_polling import LongPolls
from rocketpost.server.popping.desk import PopDesk

A = TypeVar("A")


class FutureWaiter(Generic[A]):
    """A call that waits for its answer. Belongs to one call."""

    def __init__(self, owner: InProcessClient) -> None:
        self.owner = owner
        self.answer: asyncio.Future[A] = asyncio.get_running_loop().create_future()

    @property
    def peer_text(self) -> str:
        """The name of the client."""
        return self.owner.peer_text

    def note_parked(self) -> None:
        """Do nothing: unanswered calls are not counted here."""

    def resume(self, answer: A) -> None:
        """Return the answer from the call."""
        if not self.answer.done():  # it may have been cancelled in this loop iteration
            self.answer.set_result(answer)

    def refuse(self, error: Exception) -> None:
        """Raise the error from the call."""
        if not self.answer.done():
            self.answer.set_exception(error)

    def lost_right(self, gate: Gate) -> None:
        """Return no reason: a call from this process needs no right."""


class InProcessClient:
    """One client within the process, with a share of the waiting requests like a connection.

    Owned by the loop.

    Args:
        name: Names the client in log lines.
        pulls: Decides on pulls.
        polls: Holds pulls that wait for messages.
        cold_reads: Holds pulls that wait for the disk.
        pops: Serves pops.
    """

    def __init__(
        self,
        name: str,
        *,
        pulls: PullService,
        polls: LongPolls,
        cold_reads: ColdReads,
        pops: PopDesk,
    ) -> None:
        self.peer_text = name
        self._pulls = pulls
        self._polls = polls
        self._cold_reads = cold_reads
        self._pops = pops

    async def pull(self, request: PullMessage) -> PullAnswer:
        """Return the answer to a pull, which may wait as long as the request allows.

        Raises:
            Fault: The pull is refused.
        """
        outcome = self._pulls.pull(request, self)
        if not isinstance(outcome, PullHold):
            return outcome
        waiter = FutureWaiter[PullAnswer](self)
        if outcome.cold:
            self._cold_reads.park(waiter, outcome)
            return await waiter.answer
        held = self._polls.park(waiter, outcome)
        try:
            return await waiter.answer
        finally:
            self._polls.cancel(held)

    async def pop(self, request: PopMessage) -> PopAnswer:
        """Return the answer to a pop once its checkpoint is stored, or its wait is over.

        Raises:
            Fault: The pop is refused.
        """
        waiter = FutureWaiter[PopAnswer](self)
        try:
            for _ in self._pops.pop(request, waiter):
                await asyncio.sleep(0)  # serves others during a search of many queues
            return await waiter.answer
        finally:
            self._pops.cancel(waiter)

    def close(self) -> None:
        """Drop the client's waiting requests without an answer."""
        self._cold_reads.drop(self)
        self._polls.drop(self)
        self._pops.drop(self)
