"""Headers of name server requests, as Apache peers write them."""

from __future__ import annotations

import pytest

from rocketpost.codec.codes import RequestCode
from rocketpost.codec.command import Command, decode_command, encode_command, to_fields
from rocketpost.codec.faults import InvalidParameter
from rocketpost.codec.frames import FrameDecoder
from rocketpost.codec.headers.namesrv import (
    GetRoute,
    RegisterBroker,
    RegisterBrokerResponse,
    UnregisterBroker,
)


def received(code: int, fields: dict[str, str], encoding: int = 0) -> Command:
    sent = encode_command(code, opaque=1, fields=fields, encoding=encoding)
    (frame,) = FrameDecoder().feed(sent)
    return decode_command(frame)


@pytest.mark.parametrize("encoding", [0, 1])
def test_a_registration_of_a_current_broker(encoding: int) -> None:
    fields = {
        "brokerId": "0",
        "bodyCrc32": "7",
        "clusterName": "DefaultCluster",
        "brokerAddr": "10.0.0.1:10911",
        "haServerAddr": "10.0.0.1:10912",
        "compressed": "false",
        "enableActingMaster": "false",
        "brokerName": "broker-a",
        "__ZONE_NAME": "z",
    }
    header = received(RequestCode.REGISTER_BROKER, fields, encoding).read(RegisterBroker)
    assert header == RegisterBroker(
        broker_name="broker-a",
        broker_addr="10.0.0.1:10911",
        cluster_name="DefaultCluster",
        ha_server_addr="10.0.0.1:10912",
        broker_id=0,
        enable_acting_master=False,
        body_crc32=7,
        zone_name="z",
    )
    assert to_fields(header) == fields


def test_an_old_broker_says_nothing_of_acting_masters() -> None:
    fields = {"brokerId": "1", "clusterName": "c", "brokerAddr": "a:1", "brokerName": "b"}
    header = received(RequestCode.REGISTER_BROKER, fields).read(RegisterBroker)
    assert header.enable_acting_master is None
    assert header.heartbeat_timeout_millis is None


def test_a_missing_name_is_named() -> None:
    with pytest.raises(InvalidParameter, match="brokerName"):
        received(RequestCode.UNREGISTER_BROKER, {"brokerId": "0"}).read(UnregisterBroker)


def test_a_route_request_with_its_options() -> None:
    fields = {
        "topic": "T",
        "acceptStandardJsonOnly": "true",
        "__ZONE_MODE": "True",
        "__ZONE_NAME": "z",
    }
    header = received(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields).read(GetRoute)
    assert header.accept_standard_json_only is True
    assert (header.zone_mode, header.zone_name) == ("True", "z")


def test_the_response_to_a_master_is_empty() -> None:
    assert to_fields(RegisterBrokerResponse()) == {}
