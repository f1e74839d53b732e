from __future__ import annotations

import asyncio
import time
from typing import Any, cast

import pytest

from rocketpost.codec.codes import RequestCode
from rocketpost.codec.faults import NoMessage
from rocketpost.codec.headers.pop import ChangeInvisibleTimeResponse, Receipt
from rocketpost.proxy.backend import Backend
from rocketpost.proxy.clients import GrpcClient
from rocketpost.proxy.handles import ReceiptHandle
from rocketpost.proxy.popped import Taken
from rocketpost.proxy.renewal import Renewals
from rocketpost.proxy.settings import ProxyConfig
from rocketpost.testing.virtual_time import in_virtual_time
from rocketpost.testing.waiting import settle

ROUND_SECONDS = ProxyConfig().renew_interval_ms / 1000 + 0.001


class Broker:
    """The link of a client to a broker that changes invisible times, and can be slow to answer."""

    def __init__(self) -> None:
        self.changed: list[Receipt] = []
        self.refusal: Exception | None = None
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def call(self, broker: str, code: int, header: Any = None, **options: Any) -> Any:
        assert code == RequestCode.CHANGE_MESSAGE_INVISIBLETIME
        self.changed.append(Receipt(*_numbers(header.extra_info)))
        await self.may_answer.wait()
        if self.refusal is not None:
            raise self.refusal
        answer = ChangeInvisibleTimeResponse(
            pop_time=_now_ms() + len(self.changed), invisible_time=60_000, revive_qid=3
        )
        return _Answer(answer)

    def link(self, identity: Any, on_request: Any) -> Broker:
        return self

    async def group(self, group: str) -> None:
        return None

    def close(self) -> None: ...


class _Answer:
    def __init__(self, header: Any) -> None:
        self._header = header

    def read(self, kind: type) -> Any:
        assert isinstance(self._header, kind)
        return self._header


class _Client:
    def __init__(self, broker: Broker) -> None:
        self.link = broker


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _numbers(text: str) -> list[Any]:
    return [int(word) if word.lstrip("-").isdecimal() else word for word in text.split(" ")]


def _taken(*, left_ms: int = 1_000, offset: int = 7) -> Taken:
    receipt = Receipt(offset, _now_ms() - 60_000 + left_ms, 60_000, 3, 0, "broker-a", 0, offset)
    return Taken("group", "topic", ReceiptHandle(receipt, 99))


def _renewals(broker: Broker) -> Renewals:
    return Renewals(cast(Backend, broker), ProxyConfig())


def _client(broker: Broker) -> GrpcClient:
    return cast(GrpcClient, _Client(broker))


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@in_virtual_time
async def test_a_message_that_is_due_soon_is_renewed_and_the_first_handle_stands_for_it() -> None:
    broker = Broker()
    renewals, client = _renewals(broker), _client(broker)
    due, later = _taken(), _taken(left_ms=50_000, offset=8)
    renewals.hold(client, due, "id")
    renewals.hold(client, later, "id")
    task = asyncio.create_task(renewals.run())
    await asyncio.sleep(ROUND_SECONDS)
    assert broker.changed == [due.handle.receipt]
    async with renewals.claim(client, due) as current:
        assert current.handle.receipt.pop_ms > due.handle.receipt.pop_ms
        assert current.handle.place == due.handle.place
    async with renewals.claim(client, later) as current:
        assert current == later
    await _end(task)


@in_virtual_time
async def test_a_call_waits_for_the_renewal_of_its_message() -> None:
    """Its handle would be an old one: the broker has a new one, but has not said so yet."""
    broker = Broker()
    renewals, client = _renewals(broker), _client(broker)
    shown = _taken()
    renewals.hold(client, shown, "id")
    broker.may_answer.clear()
    task = asyncio.create_task(renewals.run())
    await asyncio.sleep(ROUND_SECONDS)
    claim = renewals.claim(client, shown)
    entering = asyncio.create_task(claim.__aenter__())
    gone = asyncio.create_task(renewals.claim(client, shown).__aenter__())
    await settle()
    assert not entering.done()
    gone.cancel()  # the end of one call is of no concern to the renewal or to other calls
    await settle()
    broker.may_answer.set()
    current = await entering
    assert current.handle.receipt.pop_ms > shown.handle.receipt.pop_ms
    claim.release()
    await claim.__aexit__()
    assert len(renewals) == 0
    await _end(task)


@in_virtual_time
async def test_a_message_is_not_renewed_during_a_call_about_it() -> None:
    broker = Broker()
    renewals, client = _renewals(broker), _client(broker)
    shown = _taken()
    renewals.hold(client, shown, "id")
    async with renewals.claim(client, shown) as current:
        task = asyncio.create_task(renewals.run())
        await asyncio.sleep(ROUND_SECONDS)
        assert current == shown
        assert broker.changed == []
    # The call has failed, or it would have released the message: it is renewed again.
    await asyncio.sleep(ROUND_SECONDS)
    assert broker.changed == [shown.handle.receipt]
    await _end(task)


async def test_an_old_handle_of_another_client_is_only_what_it_says() -> None:
    """A message in order is at the same place when it is delivered again."""
    broker = Broker()
    renewals, first, second = _renewals(broker), _client(broker), _client(broker)
    old, new = _taken(), _taken(left_ms=59_000)
    renewals.hold(first, old, "id")
    renewals.hold(second, new, "id")
    claim = renewals.claim(first, old)
    async with claim as current:
        assert current == old
        claim.release()
    assert len(renewals) == 1
    async with renewals.claim(second, new) as current:
        assert current == new


@in_virtual_time
async def test_a_client_that_leaves_during_a_renewal_returns_the_newest_handle() -> None:
    broker = Broker()
    renewals, client = _renewals(broker), _client(broker)
    shown = _taken()
    renewals.hold(client, shown, "id")
    broker.may_answer.clear()
    task = asyncio.create_task(renewals.run())
    await asyncio.sleep(ROUND_SECONDS)
    returning = asyncio.create_task(renewals.return_all(client))
    await settle()
    assert broker.changed == [shown.handle.receipt]
    broker.may_answer.set()
    await returning
    assert broker.changed[1].pop_ms > shown.handle.receipt.pop_ms
    await _end(task)


@in_virtual_time
async def test_a_message_that_the_broker_no_longer_has_is_dropped() -> None:
    broker = Broker()
    renewals, client = _renewals(broker), _client(broker)
    renewals.hold(client, _taken(), "id")
    broker.refusal = NoMessage("acknowledged")
    task = asyncio.create_task(renewals.run())
    await asyncio.sleep(ROUND_SECONDS)
    assert len(renewals) == 0
    await _end(task)
