"""Consumers that run until a signal: who hears it, and which handlers are left alone."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from client.brokers import NAMESRV, QueueBroker, network_of, route_of
from client.network import FakeNetwork
from rocketpost.client import ClientError, PushConsumer, blocking
from rocketpost.client.signals import watch_signals
from rocketpost.codec.codes import RequestCode

A = "a:1"
ROUTES = {
    "T": route_of({"a": A}),
    "%RETRY%G": route_of({"a": A}, queues=1),
    "%RETRY%H": route_of({"a": A}, queues=1),
}
LEAVE = RequestCode.UNREGISTER_CLIENT
SIGNALS = [signal.SIGTERM, signal.SIGINT]

Use = Callable[[FakeNetwork], FakeNetwork]


@pytest.fixture
def network(use_network: Use) -> FakeNetwork:
    return use_network(network_of(ROUTES, {A: QueueBroker().serve}))


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    """Begin with Python's own handlers, and check that the test leaves them in place.

    PySpark and shells that run a command in the background leave others behind, which consumers
    rightly do not replace.
    """
    ours = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
    before = {number: signal.signal(number, handler) for number, handler in ours.items()}
    yield
    after = {number: signal.signal(number, handler) for number, handler in before.items()}
    assert after == ours


def consumer(group: str = "G") -> PushConsumer:
    made = PushConsumer(group, name_servers=NAMESRV)
    made.subscribe("T", print)
    return made


async def kill_once_watched(number: signal.Signals, before: object) -> None:
    """Send this process a signal, but not before somebody watches: it would end the tests."""
    while signal.getsignal(number) is before:
        await asyncio.sleep(0)
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_stops_every_consumer_of_the_loop(
    network: FakeNetwork, number: signal.Signals
) -> None:
    async def main() -> None:
        first, second = consumer("G"), consumer("H")
        async with first, second:
            killing = asyncio.ensure_future(kill_once_watched(number, signal.getsignal(number)))
            await asyncio.gather(first.run_forever(), second.run_forever())
            await killing
            assert len(network.sent(LEAVE)) == 2  # by themselves, before the blocks end
            with pytest.raises(ClientError):
                await first.run_forever()

    asyncio.run(main())


def test_a_consumer_that_is_stopped_runs_no_more(network: FakeNetwork) -> None:
    async def main() -> None:
        async with consumer() as running:
            runner = asyncio.ensure_future(running.run_forever())
            await asyncio.sleep(0)
            await running.stop()
            await runner

    asyncio.run(main())
    assert len(network.sent(LEAVE)) == 1


def test_handlers_of_the_program_are_kept(network: FakeNetwork) -> None:
    heard: list[int] = []

    async def main() -> None:
        async with consumer() as running:
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGTERM, heard.append, 1)
            runner = asyncio.ensure_future(running.run_forever())
            await asyncio.sleep(0)
            os.kill(os.getpid(), signal.SIGTERM)
            while not heard:
                await asyncio.sleep(0)
            assert not runner.done()
            runner.cancel()
            loop.remove_signal_handler(signal.SIGTERM)

    asyncio.run(main())


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_stops_a_blocking_consumer(network: FakeNetwork, number: signal.Signals) -> None:
    running = blocking.PushConsumer("G", name_servers=NAMESRV)
    running.subscribe("T", print)
    running.start()
    before = signal.getsignal(number)
    killer = threading.Thread(
        target=lambda: asyncio.run(kill_once_watched(number, before)), daemon=True
    )
    killer.start()
    running.run_forever()
    killer.join()
    assert len(network.sent(LEAVE)) == 1
    running.stop()


def test_other_threads_hear_no_signals(network: FakeNetwork) -> None:
    running = blocking.PushConsumer("G", name_servers=NAMESRV)
    running.subscribe("T", print)
    before = signal.getsignal(signal.SIGTERM)
    with running:
        runner = threading.Thread(target=running.run_forever)
        runner.start()
        assert signal.getsignal(signal.SIGTERM) is before
    runner.join(5)
    assert not runner.is_alive()


def test_after_the_first_signal_the_old_handlers_are_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen: list[object] = []
    with watch_signals(lambda number: seen.append((number, signal.getsignal(number)))):
        os.kill(os.getpid(), signal.SIGTERM)
        while not seen:
            pass
    assert seen == [(signal.SIGTERM, before)]
