"""The registry of tables: every file under ``config/`` is declared once, with its own rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketpost.errors import StoreError
from rocketpost.server.settings.broker import BrokerConfig
from rocketpost.server.tables.persistence import AfterFlush, Owner
from rocketpost.server.tables.registry import (
    GROUPS,
    OFFSETS,
    SPECS,
    TOPICS,
    TableContext,
    TableRegistry,
    When,
)
from rocketpost.store.files import RealFiles
from rocketpost.store.layout import Layout
from rocketpost.testing.clock import FakeClock

CONFIG = BrokerConfig()


def opened(root: Path) -> TableRegistry:
    registry = TableRegistry(Layout(str(root)), RealFiles())
    registry.open_blocking(
        TableContext(cluster="C", broker="b", config=CONFIG, clock=FakeClock(), timed=True)
    )
    return registry


def test_the_declarations_are_those_that_were_reviewed() -> None:
    assert [
        f"{spec.file} {spec.owner.name} {spec.when.name} {spec.interval_ms(CONFIG)} "
        f"{'lost' if spec.without else 'needed'}"
        for spec in SPECS
    ] == [
        "topics.json BROKER AT_ONCE 5000 lost",
        "subscriptionGroup.json BROKER AT_ONCE 5000 needed",
        "autoCreatedTopics.json BROKER AT_ONCE 5000 lost",
        "autoCreatedGroups.json BROKER AT_ONCE 5000 lost",
        "brokerOverrides.json BROKER AT_ONCE 5000 needed",
        "consumerOffset.json BROKER IN_ROUNDS_AFTER_FLUSH 5000 needed",
        "delayOffset.json DELAY IN_ROUNDS 10000 lost",
        "masterTimer.json DELAY IN_ROUNDS 10000 lost",
        "messageRequestMode.json REQUEST_MODES AT_ONCE 10000 needed",
        "consumerOrderInfo.json ORDER IN_ROUNDS 10000 needed",
        "consumerFilter.json GROUP_FILTERS IN_ROUNDS 10000 lost",
        "namedFilters.json NAMED_FILTERS AT_ONCE 10000 needed",
        "auth.json ACCESS AT_ONCE 10000 needed",
    ]


def test_no_file_is_declared_twice() -> None:
    assert len({spec.file for spec in SPECS}) == len(SPECS)


async def test_every_open_table_is_saved_and_read_back(tmp_path: Path) -> None:
    registry = opened(tmp_path)
    assert registry.is_bare
    registry[OFFSETS].commit("T", "G", 0, 7)
    flushes: list[None] = []
    persistence = registry.persistence(CONFIG, flush_blocking=lambda: flushes.append(None))
    await persistence.close()
    assert len(flushes) == 1
    files = {path.name for path in (tmp_path / "config").iterdir() if path.is_file()}
    assert files == {each.spec.file for each in registry}
    again = opened(tmp_path)
    assert not again.is_bare
    assert again.repairs == ()
    assert again[OFFSETS].query("T", "G", 0) == 7


def test_saving_follows_the_declaration(tmp_path: Path) -> None:
    registry = opened(tmp_path)
    assert [each.spec for each in registry] == [spec for spec in SPECS if spec.make is not None]
    saved = registry.persistence(CONFIG, flush_blocking=lambda: None)._tables
    for each, (_, file, at_once, interval_s, owner) in zip(registry, saved, strict=True):
        assert at_once == (each.spec.when is When.AT_ONCE)
        assert isinstance(file, AfterFlush) == (each.spec is OFFSETS)
        assert interval_s == each.spec.interval_ms(CONFIG) / 1000
        assert owner is each.spec.owner
    assert {each.spec.owner for each in registry} == set(Owner)


async def test_a_lost_table_is_noted_or_refused(tmp_path: Path) -> None:
    await opened(tmp_path).persistence(CONFIG, flush_blocking=lambda: None).close()
    (tmp_path / "config" / TOPICS.file).unlink()
    (repair,) = opened(tmp_path).repairs
    assert TOPICS.file in repair
    assert (TOPICS.without or "") in repair
    (tmp_path / "config" / GROUPS.file).unlink()
    with pytest.raises(StoreError, match=GROUPS.file):
        opened(tmp_path)
