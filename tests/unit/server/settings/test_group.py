"""Settings of a group that elects its leader."""

from __future__ import annotations

import pytest

from rocketpost.errors import ConfigError
from rocketpost.server.settings.broker import broker_settings, setting_notes
from rocketpost.server.settings.group import Peer, group_settings
from rocketpost.store.config import FlushMode

PEERS = "n0-10.0.0.1:40911; n1-db-2.example:40911;n2-[::1]:40912;"
VALUES = {
    "enableDLegerCommitLog": "true",
    "dLegerGroup": "broker-a",
    "dLegerPeers": PEERS,
    "dLegerSelfId": "n1",
}


def test_rocketmqs_keys_name_the_members() -> None:
    config = group_settings(VALUES)
    assert config is not None
    assert list(config.members) == ["n0", "n1", "n2"]
    assert config.own == Peer("n1", "db-2.example", 40911)
    assert {node: peer.address for node, peer in config.others.items()} == {
        "n0": "10.0.0.1:40911",
        "n2": "[::1]:40912",
    }
    assert config.follower_id == 2
    assert (config.group, config.preferred) == ("broker-a", "")


def test_without_the_switch_nothing_else_counts() -> None:
    assert group_settings({"dLegerPeers": "nonsense"}) is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"dLegerGroup": ""}, "dLegerGroup='' must name the group"),
        ({"dLegerGroup": "g" * 64}, "at most 63 characters"),
        ({"dLegerPeers": " ; "}, "dLegerPeers must name all members, such as n0-"),
        ({"dLegerPeers": "n0-host"}, "'n0-host', which is not id-host:port"),
        ({"dLegerPeers": "n0-host:0"}, "is not id-host:port"),
        ({"dLegerPeers": "n0-host:65536"}, "is not id-host:port"),
        ({"dLegerPeers": "zero-host:1"}, "the id 'zero': use a letter and a number"),
        ({"dLegerPeers": "n0-a:1;n0-b:1"}, "n0 and n0: give each member another number"),
        ({"dLegerPeers": "n0-a:1;m0-b:1"}, "n0 and m0: give each member another number"),
        ({"dLegerPeers": "n0-a:1;n1-a:1"}, "address a:1 twice, for n0 and n1"),
        ({"dLegerPeers": f"n0-{'a' * 130}:1"}, "long address"),
        ({"dLegerPeers": "n0-a..b:1"}, "names n0, but 'a..b:1' has no possible host name"),
        ({"dLegerPeers": ";".join(f"n{n}-a{n}:1" for n in range(10))}, "10 members; a group has"),
        ({"dLegerSelfId": ""}, "dLegerSelfId='' must be one of the members.*n0, n1, n2"),
        ({"dLegerSelfId": "n3"}, "dLegerSelfId='n3'"),
        ({"preferredLeaderId": "n3"}, "preferredLeaderId='n3'"),
        ({"enableDLegerCommitLog": "perhaps"}, "enableDLegerCommitLog"),
    ],
)
def test_a_mistake_is_named_with_its_key(change: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        group_settings(VALUES | change)


def test_a_member_flushes_before_it_acknowledges_unless_told_otherwise() -> None:
    assert broker_settings(VALUES)[1].flush_mode is FlushMode.SYNC_FLUSH
    later = VALUES | {"flushDiskType": "ASYNC_FLUSH"}
    assert broker_settings(later)[1].flush_mode is FlushMode.ASYNC_FLUSH
    alone = {"dLegerGroup": "g"}
    assert broker_settings(alone)[1].flush_mode is FlushMode.ASYNC_FLUSH


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"brokerRole": "SLAVE"}, "brokerRole=SLAVE and enableDLegerCommitLog=true exclude"),
        ({"brokerRole": "SYNC_MASTER"}, "every message waits for most of them; remove brokerRole"),
        ({"enableSlaveActingMaster": "true"}, "the members elect a leader instead"),
        ({"haMasterAddress": "10.0.0.1:10912"}, "the members are listed in dLegerPeers"),
        ({"lockInStrictMode": "true"}, "every member of a group knows all locks"),
    ],
)
def test_other_kinds_of_replication_are_refused(change: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        broker_settings(VALUES | change)


def test_harmless_values_are_accepted() -> None:
    harmless = {"brokerRole": "ASYNC_MASTER", "lockInStrictMode": "false"}
    assert broker_settings(VALUES | harmless)


@pytest.mark.parametrize(
    ("change", "note"),
    [
        ({"flushDiskType": "ASYNC_FLUSH"}, "power cut of all of them can lose it"),
        ({"dLegerPeers": "n0-a:1;n1-b:1"}, "2 members: the loss of one stops the group"),
        ({"dLegerPeers": "n0-a:1;n1-b:1;n2-c:1;n3-d:1"}, "no more losses than 3"),
        ({"enableDLegerCommitLog": "false"}, "dLegerSelfId has no effect without"),
    ],
)
def test_what_a_reader_may_not_expect_is_said(change: dict[str, str], note: str) -> None:
    assert any(note in each for each in setting_notes(VALUES | change))
    assert not setting_notes(VALUES)
