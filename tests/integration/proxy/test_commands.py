"""The commands that open the gRPC port, and messages over a kill -9."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from rocketpost.cli import rocketpost
from rocketpost.proxy.wire import messages
from rocketpost.proxy.wire.enums import Code
from rocketpost.server.main import mqbroker
from rocketpost.testing.process import ServerProcess, free_port

from .calls import SMALL, Client

pytestmark = pytest.mark.slow

UP = ("-c", "from rocketpost.cli import rocketpost; rocketpost()", "up")
BROKER = ("-m", "rocketpost.server", "mqbroker")


async def _topics(port: int, name: str) -> int:
    request = messages.QueryRouteRequest()
    request.topic.name = name
    request.endpoints.addresses.add(host="127.0.0.1", port=port)
    async with Client(port) as client:
        answer = await client.call("QueryRoute", request)
    assert answer.status.code in (Code.OK, Code.TOPIC_NOT_FOUND)
    return len(answer.message_queues)


async def test_up_serves_grpc_clients(tmp_path: Path) -> None:
    port = free_port()
    arguments = ["--data", str(tmp_path), "--namesrv-port", "0", "--broker-port", "0"]
    arguments += ["--grpc-port", str(port)]
    ready = rf"Clients of RocketMQ 5 \(gRPC\) connect to 127.0.0.1:{port}"
    with ServerProcess(arguments, ready=ready, program=UP):
        assert await _topics(port, "nothing") == 0


async def test_a_broker_with_the_settings_of_a_file_keeps_messages_and_handles_over_a_kill(
    tmp_path: Path,
) -> None:
    port = free_port()
    settings = tmp_path / "broker.conf"
    values = {
        **SMALL,
        "brokerName": "broker-a",
        "listenPort": "0",
        "brokerIP1": "127.0.0.1",
        "storePathRootDir": str(tmp_path / "store"),
        "flushDiskType": "SYNC_FLUSH",
    }
    settings.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    proxy = tmp_path / "rmq-proxy.json"
    proxy.write_text(json.dumps({"grpcServerPort": port, "enableTopicMessageTypeCheck": False}))
    arguments = ["-c", str(settings), "--enable-proxy", "-pc", str(proxy)]
    process = ServerProcess(arguments, ready=rf"gRPC port {port}", program=BROKER)
    topic = "%RETRY%group"  # the one that a consumer's start creates
    with process:
        async with Client(port) as client:
            await client.consume("group", "topic")
            sent = [await client.send(topic, b"%d" % number) for number in range(4)]
            first, *rest = await client.receive(topic, "other")
            assert len(rest) == 3
        process.kill()
        process.start()
        async with Client(port) as client:
            await client.consume("other", topic)
            assert await client.ack("other", first) == Code.OK
            for received in rest:
                assert await client.ack("other", received) == Code.OK
            assert await client.receive(topic, "other") == []
            again = await client.receive(topic, "third")
            ids = {each.system_properties.message_id for each in again}
            assert ids == {entry.message_id for entry in sent}


def test_options_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    proxy = tmp_path / "rmq-proxy.json"
    proxy.write_text('{"grpcPort": 1}')
    for arguments, word in (
        (["--enable-proxy", "--brokers", "2"], "mqproxy"),
        (["-pc", str(proxy)], "--enable-proxy"),
        (["--enable-proxy", "-pc", str(proxy)], "unknown setting: grpcPort"),
        (["--enable-proxy", "-pc", str(tmp_path / "none")], "cannot read"),
    ):
        result = CliRunner().invoke(mqbroker, arguments)
        assert result.exit_code == 2
        assert word in result.output
    arguments = ["up", "--data", str(tmp_path), "--brokers", "2", "--grpc-port", "0"]
    result = CliRunner().invoke(rocketpost, arguments)
    assert result.exit_code == 2
    assert "--grpc-port" in result.output
