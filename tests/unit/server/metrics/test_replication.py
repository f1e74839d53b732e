from __future__ import annotations

from collections.abc import Iterable

from rocketpost.codec.bodies.group_status import GroupStatus, MemberState
from rocketpost.server.metrics.exposition import Family, MetricKind
from rocketpost.server.metrics.replication import group_families, master_families, slave_families
from rocketpost.server.replication.status import MasterStatus, ReplicaStatus, SlaveStatus

NOW_MS = 1_700_000_000_000


def samples(families: Iterable[Family]) -> dict[str, float]:
    """Return the values of families by the names and labels of their samples."""
    found = {}
    for family in families:
        assert family.kind is MetricKind.GAUGE
        assert family.help
        name = family.name.removeprefix("rocketpost_")
        for sample in family.samples:
            key = f"{name}{{{sample.labels}}}" if sample.labels else name
            assert key not in found
            found[key] = sample.value
    return found


def replica(address: str, acknowledged: int, *, in_sync: bool) -> ReplicaStatus:
    return ReplicaStatus(address, acknowledged, acknowledged, is_in_sync=in_sync)


def test_a_master_shows_how_far_its_slaves_are_behind() -> None:
    status = MasterStatus([replica("s:1", 900, in_sync=True), replica("s:2", 0, in_sync=False)])
    assert samples(master_families(status, 1000)) == {
        "replicas_in_sync": 1,
        'replica_behind_bytes{replica="s:1"}': 100,
        'replica_behind_bytes{replica="s:2"}': 1000,
    }


def test_a_slave_that_is_ahead_of_the_reading_is_not_behind() -> None:
    status = MasterStatus([replica("s:1", 1001, in_sync=True)])
    assert samples(master_families(status, 1000))['replica_behind_bytes{replica="s:1"}'] == 0


def test_a_master_without_slaves_says_so() -> None:
    assert samples(master_families(MasterStatus(), 1000)) == {"replicas_in_sync": 0}


def test_a_slave_shows_its_connection_and_the_silence_of_its_master() -> None:
    status = SlaveStatus("m:1", is_connected=True, last_read_ms=NOW_MS - 2500)
    assert samples(slave_families(status, now_ms=NOW_MS)) == {
        "follows_master": 1,
        "master_silent_seconds": 2.5,
    }


def test_a_silence_is_never_negative() -> None:
    status = SlaveStatus("m:1", is_connected=True, last_read_ms=NOW_MS + 9)
    assert samples(slave_families(status, now_ms=NOW_MS))["master_silent_seconds"] == 0


def test_a_slave_that_has_heard_nothing_shows_no_silence() -> None:
    assert samples(slave_families(SlaveStatus(), now_ms=NOW_MS)) == {"follows_master": 0}


def test_the_leader_shows_its_group() -> None:
    status = GroupStatus(
        group="broker-a",
        member="a",
        role="LEADER",
        term=7,
        leader="a",
        end=1000,
        committed=900,
        members=[
            MemberState(name="a", address="a:1", has=1000, is_known=True),
            MemberState(name="b", address="b:1", has=900, is_known=True),
            MemberState(name="c", address="c:1", has=1100, is_known=True, is_voter=False),
            MemberState(name="d", address="d:1", problem="cannot connect"),
        ],
    )
    assert samples(group_families(status)) == {
        'group_role{role="leader"}': 1,
        'group_role{role="follower"}': 0,
        'group_role{role="candidate"}': 0,
        "group_term": 7,
        "group_has_leader": 1,
        "group_log_end_bytes": 1000,
        "group_committed_bytes": 900,
        "group_suspect": 0,
        "group_failed": 0,
        'group_member_behind_bytes{member="b",voter="true"}': 100,
        'group_member_behind_bytes{member="c",voter="false"}': 0,
        'group_member_unreachable{member="b",voter="true"}': 0,
        'group_member_unreachable{member="c",voter="false"}': 0,
        'group_member_unreachable{member="d",voter="true"}': 1,
    }


def test_a_member_with_problems_shows_them() -> None:
    status = GroupStatus(
        group="broker-a", member="b", role="CANDIDATE", is_suspect=True, problem="the disk is full"
    )
    found = samples(group_families(status))
    assert found['group_role{role="candidate"}'] == 1
    assert found['group_role{role="leader"}'] == 0
    assert (found["group_has_leader"], found["group_suspect"], found["group_failed"]) == (
        0, 1, 1,
    )  # fmt: skip
    assert not any("member" in name for name in found)
