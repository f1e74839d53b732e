"""Serves pops: looks for messages, stores checkpoints, parks pops that find nothing.

The services of ``broker.pop`` decide; this module waits. A waiter is the receiver of the answer to
a pop: a connection, or a caller in this process. It gets one answer or one refusal: at once, when
the pop's checkpoint is stored, or when the wait is over.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final, NamedTuple, Protocol, TypeVar

from rocketpost.broker.pop.in_order import OrderService
from rocketpost.broker.pop.requests import Caller, PopAnswer, PopHold, PopPlace, PopRequests
from rocketpost.broker.pop.service import PopResult, PopService
from rocketpost.broker.pop.targets import PopRequest
from rocketpost.broker.steps import Steps
from rocketpost.codec.codes import ResponseCode
from rocketpost.codec.faults import ServiceNotAvailable
from rocketpost.codec.headers.pop import Notification, PeekMessage, PopMessage
from rocketpost.errors import StoreError
from rocketpost.server.access.gate import Gate
from rocketpost.server.popping.holds import Fresh, PopHolds, Waiting
from rocketpost.server.popping.recorder import PopRecorder
from rocketpost.server.settings.limits import share
from rocketpost.store.dispatch.arrival import Arrival
from rocketpost.transport.turns import Turns

T = TypeVar("T")

HELD_WEIGHT_MAX: Final = 1_000_000
"""Most tags, and expressions counted as tags, of all waiting pops."""


class HeldPopLimits(NamedTuple):
    """Limits on waiting pops."""

    count_max: int = 100_000
    in_place_max: int = 1024
    """Most waiting pops of one group for one queue, or for all queues of a topic."""
    of_one_max: int = 16_384
    """Most waiting pops of one owner."""


class PopWaiter(Protocol):
    """The receiver of the answer to a pop."""

    @property
    def owner(self) -> Hashable:
        """The connection or other client in whose share of waiting pops it counts."""
        ...

    @property
    def peer_text(self) -> str:
        """The owner, for log lines."""
        ...

    def note_parked(self) -> None:
        """Note that nothing was found and the pop waits now."""
        ...

    def resume(self, answer: PopAnswer, /) -> None:
        """Receive the answer."""
        ...

    def refuse(self, error: Exception, /) -> None:
        """Receive the reason why there is no answer."""
        ...

    def lost_right(self, gate: Gate, /) -> Exception | None:
        """Return the reason if the client has lost the right to wait."""
        ...


class _Held(NamedTuple):
    waiter: PopWaiter
    hold: PopHold


class PopDesk:
    """Serves pops and requests for notification. Owned by the loop.

    Args:
        ordered: Serves pops in order.
        turns: The queue in which woken pops wait for their turn.
    """

    def __init__(
        self,
        *,
        requests: PopRequests,
        service: PopService,
        ordered: OrderService,
        recorder: PopRecorder,
        turns: Turns | None = None,
    ) -> None:
        self._requests = requests
        self._service = service
        self._ordered = ordered
        self._recorder = recorder
        self.limits = HeldPopLimits()
        self._holds = PopHolds[_Held](retry=self._try_again, time_over=self._time_over, turns=turns)
        self.note_arrivals = self._holds.note_arrivals

    @property
    def held(self) -> int:
        """Number of waiting pops."""
        return len(self._holds)

    def held_in(self, place: PopPlace) -> int:
        """Return the number of pops that wait in one place."""
        return self._holds.count(place)

    def end_denied(self, gate: Gate) -> None:
        """Refuse the waiting pops whose users have lost their rights."""
        for waiting in self._holds.all():
            problem = waiting.payload.waiter.lost_right(gate)
            if problem is not None:
                self._holds.cancel(waiting)
                waiting.payload.waiter.refuse(problem)

    # Requests.

    def pop(self, header: PopMessage, waiter: PopWaiter) -> Steps[None]:
        """Answer a pop once its checkpoint is stored, or hold it.

        Raises:
            Fault: The pop is refused; its waiter is not called.
        """
        request = self._requests.pop_request(header, waiter)
        popped = yield from self._look(self._pop, request, _has_parts)
        self._serve(waiter, self._requests.decide_pop(request, popped, header.poll_time))

    def notify(self, header: Notification, waiter: PopWaiter) -> Steps[None]:
        """Answer as soon as a pop might find messages.

        Raises:
            Fault: The request is refused; its waiter is not called.
        """
        request = self._requests.notification_request(header, waiter)
        found = yield from self._look(self._has_message, request, bool)
        self._serve(
            waiter, self._requests.decide_notification(request, header.poll_time, found=found)
        )

    def peek(self, header: PeekMessage, caller: Caller) -> Steps[tuple[list[memoryview], int]]:
        """Return the messages that a pop would take, and the number of others; take none."""
        return self._service.peek(self._requests.peek_request(header, caller))

    # Events.

    note_arrivals: Callable[[list[Arrival]], None]
    """Offers messages to the pops that wait for them."""

    def wake(self, topic: str, queue_id: int) -> None:
        """Let waiting pops look at a queue again: there may be messages for them now."""
        self._holds.offer(topic, queue_id)

    def drop(self, owner: Hashable) -> None:
        """Drop the pops of a lost owner."""
        self._holds.drop(owner)

    def cancel(self, waiter: PopWaiter) -> None:
        """Drop one pop, if it waits, without an answer."""
        for waiting in self._holds.of(waiter.owner):
            if waiting.payload.waiter is waiter:
                self._holds.cancel(waiting)

    def close(self) -> None:
        """Answer every waiting pop."""
        self._holds.close()

    # Looking.

    def _look(
        self,
        look: Callable[[PopRequest], Steps[T]],
        request: PopRequest,
        is_found: Callable[[T], bool],
    ) -> Steps[T]:
        """Look for messages, including those that arrive during the search."""
        steps = look(request)
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        with self._holds.looking(self._requests.topics_of(request)) as fresh:
            result = yield from steps
        if fresh and not is_found(result):
            result = yield from self._look(look, request._replace(only=fresh), is_found)
        return result

    def _pop(self, request: PopRequest) -> Steps[PopResult]:
        service = self._ordered if request.in_order else self._service
        try:
            return (yield from self._recorder.run(service, service.pop_steps(request)))
        except StoreError as error:
            raise ServiceNotAvailable(str(error)) from error

    def _has_message(self, request: PopRequest) -> Steps[bool]:
        return (self._ordered if request.in_order else self._service).has_message(request)

    # Waiting and answering.

    def _serve(self, waiter: PopWaiter, outcome: PopAnswer | PopHold) -> None:
        if isinstance(outcome, PopAnswer):
            self._answer(waiter, outcome)
        elif self._is_full(waiter.owner, outcome):
            self._answer(waiter, PopAnswer(ResponseCode.POLLING_FULL, outcome.request))
        else:
            waiter.note_parked()
            self._holds.park(
                Waiting(
                    waiter.owner,
                    outcome.place,
                    _Held(waiter, outcome),
                    leaves_messages=outcome.leaves_messages,
                    weight=outcome.weight,
                ),
                retry_topics=outcome.retry_topics,
                seconds=outcome.seconds,
            )

    def _is_full(self, owner: Hashable, hold: PopHold) -> bool:
        holds, limits, weight = self._holds, self.limits, hold.weight
        of_one_max = share(len(holds), limits.count_max, limits.of_one_max)
        weight_max = share(holds.weight, HELD_WEIGHT_MAX, HELD_WEIGHT_MAX)
        return (
            holds.count(hold.place) >= limits.in_place_max
            or holds.count_of(owner) >= of_one_max
            or bool(weight and holds.weight_of(owner) + weight > weight_max)
        )

    def _try_again(self, waiting: Waiting[_Held], fresh: Fresh) -> Steps[bool]:
        """Look for messages for a waiting pop again; return whether it is answered."""
        waiter, hold = waiting.payload
        # With a limit on unacknowledged messages, an ack makes room in any queue unnoticed.
        only = fresh if self._service.unacked_max is None else None
        try:
            request = self._requests.renew(hold, only)
            if not hold.is_pop:
                found = yield from self._look(self._has_message, request, bool)
                if found:
                    self._answer(waiter, PopAnswer(ResponseCode.SUCCESS, request))
                return found
            popped = yield from self._look(self._pop, request, _has_parts)
            if not popped.parts and not popped.is_cut:
                return False
            outcome = self._requests.decide_pop(request, popped, 0)
            assert isinstance(outcome, PopAnswer)
            self._answer(waiter, outcome)
        except Exception as error:
            # One failed pop must not stop the answers to the others.
            waiter.refuse(error)
        return True

    def _time_over(self, waiting: Waiting[_Held]) -> None:
        waiter, hold = waiting.payload
        self._answer(waiter, PopAnswer(ResponseCode.POLLING_TIMEOUT, hold.request))

    def _answer(self, waiter: PopWaiter, answer: PopAnswer) -> None:
        if answer.popped is None:
            waiter.resume(answer)
        else:
            # There is one log, so the newest change settles last.
            change = answer.popped.parts[-1].change
            self._recorder.when_settled(change, lambda: _hand_out(waiter, answer))


def _hand_out(waiter: PopWaiter, answer: PopAnswer) -> None:
    assert answer.popped is not None
    parts = [part for part in answer.popped.parts if part.change.is_stored]
    try:
        if not parts:
            raise ServiceNotAvailable("the pop could not be recorded; try again later")
        waiter.resume(answer._replace(popped=answer.popped._replace(parts=parts)))
    except Exception as error:
        waiter.refuse(error)


def _has_parts(popped: PopResult) -> bool:
    return bool(popped.parts)
