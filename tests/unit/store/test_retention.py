from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rocketpost.errors import ConfigError
from rocketpost.model.ids import Position
from rocketpost.store.config import StoreConfig
from rocketpost.store.files import DiskUsage, RealFiles
from rocketpost.store.retention import (
    CleanFacts,
    CleanPlan,
    SegmentFact,
    check_levels,
    gather_facts_blocking,
    levels_of,
    plan_cleaning,
)

HOUR = 3_600_000
NOW = 1_700_000_000_000
SIZE = 1000
DISK = 100 * SIZE


def usage(percent: float) -> DiskUsage:
    used = int(DISK * percent / 100)
    return DiskUsage(DISK, used, DISK - used)


def segments(*ages_h: float) -> list[SegmentFact]:
    return [
        SegmentFact(Position(at * SIZE), SIZE, NOW - int(age * HOUR))
        for at, age in enumerate(ages_h)
    ]


def plan(
    facts: Sequence[SegmentFact],
    *,
    percent: float | None = 50,
    queue_percent: float | None = 50,
    hour: int = 12,
    is_rejecting: bool = False,
    is_requested: bool = False,
    **settings: Any,
) -> CleanPlan:
    usages = [None if p is None else usage(p) for p in (percent, queue_percent)]
    return plan_cleaning(
        CleanFacts(facts, usages, NOW, hour, is_rejecting, is_requested), StoreConfig(**settings)
    )


OLD = segments(100, 90, 72, 71.9, 1)


def test_nothing_is_deleted_outside_the_hours() -> None:
    assert plan(OLD) == CleanPlan((), "", None, ratio=0.5)


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"hour": 4}, "deleteWhen"),
        ({"hour": 16, "delete_when": "04;16"}, "deleteWhen"),
        ({"percent": 76}, "76% full"),
        ({"queue_percent": 76}, "76% full"),
        ({"percent": None}, "cannot be read"),
        ({"is_requested": True}, "administrator"),
    ],
)
def test_each_trigger_deletes_expired_segments(how: dict[str, Any], why: str) -> None:
    made = plan(OLD, **how)
    assert made.to_delete == (0, 1000, 2000)
    assert why in made.why_delete
    assert not made.is_rejecting


def test_the_last_segment_is_never_deleted() -> None:
    assert plan(segments(100), hour=4).to_delete == ()
    assert plan([], hour=4).to_delete == ()
    assert plan(segments(100, 100), hour=4).to_delete == (0,)
    assert plan(segments(1, 1), percent=99).to_delete == (0,)


def test_a_young_segment_protects_those_behind_it() -> None:
    assert plan(segments(100, 1, 100, 1), hour=4).to_delete == (0,)


def test_no_more_than_a_batch_is_deleted_at_once() -> None:
    assert len(plan(segments(*[100] * 30), hour=4).to_delete) == 10
    assert len(plan(segments(*[100] * 30), hour=4, clean_batch_count_max=3).to_delete) == 3


def test_force_takes_unexpired_segments_but_only_as_many_as_are_needed() -> None:
    young = segments(*[1] * 20)
    assert plan(young, percent=80).to_delete == ()
    assert plan(young, percent=86).to_delete == (0,)
    assert plan(young, percent=88).to_delete == (0, 1000, 2000)
    assert len(plan(young, percent=99).to_delete) == 10
    assert plan(young, percent=88, clean_forcibly=False).to_delete == ()
    assert plan(young, percent=50, queue_percent=87).to_delete == (0, 1000)
    assert not plan(young, percent=88).is_rejecting


def test_expired_segments_count_towards_what_is_needed() -> None:
    assert plan(segments(100, 100, 1, 1), percent=87).to_delete == (0, 1000)


def test_writes_are_rejected_over_the_third_level_until_under_the_second() -> None:
    young = segments(*[1] * 20)
    is_rejecting = False
    seen = []
    for percent in (89, 91, 89, 86, 85, 89, 91):
        made = plan(young, percent=percent, is_rejecting=is_rejecting)
        is_rejecting = made.is_rejecting
        seen.append(is_rejecting)
    assert seen == [False, True, True, True, False, False, True]
    assert plan(young, percent=91).why_rejecting == (
        "the disk is 91% full, over 90% (diskSpaceWarningLevelRatio); "
        "messages are accepted again below 85%"
    )


@pytest.mark.parametrize(
    ("facts", "before", "setting", "gone", "rejects"),
    [
        (OLD, {"hour": 4}, {"reserved_hours": 95}, 1, False),
        (OLD, {"percent": 60}, {"disk_ratio_max": 55}, 3, False),
        (segments(1, 1, 1), {"percent": 60}, {"disk_ratio_max": 55, "disk_ratio_force": 59}, 1,
         False),
        (segments(1), {"percent": 60}, {"disk_ratio_force": 50, "disk_ratio_warning": 55}, 0, True),
        (OLD, {"hour": 4}, {"clean_batch_count_max": 2}, 2, False),
    ],
)  # fmt: skip
def test_each_setting_decides(
    facts: list[SegmentFact],
    before: dict[str, Any],
    setting: dict[str, int],
    gone: int,
    rejects: bool,
) -> None:
    made = plan(facts, **before, **setting)
    usual = plan(facts, **before)
    assert (len(made.to_delete), made.is_rejecting) == (gone, rejects)
    assert (made.to_delete, made.is_rejecting) != (usual.to_delete, usual.is_rejecting)


def test_writes_are_rejected_even_if_nothing_may_be_deleted() -> None:
    made = plan(segments(1, 1), percent=95, clean_forcibly=False)
    assert made.to_delete == ()
    assert made.is_rejecting


def test_levels_are_clamped_as_rocketmq_does() -> None:
    assert levels_of(StoreConfig()) == (0.75, 0.85, 0.90)
    low = StoreConfig(disk_ratio_max=1, disk_ratio_force=1, disk_ratio_warning=1)
    assert levels_of(low) == (0.10, 0.30, 0.35)
    high = StoreConfig(disk_ratio_max=100, disk_ratio_force=100, disk_ratio_warning=100)
    assert levels_of(high) == (0.95, 0.85, 0.90)


@pytest.mark.parametrize(
    ("change", "percent", "harm"),
    [
        ({"disk_ratio_force": 75}, 76, "deleted before they expire at once"),
        ({"disk_ratio_warning": 80}, 81, "refused at once"),
        ({"disk_ratio_force": 75}, 74, None),
        ({"disk_ratio_warning": 80}, 79, None),
        ({"disk_ratio_force": 85, "disk_ratio_warning": 90}, 95, None),
        ({"reserved_hours": 24}, 95, None),
    ],
)
def test_levels_are_not_lowered_below_what_the_disk_holds(
    change: dict[str, int], percent: int, harm: str | None
) -> None:
    wanted = StoreConfig(**change)  # type: ignore[arg-type]
    if harm is None:
        check_levels(wanted, StoreConfig(), ratio=percent / 100)
        return
    with pytest.raises(ConfigError, match=harm):
        check_levels(wanted, StoreConfig(), ratio=percent / 100)


def test_a_cleaning_level_above_the_forcing_one_does_not_hinder_force() -> None:
    assert plan(segments(1, 1, 1), percent=87, disk_ratio_max=95).to_delete == (0, 1000)


def test_facts_are_read_from_the_disk(tmp_path: Path) -> None:
    class Files(RealFiles):
        def usage(self, path: str) -> DiskUsage:
            if path.endswith("bad"):
                raise OSError(errno.EIO, "planted")
            return usage(42)

    path = tmp_path / "segment"
    path.write_bytes(b"x")
    facts = gather_facts_blocking(
        Files(),
        [(Position(0), SIZE, str(tmp_path / "gone")), (Position(SIZE), SIZE, str(path))],
        paths=[str(tmp_path), "bad"],
        now_ms=NOW,
        hour=3,
        is_rejecting=True,
        is_requested=True,
    )
    assert facts.segments[0] == (0, SIZE, 0)
    assert facts.segments[1].modified_ms == path.stat().st_mtime_ns // 1_000_000
    assert facts[1:] == ([usage(42), None], NOW, 3, True, True, None, None)


def held_plan(held: int, percent: float = 50) -> CleanPlan:
    usages = [usage(percent), usage(50)]
    facts = CleanFacts(OLD, usages, NOW, hour=4, held=Position(held))
    return plan_cleaning(facts, StoreConfig())


@pytest.mark.parametrize(
    ("held", "gone"), [(0, ()), (999, ()), (1000, (0,)), (2500, (0, 1000)), (9000, (0, 1000, 2000))]
)
def test_expired_segments_stay_while_they_are_held(held: int, gone: tuple[int, ...]) -> None:
    assert held_plan(held).to_delete == gone


def test_the_disk_forces_out_what_is_held_and_no_more() -> None:
    assert held_plan(0, percent=76).to_delete == ()
    assert held_plan(0, percent=86).to_delete == (0,)


@pytest.mark.parametrize("percent", [50, 86, 99])
@pytest.mark.parametrize(("needed", "gone"), [(0, ()), (1000, (0,)), (2500, (0, 1000))])
def test_nothing_forces_out_what_is_still_to_be_delivered(
    needed: int, gone: tuple[int, ...], percent: float
) -> None:
    facts = CleanFacts(OLD, [usage(percent)], NOW, hour=4, needed=Position(needed))
    made = plan_cleaning(facts, StoreConfig())
    assert made.to_delete == gone
    assert str(needed) in (made.why_kept or "")


def test_segments_that_need_not_be_deleted_are_not_reported_as_kept() -> None:
    facts = CleanFacts(OLD, [usage(50)], NOW, hour=12, needed=Position(0))
    assert plan_cleaning(facts, StoreConfig()).why_kept is None
