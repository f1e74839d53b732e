"""Ways to be acknowledged too early that were found once, and must stay closed."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.command import Command
from rocketpost.server.broker import BrokerServer
from rocketpost.testing.cluster import SMALL_STORE
from rocketpost.transport.connection import Connection
from rocketpost.transport.connector import Connector


def refuse(connection: Connection, command: Command) -> None:
    raise AssertionError(f"the broker asked {command}")


@pytest.fixture(params=["ASYNC_FLUSH", "SYNC_FLUSH"])
async def broker(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BrokerServer]:
    values = {
        "listenPort": "0",
        "bindAddress": "127.0.0.1",
        "brokerIP1": "127.0.0.1",
        "brokerName": "b",
        "storePathRootDir": str(tmp_path / "store"),
        "flushDiskType": request.param,
        **SMALL_STORE,
    }
    broker = BrokerServer(values)
    await broker.start()
    yield broker
    await broker.stop()


@pytest.fixture
async def connection(broker: BrokerServer) -> AsyncIterator[Connection]:
    connector = Connector(on_request=refuse)
    yield await connector.connect(broker.address)
    await connector.close()


def send(connection: Connection, topic: str, body: bytes) -> asyncio.Future[Command]:
    fields = {"producerGroup": "p", "topic": topic, "defaultTopic": "TBW102", "queueId": "0"}
    return connection.start_request(RequestCode.SEND_MESSAGE, fields=fields, body=body)


async def test_cleaning_topics_commits_no_unconfirmed_sends(
    broker: BrokerServer, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert broker._term is not None
    context = broker._term.context
    for topic in ("T", "Unused"):
        assert (await send(connection, topic, b"before")).code == ResponseCode.SUCCESS
    context.tables.topics.discard("Unused")  # a queue whose topic is gone
    log: Any = context.store._log
    write = log._write_buffers
    failures = [OSError(errno.ENOSPC, "No space left on device")]

    def write_or_fail(*args: Any) -> None:
        if failures:
            raise failures.pop()
        write(*args)

    monkeypatch.setattr(log, "_write_buffers", write_or_fail)
    # Both arrive in one turn of the loop: the send is appended, not committed, when topics go.
    sent = send(connection, "T", b"refused")
    cleaned = connection.start_request(RequestCode.CLEAN_UNUSED_TOPIC)
    assert (await sent).code == ResponseCode.SERVICE_NOT_AVAILABLE
    await cleaned
    after = await send(connection, "T", b"after")
    assert (after.code, after.fields["queueOffset"]) == (ResponseCode.SUCCESS, "1")


async def test_a_sync_that_failed_between_append_and_commit_acknowledges_nothing(
    broker: BrokerServer, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert broker._term is not None
    context = broker._term.context
    assert (await send(connection, "T", b"before")).code == ResponseCode.SUCCESS
    store: Any = context.store
    commit = store.commit

    def commit_after_a_failed_sync() -> Any:
        end = commit()
        store._readiness.break_from_thread("the commit log could not be made durable: EIO")
        return end

    monkeypatch.setattr(store, "commit", commit_after_a_failed_sync)
    answer = await send(connection, "T", b"written, but who knows")
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "EIO" in (answer.remark or "")
