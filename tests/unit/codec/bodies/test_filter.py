"""``consumerFilter.json`` of a Java broker."""

from __future__ import annotations

import pytest

from rocketpost.codec.bodies.filter import decode_filters
from rocketpost.errors import RemoteProtocolError

JAVA = b"""{
\t"filterDataByTopic":{
\t\t"T":{
\t\t\t"groupFilterData":{
\t\t\t\t"G":{
\t\t\t\t\t"bloomFilterData":{"bitNum":112,"bitPos":[1,2,3]},
\t\t\t\t\t"bornTime":1, "clientVersion":2, "consumerGroup":"G", "dead":false, "deadTime":0,
\t\t\t\t\t"expression":"a > 1", "expressionType":"SQL92", "topic":"T"
\t\t\t\t}
\t\t\t},
\t\t\t"topic":"T"
\t\t}
\t}
}"""


def test_the_file_of_a_java_broker_is_read() -> None:
    found = decode_filters(JAVA).filter_data_by_topic["T"].group_filter_data["G"]
    assert (found.expression, found.client_version, found.dead_time) == ("a > 1", 2, 0)
    assert found.bloom_filter_data is not None
    assert found.bloom_filter_data.bit_num == 112


def test_anything_else_is_refused() -> None:
    with pytest.raises(RemoteProtocolError):
        decode_filters(b"[]")
