"""Stores the changes that the services of popping decide, and reports the outcome of each.

There is one log, so changes settle in the order in which they were appended. When a change settles,
its service is told first, then its waiters. All settled changes are reported before a service is
asked for anything else: after a failed write it must not rely on changes that are lost.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple, TypeVar

from rocketpost.broker.pop.changes import Change, ChangeSteps, Decider
from rocketpost.broker.steps import Steps
from rocketpost.errors import RocketpostError, StoreError
from rocketpost.store.draft import Appended, Draft

T = TypeVar("T")
C = TypeVar("C", bound=Change | None)

Put = Callable[[list[Draft]], "asyncio.Future[list[Appended]]"]
"""Appends messages at once and stores them as safely as sends; raises ``StoreError`` if not even
the first fits."""


class _Pending(NamedTuple):
    service: Decider
    change: Change
    future: asyncio.Future[list[Appended]]
    waiting: list[Callable[[], None]]


class PopRecorder:
    """Stores changes in their order. Owned by the loop."""

    def __init__(self, put: Put) -> None:
        self._put = put
        self._pending: deque[_Pending] = deque()
        self._by_change: dict[Change, _Pending] = {}

    def run(self, service: Decider, steps: ChangeSteps[T]) -> Steps[T]:
        """Run the steps of a service, and store the changes that they yield.

        Raises:
            StoreError: Nothing could be stored.
        """
        try:
            self.settle()
            wanted = next(steps)
            while True:
                error: StoreError | None = None
                if wanted is None:
                    yield
                    self.settle()
                else:
                    try:
                        self.store(service, wanted)
                    except StoreError as refused:
                        error = refused
                wanted = next(steps) if error is None else steps.throw(error)
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            steps.close()

    def decide(self, service: Decider, decide: Callable[[], C]) -> C:
        """Ask a service for a change, and store it if there is one.

        Raises:
            RocketpostError: The service refuses, or the change cannot be stored now.
        """
        self.settle()
        change = decide()
        if change is not None:
            self.store(service, change)
        return change

    def store(self, service: Decider, change: Change) -> None:
        """Append the records of a change, unless they are being stored already.

        Raises:
            RocketpostError: The change cannot be stored now; the service is told of the failure.
        """
        if change.is_settled or change in self._by_change:
            return
        try:
            future = self._put(change.drafts)
        except RocketpostError as error:
            change.settle([], str(error))
            service.settle(change)
            raise
        pending = self._by_change[change] = _Pending(service, change, future, [])
        self._pending.append(pending)
        future.add_done_callback(self._on_stored)

    def when_settled(self, change: Change, callback: Callable[[], None]) -> None:
        """Call ``callback`` when it is known whether a change is stored."""
        pending = self._by_change.get(change)
        if pending is not None:
            pending.waiting.append(callback)
        else:
            assert change.is_settled
            callback()

    async def wait(self, changes: Iterable[Change | None]) -> None:
        """Wait until it is known whether changes are stored."""
        for change in changes:
            if change is not None and not change.is_settled:
                settled = asyncio.get_running_loop().create_future()
                self.when_settled(change, partial(_wake, settled))
                await settled

    def settle(self) -> None:
        """Report all settled changes to their services and waiters."""
        pending = self._pending
        while pending and pending[0].future.done():
            service, change, future, waiting = pending.popleft()
            del self._by_change[change]
            if future.cancelled():
                change.settle([], "the broker stops")
            elif (error := future.exception()) is not None:
                change.settle([], str(error))
            else:
                change.settle(future.result())
            service.settle(change)
            for callback in waiting:
                callback()

    def _on_stored(self, _: object) -> None:
        self.settle()


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
