"""The tour's table adds up only if everything did what it should."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import pytest

from rocketpost import tour
from rocketpost.client import Message, Producer, RocketpostError, SendResult
from rocketpost.tour import TourLedger, fresh_folder


def test_all_must_be_acknowledged_and_received() -> None:
    everything = {0, 1, 2}
    assert TourLedger(sent=3, acknowledged=everything, received=everything).adds_up(3)
    assert not TourLedger(sent=3, failed=everything).adds_up(3)
    assert not TourLedger(sent=3, acknowledged={0, 1}, failed={2}, received=everything).adds_up(3)
    assert not TourLedger(sent=3, acknowledged=everything, received={0, 1}).adds_up(3)
    assert not TourLedger(sent=3, acknowledged=everything, received=everything, altered=1).adds_up(
        3
    )
    assert not TourLedger(sent=2, acknowledged={0, 1}, received={0, 1}).adds_up(3)


class Refusing:
    """A producer whose every send fails."""

    async def send_soon(self, message: Message) -> asyncio.Future[SendResult]:
        future: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
        future.set_exception(RocketpostError("refused"))
        return future


async def test_the_kill_is_due_even_if_nothing_is_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tour, "_PATIENCE_SECONDS", -1.0)
    ledger, due = TourLedger(), asyncio.Event()
    await tour._send(cast("Producer", Refusing()), ledger, 3, kill_at=2, due=due)
    assert due.is_set()
    assert ledger.failed == {0, 1, 2}


def test_each_tour_clears_away_the_last_one_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "tour"
    assert fresh_folder(folder) == folder
    (folder / "old").write_text("of the last tour")
    assert fresh_folder(folder) == folder
    assert not (folder / "old").exists()
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "precious").write_text("not a tour's")
    other = fresh_folder(foreign)
    assert other != foreign
    assert (foreign / "precious").exists()
    other.rmdir()
