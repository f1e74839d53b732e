from __future__ import annotations

import pytest

from rocketpost.errors import StoreBroken, StoreFull
from rocketpost.store.readiness import Readiness


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def readiness(told: list[str]) -> Readiness:
    return Readiness(on_broken=told.append)


def test_all_is_well_at_first(readiness: Readiness) -> None:
    assert readiness.is_ready
    assert readiness.why_not is None
    readiness.check()


def test_a_disk_nearly_full_refuses_new_messages_only(readiness: Readiness) -> None:
    readiness.set_nearly_full("91% full")
    assert (readiness.is_ready, readiness.why_not) == (False, "91% full")
    assert (readiness.refusal_reasons, list(readiness.new_refusal_reasons)) == ({}, ["nearly"])
    readiness.set_trouble("not saved")
    assert readiness.why_not == "not saved", "the graver one is told"
    readiness.set_trouble(None)
    readiness.check_appends()
    with pytest.raises(StoreFull, match="91%"):
        readiness.check()
    readiness.set_nearly_full(None)
    assert readiness.is_ready


def test_a_segment_that_is_not_allocated_makes_it_unready_but_refuses_nothing(
    readiness: Readiness,
) -> None:
    readiness.set_unallocated("no room for the segment")
    assert (readiness.is_ready, readiness.why_not) == (False, "no room for the segment")
    assert not readiness.new_refusal_reasons
    readiness.check()
    readiness.set_nearly_full("91% full")
    assert readiness.why_not == "91% full", "the graver one is told"
    readiness.set_nearly_full(None)
    readiness.set_unallocated(None)
    assert (readiness.is_ready, readiness.why_not) == (True, None)


def test_trouble_refuses_every_append_until_it_is_over(readiness: Readiness) -> None:
    readiness.set_unindexed("no room for the index")
    assert readiness.is_unindexed_only
    readiness.set_trouble("not saved")
    assert not readiness.is_unindexed_only
    with pytest.raises(StoreFull, match="no room"):
        readiness.check_appends()
    readiness.set_unindexed(None)
    assert readiness.why_not == "not saved"
    readiness.set_trouble(None)
    assert readiness.is_ready


def test_a_broken_store_stays_broken_and_reports_it_once(
    readiness: Readiness, told: list[str]
) -> None:
    readiness.break_from_thread("sync failed")
    readiness.break_from_thread("write failed")
    readiness.close()
    assert told == ["sync failed"]
    assert readiness.is_broken
    with pytest.raises(StoreBroken, match="sync failed"):
        readiness.check()


def test_new_messages_are_refused_before_the_store_counts_as_broken(
    readiness: Readiness,
) -> None:
    class Reasons(dict[str, str]):
        def __setitem__(self, kind: str, why: str) -> None:
            assert kind in readiness.new_refusal_reasons
            super().__setitem__(kind, why)

    readiness.refusal_reasons = Reasons()
    readiness.break_from_thread("sync failed")
    assert readiness.is_broken
