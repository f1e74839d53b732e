from __future__ import annotations

import asyncio
import errno

import pytest

from rocketpost.server import announced
from rocketpost.server.announced import check_announced


class Dialling:
    """A network with one server, and one address that never answers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.dialled: list[tuple[str, int]] = []
        monkeypatch.setattr(announced.asyncio, "open_connection", self.open_connection)

    async def open_connection(self, host: str, port: int) -> tuple[object, Dialling]:
        self.dialled.append((host, port))
        if host == "silent":
            await asyncio.Event().wait()
        if host == "refusing":
            raise ConnectionRefusedError(errno.ECONNREFUSED, "no")
        return object(), self

    def close(self) -> None:
        """Close nothing."""


async def test_an_address_that_answers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    network = Dialling(monkeypatch)
    assert await check_announced("10.0.0.1:10911")
    assert await check_announced("[::1]:10911")
    assert network.dialled == [("10.0.0.1", 10911), ("::1", 10911)]
    assert not caplog.records


@pytest.mark.parametrize(
    ("host", "reason"), [("refusing", "connection refused"), ("silent", "no answer in 0.01 s")]
)
async def test_an_address_that_nobody_can_reach_is_a_warning(
    host: str, reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Dialling(monkeypatch)
    assert not await check_announced(f"{host}:10911", seconds=0.01)
    [line] = [record.getMessage() for record in caplog.records]
    assert f"announced={host}:10911 reason={reason}; set brokerIP1" in line
