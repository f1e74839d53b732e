"""Captured Apache peers talk to our name server, which must answer as Apache's did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import pytest

from rocketpost.codec.bodies.registration import (
    body_crc,
    decode_registration,
    encode_registration,
)
from rocketpost.codec.command import Command, decode_command
from rocketpost.codec.frames import Frame
from rocketpost.codec.headers.namesrv import RegisterBroker

from .test_handlers import Server

EXCHANGES = Path(__file__).parents[3] / "golden" / "exchanges"


class Exchange(NamedTuple):
    request: Command
    response: Command


def captured(name: str) -> Exchange:
    stored = json.loads((EXCHANGES / f"{name}.json").read_text(encoding="utf-8"))
    return Exchange(*(decode_command(_frame(stored[part])) for part in ("request", "response")))


def _frame(part: dict[str, str]) -> Frame:
    header, body = (
        part[name].encode() if name in part else bytes.fromhex(part[f"{name}_hex"])
        for name in ("header", "body")
    )
    return Frame(int(part["encoding"]), header, body)


def replay(server: Server, request: Command) -> Command:
    return server.ask(request.code, request.fields, bytes(request.body), version=request.version)


@pytest.fixture
def server() -> Server:
    """A name server with which an Apache broker has registered."""
    server = Server()
    answer = replay(server, captured("broker-5.3.3-json/103-register-broker-r0").request)
    assert answer.code == 0
    return server


def test_the_registration_of_an_apache_broker_is_written_alike() -> None:
    request = captured("broker-5.3.3-json/103-register-broker-r0").request
    body = bytes(request.body)
    assert request.read(RegisterBroker).body_crc32 == body_crc(body)
    registration = decode_registration(body, version=request.version, compressed=False)
    assert len(registration.table.topic_config_table) > 10
    assert encode_registration(registration) == body


@pytest.mark.parametrize("peer", ["broker-5.3.3-json", "client-5.3.3-json", "client-4.9.8-json"])
def test_cluster_info(server: Server, peer: str) -> None:
    exchange = captured(f"{peer}/106-cluster-info-r0")
    assert replay(server, exchange.request).body == exchange.response.body


def test_the_route_of_a_fresh_broker(server: Server) -> None:
    exchange = captured("client-5.3.3-json/105-route-r0")
    assert replay(server, exchange.request).body == exchange.response.body


@pytest.mark.parametrize(
    "peer", ["client-4.9.8-json", "client-4.9.8-rocketmq", "client-5.3.3-rocketmq"]
)
def test_the_route_after_write_permission_was_taken_and_given_back(
    server: Server, peer: str
) -> None:
    for name in ("205-wipe-write-perm-r0", "327-add-write-perm-r0"):
        done = replay(server, captured(f"client-5.3.3-json/{name}").request)
        assert (done.code, len(done.fields)) == (0, 1)
    exchange = captured(f"{peer}/105-route-r0")
    assert replay(server, exchange.request).body == exchange.response.body


@pytest.mark.parametrize("peer", ["client-5.3.3-json", "client-5.3.3-rocketmq"])
def test_the_route_of_an_unknown_topic(server: Server, peer: str) -> None:
    exchange = captured(f"{peer}/105-route-r17")
    answer = replay(server, exchange.request)
    assert answer.code == exchange.response.code
    assert (exchange.response.remark or "").partition("\n")[0] in str(answer.remark)


def test_goodbye(server: Server) -> None:
    assert replay(server, captured("broker-5.3.3-json/104-unregister-broker-r0").request).code == 0
    route = captured("client-5.3.3-json/105-route-r0").request
    assert replay(server, route).code == 17


def test_settings_that_apaches_tool_shows_are_shown() -> None:
    exchange = captured("client-5.3.3-json/319-get-namesrv-config-r0")
    ours = bytes(replay(Server(), exchange.request).body).splitlines()
    theirs = bytes(exchange.response.body).splitlines()
    for line in (b"scanNotActiveBrokerInterval=5000", b"waitSecondsForService=45"):
        assert line in ours
        assert line in theirs
