"""The contents of a broker's registration, without sockets."""

from __future__ import annotations

import pytest

from rocketpost.codec.bodies.registration import decode_registration
from rocketpost.errors import ConfigError
from rocketpost.model.topic import DataVersion, TopicConfig
from rocketpost.server.name_servers.registration import Announcement, _encode, parse_name_servers


def announcement(permission: int = 6) -> Announcement:
    return Announcement(
        cluster="C",
        name="broker-a",
        address="127.0.0.1:10911",
        data_version=DataVersion(3, 0, 7),
        topics={
            "TopicA": TopicConfig(topic_name="TopicA"),
            "TBW102": TopicConfig(topic_name="TBW102", perm=7),
        },
        permission=permission,
    )


def test_addresses_of_name_servers() -> None:
    assert parse_name_servers("") == []
    assert parse_name_servers(" a:1; b:2 ;;a:1") == ["a:1", "b:2"]
    with pytest.raises(ConfigError, match=r"namesrvAddr.*'b'"):
        parse_name_servers("a:1;b")


def test_every_topic_is_announced() -> None:
    got = decode_registration(_encode(announcement()), version=479, compressed=False)
    assert got.table.data_version == DataVersion(3, 0, 7)
    perms = {name: config.perm for name, config in got.table.topic_config_table.items()}
    assert perms == {"TopicA": 6, "TBW102": 7}


def test_the_permission_of_the_broker_limits_every_topic() -> None:
    data = _encode(announcement(permission=4))
    table = decode_registration(data, version=479, compressed=False).table
    assert {config.perm for config in table.topic_config_table.values()} == {4}
