"""A broker under a low limit of open files: it takes fewer connections and loses nothing."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from rocketpost.codec.codes import ResponseCode
from rocketpost.errors import ConnectionLost
from rocketpost.testing.link import BrokerLink, SendPart
from rocketpost.testing.process import ServerProcess, free_port

pytestmark = pytest.mark.slow

LIMIT = 256
QUEUES = 200
PROGRAM = (
    "-c",
    f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({LIMIT}, {LIMIT}))\n"
    "from rocketpost.server.main import mqbroker\nmqbroker()",
)


async def test_many_connections_and_queues_do_not_stop_the_store(tmp_path: Path) -> None:
    port = free_port()
    config = tmp_path / "broker.conf"
    config.write_text(
        f"listenPort={port}\nbindAddress=127.0.0.1\nbrokerIP1=127.0.0.1\nbrokerName=broker-a\n"
        f"storePathRootDir={tmp_path / 'store'}\nmappedFileSizeCommitLog=262144\n"
        "maxMessageSize=65536\nmaxHashSlotNum=100\nmaxIndexNum=400\n"
        "flushConsumeQueueThoroughInterval=50\nflushIntervalConsumeQueue=50\n"
    )
    with ServerProcess(["-c", str(config)], ready="boot success", program=PROGRAM) as server:
        async with contextlib.AsyncExitStack() as stack:
            links = []
            for _ in range(LIMIT + 50):
                with contextlib.suppress(ConnectionLost):
                    link = await BrokerLink.connect(f"127.0.0.1:{port}")
                    stack.callback(link.close)
                    links.append(link)
            first = links[0]
            await first.create_topic("T", QUEUES)
            for number in range(3 * QUEUES):
                sent = await first.send("T", number % QUEUES, [SendPart(bytes(4000), {})])
                assert sent.code == ResponseCode.SUCCESS, sent.remark
            for queue_id in range(QUEUES):
                assert (await first.pull("T", queue_id, 0)).code == ResponseCode.SUCCESS
        lines = list(server.output)
        assert server.stop() == 0
    assert not [line for line in lines if "CRITICAL" in line or "Traceback" in line]
    assert [line for line in lines if "connection refused" in line]
