"""Mistakes that the model of transactions must find; else it proves nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from rocketpost.broker.transaction.checks import CheckService
from rocketpost.broker.transaction.evidence import Evidence
from rocketpost.broker.transaction.service import TransactionService
from rocketpost.broker.transaction.table import PendingTable

from .test_transactions import TransactionMachine

pytestmark = pytest.mark.slow


def _trusts_the_table(service: Any, half: Any) -> bool:
    return bool(half.is_open)


def _saves_what_is_not_on_disk(table: Any, durable: int) -> int:
    return _half_floor(table, 2**62)


def _commits_what_it_does_not_know(service: Any, record: Any, *rest: Any) -> Any:
    return None


def _forgets_what_it_could_not_store(service: Any, half: Any, now_ms: int) -> None:
    half.covered = -1


_half_floor: Callable[[Any, int], int] = PendingTable.half_floor

BUGS: dict[str, tuple[type, str, Any]] = {
    "a half without op message is taken for pending": (
        TransactionService, "confirm_pending", _trusts_the_table,
    ),
    "progress passes what is not on disk": (
        PendingTable, "half_floor", _saves_what_is_not_on_disk,
    ),
    "no commit is ever found": (
        Evidence, "commit_of", lambda self, topic, wanted: None,
    ),
    "a late end is always a success": (
        TransactionService, "_late_end", _commits_what_it_does_not_know,
    ),
    "a half whose copy found no room is forgotten": (
        CheckService, "_postpone", _forgets_what_it_could_not_store,
    ),
}  # fmt: skip


@pytest.mark.parametrize("bug", BUGS)
def test_the_model_finds(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, wrong = BUGS[bug]
    monkeypatch.setattr(owner, name, wrong)
    chosen = settings(
        max_examples=2000,
        stateful_step_count=40,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        derandomize=True,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    with pytest.raises(AssertionError):
        run_state_machine_as_test(TransactionMachine, settings=chosen)
