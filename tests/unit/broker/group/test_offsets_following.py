"""Offsets between a master and its slaves: changed rows, marked commits, takeovers."""

from __future__ import annotations

import random

import pytest

from rocketpost.broker.group import offsets as module
from rocketpost.broker.group.offsets import MarkedCommit, OffsetTable
from rocketpost.codec.bodies.offset import OffsetTableBody, decode_offset_table
from rocketpost.model.topic import DataVersion
from rocketpost.testing.clock import FakeClock

MIB = 1024 * 1024


def table() -> OffsetTable:
    return OffsetTable(clock=FakeClock())


def follow(slave: OffsetTable, master: OffsetTable, known: int, *, bytes_max: int = MIB) -> int:
    """Have a slave take over what changed; return the revision that it knows then."""
    changes = master.changes_since(known, bytes_max=bytes_max)
    slave.follow(decode_offset_table(changes.text), is_whole=changes.is_whole)
    return changes.revision


def test_a_slave_gets_the_whole_table_and_then_changed_rows() -> None:
    master, slave = table(), table()
    master.commit("T", "G", 0, 5)
    master.commit("T", "H", 0, 6)
    slave.commit("Old", "G", 0, 1)
    known = follow(slave, master, 0)
    assert slave.rows == [("T", "G"), ("T", "H")]
    assert slave.version == master.version
    master.commit("T", "H", 1, 7)
    changes = master.changes_since(known, bytes_max=MIB)
    assert decode_offset_table(changes.text).offset_table == {"T@H": {0: 6, 1: 7}}
    assert not changes.is_whole
    known = follow(slave, master, known)
    assert slave.body() == master.body()
    assert not decode_offset_table(master.changes_since(known, bytes_max=MIB).text).offset_table


def test_forgotten_rows_are_forgotten_by_slaves() -> None:
    master, slave = table(), table()
    for topic in ("T", "U"):
        master.commit(topic, "G", 0, 5)
    known = follow(slave, master, 0)
    master.forget_topic("T")
    known = follow(slave, master, known)
    assert slave.rows == [("U", "G")]
    master.commit("T", "G", 0, 1)
    follow(slave, master, known)
    assert slave.query("T", "G", 0) == 1


def test_a_slave_that_knows_too_little_of_forgotten_rows_gets_the_whole_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "FORGOTTEN_MAX", 4)
    master, slave = table(), table()
    for number in range(9):
        master.commit(f"T{number}", "G", 0, 5)
    known = follow(slave, master, 0)
    for number in range(6):
        master.forget_topic(f"T{number}")
    assert master.changes_since(known, bytes_max=MIB).is_whole
    follow(slave, master, known)
    assert slave.body() == master.body()


def test_a_large_table_comes_in_parts() -> None:
    master, slave = table(), table()
    for number in range(50):
        master.commit(f"T{number}", "G", 0, number)
    known, parts, is_cut = 0, 0, True
    while is_cut:
        changes = master.changes_since(known, bytes_max=100, is_partial=parts > 0)
        slave.follow(decode_offset_table(changes.text), is_whole=changes.is_whole)
        known, is_cut, parts = changes.revision, changes.is_cut, parts + 1
    assert parts > 5
    assert slave.body() == master.body()


def test_resets_follow() -> None:
    master, slave = table(), table()
    master.commit("T", "G", 0, 5)
    master.reset("T", "G", 0, 2)
    known = follow(slave, master, 0)
    assert not slave.commit("T", "G", 0, 9)
    assert master.take_reset("T", "G", 0) == 2
    follow(slave, master, known)
    assert slave.commit("T", "G", 0, 9)


def test_marked_commits_stay_until_the_master_has_them() -> None:
    slave = table()
    slave.commit("T", "G", 0, 1)
    slave.begin_marking()
    slave.commit("T", "G", 0, 7)
    slave.commit("T", "G", 0, 8)
    assert slave.marks == [MarkedCommit("T", "G", 0, 8)]
    older = OffsetTableBody(offset_table={"T@G": {0: 5, 1: 2}})
    slave.follow(older, is_whole=True)
    assert slave.row("T", "G") == {0: 8, 1: 2}
    slave.follow(OffsetTableBody(), is_whole=True)
    assert slave.row("T", "G") == {0: 8}
    slave.unmark(MarkedCommit("T", "G", 0, 7))  # a later one was made since
    assert slave.marks
    slave.unmark(MarkedCommit("T", "G", 0, 8))
    slave.follow(older, is_whole=True)
    assert slave.row("T", "G") == {0: 5, 1: 2}


def test_an_offset_of_the_master_that_is_ahead_wins_over_a_mark() -> None:
    slave = table()
    slave.begin_marking()
    slave.commit("T", "G", 0, 7)
    slave.follow(OffsetTableBody(offset_table={"T@G": {0: 9}}), is_whole=True)
    assert slave.query("T", "G", 0) == 9


def test_marks_are_saved_and_end_with_a_promotion() -> None:
    slave = table()
    slave.begin_marking()
    slave.commit("T", "G", 3, 7)
    again = table()
    again.load(slave.to_json())
    assert again.marks == slave.marks == [MarkedCommit("T", "G", 3, 7)]
    assert b"toMasterTable" not in again.body()
    again.end_marking()
    assert not again.marks
    assert again.query("T", "G", 3) == 7
    again.commit("T", "G", 3, 8)
    assert not again.marks


def test_a_takeover_counts_as_a_change() -> None:
    slave = table()
    before = slave.revision
    body = OffsetTableBody(data_version=DataVersion(3, 0, 4))
    slave.follow(body, is_whole=True)
    assert slave.revision > before
    before = slave.revision
    slave.follow(body, is_whole=True)
    assert slave.revision == before


@pytest.mark.parametrize("seed", range(20))
def test_a_slave_that_follows_any_changes_has_the_same_rows(seed: int) -> None:
    chance = random.Random(seed)
    master, slave, known, is_partial = table(), table(), 0, False
    for _ in range(300):
        topic, group = f"T{chance.randrange(4)}", f"G{chance.randrange(4)}"
        action = chance.randrange(10)
        if action < 6:
            master.commit(topic, group, chance.randrange(3), chance.randrange(100))
        elif action == 6:
            master.forget_topic(topic)
        elif action == 7:
            master.forget_group(group)
        elif action == 8:
            master.clone(group, f"G{chance.randrange(4)}", topic)
        else:
            changes = master.changes_since(
                known, bytes_max=chance.choice([30, MIB]), is_partial=is_partial
            )
            slave.follow(decode_offset_table(changes.text), is_whole=changes.is_whole)
            known, is_partial = changes.revision, changes.is_cut
    while is_partial or known != master.revision:
        changes = master.changes_since(known, bytes_max=MIB, is_partial=is_partial)
        slave.follow(decode_offset_table(changes.text), is_whole=changes.is_whole)
        known, is_partial = changes.revision, changes.is_cut
    theirs = {row: master.row(*row) for row in master.rows}
    assert {row: slave.row(*row) for row in slave.rows} == theirs
