"""The broker's own messages and duplicates are stored and answered as safely as any send."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import pytest

from rocketpost.broker.dedup.producers import ProducerTable
from rocketpost.broker.dedup.service import DedupService
from rocketpost.broker.dedup.unique_keys import KeyWindow
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.command import Command
from rocketpost.codec.faults import ServiceNotAvailable
from rocketpost.codec.headers.message import SendMessageV2
from rocketpost.errors import StoreBroken, StoreFull
from rocketpost.model.ids import Position
from rocketpost.server.handlers.send import SendHandler
from rocketpost.server.name_servers.announcing import Announcing
from rocketpost.server.writer.acknowledgement_rules import Flushed
from rocketpost.server.writer.internal_sends import Stored
from rocketpost.server.writer.log_writer import LogWriter
from rocketpost.store.draft import Draft
from rocketpost.testing.clock import FakeClock

from ..writing import DRAFT, Store, log_writer
from .fakes import FakeConnection


async def no_news() -> None:
    """Every name server knows everything."""


class Stats:
    failures = 0

    def count_failed_put(self) -> None:
        self.failures += 1


class Drafts:
    """A service that takes everything."""

    def draft(self, *args: object, **kwargs: object) -> Draft:
        return Draft("T", 0, 0, 0, 0, b"", b"", 0, 0, b"", b"", 0, ("U",))


class Client(FakeConnection):
    """A client that sends stamped messages."""

    peer_host = bytes(8)

    def __init__(self, sends: Any) -> None:
        super().__init__()
        self._sends = sends

    def answer_at_once(self, responses: bytes, count: int) -> None:
        self.answer(responses)

    def send(self, sequence: int, properties: str = "") -> None:
        fields = {"a": "p", "b": "T", "i": properties, "sequence": f"0:{sequence}::p"}
        command = Command(RequestCode.SEND_MESSAGE_V2, text_fields=fields)
        self._sends.handler.send(self, command, command.read(SendMessageV2))

    def told(self) -> list[tuple[int, str | None, str]]:
        """The answer: code, whether a duplicate, and the position."""
        return [
            (each.code, each.fields.get("duplicate"), each.fields.get("msgId", "")[-2:])
            for each in self.responses
        ]


class Sends(NamedTuple):
    """A handler and the writer that it hands its sends to."""

    handler: SendHandler
    writer: LogWriter

    def put(self, drafts: list[Draft]) -> Stored:
        return self.writer.put(drafts)

    def advance(self, position: int) -> None:
        """Let the disk get so far."""
        self.writer.advance(Flushed, Position(position))

    def fail(self, reason: str) -> None:
        self.writer.fail(reason)

    def close(self) -> None:
        self.writer.close()


def handler(store: Store, *, sync: bool, service: object = None) -> Sends:
    once = DedupService(
        producers=ProducerTable(),
        keys=KeyWindow(clock=FakeClock()),
        records=store,  # type: ignore[arg-type]
    )
    writer = log_writer(store, sync=sync, ledger=once, timeout_ms=1000)
    sends = SendHandler(
        writer=writer,
        store=store,  # type: ignore[arg-type]
        service=service,  # type: ignore[arg-type]
        dedup=once,
        stats=Stats(),  # type: ignore[arg-type]
        store_host=bytes(8),
        region="R",
        broker_name="b",
        announcing=Announcing(wait_registered=no_news),
    )
    return Sends(sends, writer)


@pytest.fixture
def store() -> Store:
    return Store()


async def test_one_commit_stores_what_a_turn_put(store: Store) -> None:
    sends = handler(store, sync=False)
    first, second = sends.put([DRAFT, DRAFT]), sends.put([DRAFT])
    assert store.commits == 0
    assert [each.position for each in await first] == [0, 10]
    assert [each.position for each in await second] == [20]
    assert store.commits == 1


async def test_under_sync_flush_it_takes_the_disk(store: Store) -> None:
    sends = handler(store, sync=True)
    first, second = sends.put([DRAFT]), sends.put([DRAFT])
    await asyncio.sleep(0)
    assert store.flushes == 1
    sends.advance(10)
    assert (first.done(), second.done()) == (True, False)
    sends.advance(20)
    assert second.done()
    sends.close()


async def test_a_store_that_fills_up_takes_the_first_of_them(store: Store) -> None:
    sends = handler(store, sync=False)
    store.room = 1
    assert len(await sends.put([DRAFT, DRAFT])) == 1
    with pytest.raises(StoreFull):
        sends.put([DRAFT])


async def test_a_failed_commit_fails_all_of_the_turn(store: Store) -> None:
    sends = handler(store, sync=False)
    futures = [sends.put([DRAFT]), sends.put([DRAFT])]
    futures[1].cancel()
    store.failing = StoreFull("no room")
    with pytest.raises(StoreFull):
        await futures[0]


@pytest.mark.parametrize("ending", ["fail", "close"])
async def test_sends_that_wait_for_a_failing_disk_are_not_stored(store: Store, ending: str) -> None:
    sends = handler(store, sync=True)
    future, given_up = sends.put([DRAFT]), sends.put([DRAFT])
    await asyncio.sleep(0)
    given_up.cancel()
    if ending == "fail":
        sends.fail("broken")
    sends.close()
    with pytest.raises(StoreBroken):
        await future


async def test_a_sender_that_gave_up_is_not_answered(store: Store) -> None:
    sends = handler(store, sync=True)
    future = sends.put([DRAFT])
    await asyncio.sleep(0)
    future.cancel()
    sends.advance(10)
    sends.close()


async def test_a_duplicate_in_the_same_turn_is_stored_and_answered_once(store: Store) -> None:
    sends = handler(store, sync=False, service=Drafts())
    client = Client(sends)
    for sequence in (1, 1, 2):
        client.send(sequence)
    await asyncio.sleep(0)
    assert store.end == 20
    assert client.told() == [(0, "false", "00"), (0, "false", "0A"), (0, "true", "00")]
    client.send(1)
    await asyncio.sleep(0)
    assert (store.end, client.told()[3:]) == (20, [(0, "true", "00")])


async def test_a_duplicate_waits_for_the_disk_like_its_original(store: Store) -> None:
    sends = handler(store, sync=True, service=Drafts())
    client = Client(sends)
    client.send(1)
    await asyncio.sleep(0)
    client.send(1)
    await asyncio.sleep(0)
    assert client.told() == []
    client.send(1, "WAIT\x01false\x02")
    await asyncio.sleep(0)
    assert client.told() == [(0, "true", "00")], "who does not wait is answered at once"
    sends.advance(10)
    assert client.told()[1:] == [(0, "false", "00"), (0, "true", "00")]
    client.send(1)
    await asyncio.sleep(0)
    assert client.told()[3:] == [(0, "true", "00")], "what is durable waits for nothing"
    sends.close()


async def test_a_message_that_could_not_be_written_is_no_duplicate_later(store: Store) -> None:
    sends = handler(store, sync=False, service=Drafts())
    client = Client(sends)
    store.failing = StoreFull("no room")
    client.send(1)
    client.send(1)
    await asyncio.sleep(0)
    assert [code for code, _, _ in client.told()] == [14, 14]
    store.failing = None
    client.send(1)
    await asyncio.sleep(0)
    assert client.told()[2][:2] == (0, "false")


async def test_duplicates_are_refused_while_the_disk_fails(store: Store) -> None:
    sends = handler(store, sync=True, service=Drafts())
    client = Client(sends)
    client.send(1)
    await asyncio.sleep(0)
    client.send(1)
    await asyncio.sleep(0)
    sends.fail("broken")
    assert [code for code, _, _ in client.told()] == [14, 14]
    sends.close()


async def test_a_send_whose_term_ends_is_refused_and_so_is_the_next(store: Store) -> None:
    sends = handler(store, sync=True, service=Drafts())
    client = Client(sends)
    client.send(1)
    sends.writer.end_term("another broker leads")
    assert [(each.code, each.remark) for each in client.responses] == [(14, "another broker leads")]
    with pytest.raises(ServiceNotAvailable, match="another broker leads"):
        client.send(2)
    sends.close()


async def test_a_disk_nearly_full_refuses_clients_and_not_the_broker_itself(store: Store) -> None:
    sends = handler(store, sync=False, service=Drafts())
    client = Client(sends)
    store.refuses_new["nearly"] = "91% full"
    assert len(await sends.put([DRAFT])) == 1
    with pytest.raises(ServiceNotAvailable, match="91% full"):
        client.send(1)
    store.refuses_new.clear()
    client.send(1)
    await asyncio.sleep(0)
    assert client.told() == [(0, "false", "0A")]
    sends.close()
