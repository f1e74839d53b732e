"""Sends that threads hand over to the event loop: who waits for whom."""

from __future__ import annotations

import asyncio
import signal
import threading

import pytest

from rocketpost.client.message import SendResult, SendStatus
from rocketpost.client.producer.handover import SLICE, Handover
from rocketpost.errors import ClientError, RequestTimeout
from rocketpost.model.route import MessageQueue

RESULT = SendResult(SendStatus.SEND_OK, "id", "offset id", MessageQueue("b", 0, "T"), 7)


class CountingHandover(Handover):
    """Counts how often the loop is woken."""

    wakes = 0

    def _wake(self) -> None:
        self.wakes += 1
        super()._wake()


def done(outcome: SendResult | Exception) -> asyncio.Future[SendResult]:
    future: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
    return future


async def test_whoever_waits_for_what_was_handed_over_does_not_wait_for_later_sends() -> None:
    loop = asyncio.get_running_loop()
    handover = Handover(loop, count_max=1000, bytes_max=1000)
    started = 0

    async def start() -> asyncio.Future[SendResult]:
        nonlocal started
        started += 1
        if not handover._closed:
            handover.put_from_thread(start, 1)  # so there is always one more
        await asyncio.sleep(0)
        return loop.create_future()

    for _ in range(3):
        handover.put_from_thread(start, 1)
    await asyncio.wait_for(handover.wait_drained(), 5)
    assert 3 <= started <= 3 + 2 * SLICE
    await asyncio.wait_for(handover.close(), 5)
    assert handover.is_idle
    await handover.wait_drained()


async def test_sends_of_threads_share_a_wake_up_and_keep_their_order() -> None:
    handover = CountingHandover(asyncio.get_running_loop(), count_max=1000, bytes_max=1000)
    order: list[int] = []

    def start(number: int) -> asyncio.Future[SendResult]:
        order.append(number)
        return done(RESULT)

    futures = [
        handover.put_from_thread(lambda number=number: start(number), 1)  # type: ignore[misc]
        for number in range(100)
    ]
    results = await asyncio.gather(*map(asyncio.wrap_future, futures))
    assert results == [RESULT] * 100
    assert order == list(range(100))
    assert handover.wakes == 1
    await handover.close()


async def test_a_thread_gets_results_and_errors_one_after_the_other() -> None:
    handover = Handover(asyncio.get_running_loop(), count_max=2, bytes_max=1000)

    async def start_later() -> asyncio.Future[SendResult]:
        await asyncio.sleep(0)
        return done(RESULT)

    def refuse() -> asyncio.Future[SendResult]:
        raise RequestTimeout("refused at the start")

    def work() -> list[object]:
        outcomes: list[object] = [handover.send_from_thread(lambda: done(RESULT), 1)]
        for start in (refuse, lambda: done(RequestTimeout("no answer"))):
            with pytest.raises(RequestTimeout) as caught:
                handover.send_from_thread(start, 1)
            outcomes.append(str(caught.value))
        outcomes.append(handover.send_from_thread(start_later, 1))
        return outcomes

    expected = [RESULT, "refused at the start", "no answer", RESULT]
    every = await asyncio.gather(*[asyncio.to_thread(work) for _ in range(5)])
    assert every == [expected] * 5
    await handover.close()
    with pytest.raises(ClientError):
        await asyncio.to_thread(handover.send_from_thread, lambda: done(RESULT), 1)


class AlarmError(Exception):
    """Raised by a signal handler."""


def test_an_interrupted_thread_cancels_its_send_and_can_send_again() -> None:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    handover = Handover(loop, count_max=10, bytes_max=1000)
    cancelled = threading.Event()

    def start_for_ever() -> asyncio.Future[SendResult]:
        future = loop.create_future()
        future.add_done_callback(lambda _: cancelled.set())
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        return future

    def ring(number: int, frame: object) -> None:
        raise AlarmError

    before = signal.signal(signal.SIGUSR1, ring)
    try:
        with pytest.raises(AlarmError):
            handover.send_from_thread(start_for_ever, 1)
        assert cancelled.wait(5)
        assert handover.send_from_thread(lambda: done(RESULT), 1) == RESULT
    finally:
        signal.signal(signal.SIGUSR1, before)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
