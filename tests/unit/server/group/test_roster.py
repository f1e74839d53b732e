"""Members and their addresses, as the log states them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketpost.codec.record import pack_host
from rocketpost.errors import ReplicationError
from rocketpost.model.members import Configuration, Member
from rocketpost.raft.messages import MemberRecord, Members
from rocketpost.server.group.roster import Roster
from rocketpost.server.settings.group import GroupConfig
from rocketpost.store.config import StoreConfig
from rocketpost.store.member.group_records import draft_members
from rocketpost.store.member.member_store import MemberStore
from rocketpost.testing.clock import FakeClock

PAIR = "n0-h0:1;n1-h1:1"
ADDED = (Member("n0", "h0:1"), Member("n1", "h1:1"), Member("n2", "h2:1", is_voter=False))


def config(peers: str = PAIR) -> GroupConfig:
    return GroupConfig(enabled=True, group="g", peers=peers, node="n0")


def open_store(root: Path) -> MemberStore:
    settings = StoreConfig(root=str(root), segment_bytes=64 * 1024, message_bytes_max=4096)
    return MemberStore.open_blocking(settings, clock=FakeClock())


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MemberStore]:
    member = open_store(tmp_path)
    yield member
    member.close_blocking()


async def test_a_new_group_has_the_members_of_its_settings(store: MemberStore) -> None:
    roster = Roster(config(), store)
    assert roster.addresses == {"n0": "h0:1", "n1": "h1:1"}
    assert roster.records == [MemberRecord(0, Members(frozenset({"n0", "n1"})))]
    await roster.save()
    assert [each.position for each in store.state.configurations] == [0]


async def test_records_of_the_log_count_from_then_on(store: MemberStore) -> None:
    roster = Roster(config(), store)
    draft = draft_members(ADDED, host=pack_host("10.0.0.1", 1), now_ms=1)
    end = store.store.append(draft).end
    store.store.commit()
    data = store.store.view(0, end)
    assert data is not None
    roster.note_bytes(bytes(data), 0, end)
    assert roster.addresses == {"n0": "h0:1", "n1": "h1:1", "n2": "h2:1"}
    assert roster.records[-1] == MemberRecord(
        end, Members(frozenset({"n0", "n1"}), frozenset({"n2"}))
    )
    roster.cut(end - 1)
    assert "n2" not in roster.addresses


async def test_a_log_states_its_members_at_a_start(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    draft = draft_members(ADDED, host=pack_host("10.0.0.1", 1), now_ms=1)
    end = store.store.append(draft).end
    store.store.commit()
    store.store.flush_blocking()
    store.save_members_blocking([Configuration(0, ADDED[:2]), Configuration(end + 500, ADDED[:1])])
    store.close_blocking()
    store = open_store(tmp_path)
    try:
        assert store.state.configurations == (
            Configuration(0, ADDED[:2]),
            Configuration(end, ADDED),
        )
    finally:
        store.close_blocking()


async def test_settings_that_name_other_members_are_reported(
    store: MemberStore, caplog: pytest.LogCaptureFixture
) -> None:
    store.save_members_blocking([Configuration(0, ADDED[:2]), Configuration(7, ADDED)])
    with caplog.at_level(logging.WARNING):
        roster = Roster(config("n0-h0:1;n1-elsewhere:1"), store)
    assert roster.addresses["n1"] == "h1:1", "the log counts"
    assert "dLegerPeers=n0-h0:1;n1-elsewhere:1" in caplog.text


async def test_a_member_of_a_young_group_may_move(store: MemberStore) -> None:
    store.save_members_blocking([Configuration(0, ADDED[:2])])
    assert Roster(config("n0-h0:1;n1-moved:1"), store).addresses["n1"] == "moved:1"


async def test_a_record_needs_all_addresses(store: MemberStore) -> None:
    roster = Roster(config(), store)
    members = Members(frozenset({"n0", "n1"}), frozenset({"n2"}))
    with pytest.raises(ReplicationError, match="address of n2"):
        roster.describe(members)
    roster.expect("n2", "h2:1")
    assert roster.describe(members) == ADDED


async def test_a_member_is_linked_until_its_removal_is_committed(store: MemberStore) -> None:
    roster = Roster(config(), store)
    assert roster.find_linked(0).keys() == {"n0", "n1"}
    assert not roster.is_settled(0)
    roster.note([Configuration(500, ADDED[1:])])
    assert roster.addresses.keys() == {"n1", "n2"}
    assert roster.find_linked(400).keys() == {"n0", "n1", "n2"}
    assert not roster.is_settled(499)
    assert roster.is_settled(500)
    assert roster.find_linked(500).keys() == {"n1", "n2"}
    assert not roster.is_settled(500), "it was asked"
