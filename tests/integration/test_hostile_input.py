"""Bad input over real sockets: it is answered, or its connection is closed and the log names it.

After every attack the servers live, connections made before it still work, and neither memory nor
open files have grown.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.command import Command, decode_command, encode_command
from rocketpost.codec.frames import FRAME_BYTES_MAX, FrameDecoder
from rocketpost.testing import Cluster, ServerProcess

pytestmark = pytest.mark.slow

SECONDS = 20.0
GROWTH_BYTES_MAX = 96 * 1024 * 1024
CODE = RequestCode
MIB = 1024 * 1024


class Peer:
    """One connection to a server, blocking."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=SECONDS)
        self._decoder = FrameDecoder()
        self._received: list[Command] = []
        self._opaque = 0
        self.name = "{}:{}".format(*self._socket.getsockname())

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        """Send, even if the server hangs up meanwhile."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(data)

    def send_what_fits(self, data: bytes, *, patience: float = 1.0) -> int:
        """Send until the server has not taken anything for a while; return how much it took."""
        self._socket.setblocking(False)
        sent = 0
        try:
            while sent < len(data) and select.select([], [self._socket], [], patience)[1]:
                sent += self._socket.send(data[sent : sent + 256 * 1024])
        except (BrokenPipeError, ConnectionResetError):
            pass
        finally:
            self._socket.settimeout(SECONDS)
        return sent

    def ask(self, code: int, fields: Mapping[str, str] | None = None, body: bytes = b"") -> Command:
        """Send a request and return its answer."""
        self._opaque += 1
        self.send(frame(code, fields, body, opaque=self._opaque))
        answer = self.next()
        assert answer is not None
        assert answer.opaque == self._opaque
        return answer

    def next(self) -> Command | None:
        """Return the next answer; None when the server has closed the connection."""
        while not self._received:
            try:
                data = self._socket.recv(1 << 20)
            except ConnectionResetError:
                return None
            if not data:
                return None
            commands = map(decode_command, self._decoder.feed(data))
            self._received += [command for command in commands if command.is_response]
        return self._received.pop(0)


class Victim(NamedTuple):
    """A server under attack."""

    process: ServerProcess
    port: int
    harmless: int
    """A request that it always answers."""
    old: Peer
    """A well-behaved client that was there before."""

    @property
    def files(self) -> int:
        """How many files it has open."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def peer(self) -> Peer:
        """Connect."""
        return Peer(self.port)

    def wait_for_log(self, text: str) -> None:
        """Return once a line of its log has ``text``."""
        wait_until(lambda: any(text in line for line in list(self.process.output)), text)


def frame(
    code: int,
    fields: Mapping[str, str] | None = None,
    body: bytes = b"",
    *,
    opaque: int = 1,
    flag: int = 0,
) -> bytes:
    return (
        encode_command(code, opaque=opaque, flag=flag, fields=fields, body_bytes=len(body)) + body
    )


def wait_until(condition: object, what: str = "") -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("hostile")) as cluster:
        yield cluster


@pytest.fixture(scope="module", params=["broker", "namesrv"])
def server(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Victim]:
    if request.param == "broker":
        port, process = int(cluster.broker_addresses[0].rpartition(":")[2]), cluster.brokers[0]
        harmless = CODE.GET_BROKER_CONFIG
    else:
        port, process = cluster.name_server_ports[0], cluster.name_servers[0]
        harmless = CODE.GET_NAMESRV_CONFIG
    with Peer(port) as old:
        assert old.ask(harmless).code == 0
        yield Victim(process, port, harmless, old)


@pytest.fixture
def victim(server: Victim) -> Iterator[Victim]:
    files, memory = server.files, server.process.memory_bytes()
    yield server
    assert server.process.is_running
    assert server.old.ask(server.harmless).code == 0
    with server.peer() as newcomer:
        assert newcomer.ask(server.harmless).code == 0
    wait_until(lambda: server.files <= files + 8, "files stay open")
    wait_until(lambda: server.process.memory_bytes() < memory + GROWTH_BYTES_MAX, "memory grew")
    assert not [line for line in list(server.process.output) if "Traceback" in line]


@pytest.fixture
def broker(victim: Victim) -> Victim:
    if victim.harmless != CODE.GET_BROKER_CONFIG:
        pytest.skip("a broker's request")
    return victim


@pytest.fixture
def namesrv(victim: Victim) -> Victim:
    if victim.harmless != CODE.GET_NAMESRV_CONFIG:
        pytest.skip("a name server's request")
    return victim


GARBAGE = {
    "zeros": bytes(64),
    "ones": b"\xff" * 64,
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    "ssh": b"SSH-2.0-OpenSSH_9.6\r\n",
    "length 2^31-1": struct.pack(">iI", 2**31 - 1, 16),
    "length -1": struct.pack(">iI", -1, 16),
    "header longer than the frame": struct.pack(">iI", 12, 100),
    "header of 16 MiB": struct.pack(">iI", 8, 0xFFFFFF),
    "unknown encoding": struct.pack(">iI", 8, 7 << 24 | 4) + b"abcd",
    "no JSON": struct.pack(">iI", 8, 4) + b"abcd",
    "JSON of another kind": struct.pack(">iI", 6, 2) + b"[]",
    "code beyond 32 bits": struct.pack(">iI", 4 + 19, 19) + b'{"code":4294967296}',
    "deep JSON": struct.pack(">iI", 4 + 200_009, 200_009) + b'{"code":1,"x":'[:9] + b"[" * 200_000,
    "binary header cut short": struct.pack(">iI", 8, 1 << 24 | 4) + b"\0\x0a\0\0",
    "random": random.Random(7).randbytes(4096),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_closes_the_connection_and_is_logged(victim: Victim, name: str) -> None:
    with victim.peer() as peer:
        peer.send(GARBAGE[name])
        assert peer.next() is None
        victim.wait_for_log(f"connection dropped: peer={peer.name} reason=")


def test_good_requests_before_the_garbage_are_answered(victim: Victim) -> None:
    with victim.peer() as peer:
        assert peer.ask(victim.harmless).code == 0
        peer.send(b"\xff" * 100)
        assert peer.next() is None


def test_unfinished_frames_harm_nobody(victim: Victim) -> None:
    whole = frame(victim.harmless, body=bytes(1000))
    for cut in (1, 3, 7, 8, 9, 50, len(whole) - 1):
        with victim.peer() as peer:
            peer.send(whole[:cut])
    with victim.peer() as peer:
        for at in range(len(whole)):
            peer.send(whole[at : at + 1])
        assert peer.next() is not None


def test_hundreds_of_peers_that_never_finish(victim: Victim) -> None:
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(victim.peer()) for _ in range(300)]
        for peer in peers:
            peer.send(struct.pack(">iI", FRAME_BYTES_MAX - 4, 100) + bytes(1000))
        began = time.monotonic()
        assert victim.old.ask(victim.harmless).code == 0
        assert time.monotonic() - began < 5
        assert victim.process.memory_bytes() < 300 * MIB


def test_a_frame_of_16_mib_is_accepted_and_one_more_byte_is_not(victim: Victim) -> None:
    head = len(frame(9999))
    with victim.peer() as peer:
        answer = peer.ask(9999, body=bytes(FRAME_BYTES_MAX - head - 8))
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        peer.send(struct.pack(">iI", FRAME_BYTES_MAX - 3, 100))
        assert peer.next() is None


def test_requests_with_one_opaque_get_an_answer_each(victim: Victim) -> None:
    with victim.peer() as peer:
        peer.send(frame(victim.harmless, opaque=7) * 50)
        answers = [peer.next() for _ in range(50)]
        assert [answer.opaque for answer in answers if answer is not None] == [7] * 50


def test_answers_that_nobody_asked_for_are_ignored(victim: Victim) -> None:
    with victim.peer() as peer:
        peer.send(frame(0, opaque=5, flag=1) * 1000)
        assert peer.ask(victim.harmless).code == 0


def test_a_peer_that_asks_and_never_reads_is_made_to_wait(victim: Victim) -> None:
    before = victim.process.memory_bytes()
    request = frame(victim.harmless)
    with victim.peer() as peer:
        taken = peer.send_what_fits(request * 100_000)
        assert victim.old.ask(victim.harmless).code == 0
        assert victim.process.memory_bytes() < before + GROWTH_BYTES_MAX
        for _ in range(min(taken // len(request), 2000)):
            assert peer.next() is not None


def test_requests_that_want_no_answer_do_not_pile_up(victim: Victim) -> None:
    before = victim.process.memory_bytes()
    fields = {"topic": "Flood", "defaultTopic": "TBW102", "readQueueNums": "4", "perm": "6",
              "writeQueueNums": "4", "topicFilterType": "SINGLE_TAG", "namespace": "n",
              "key": "k", "value": "v"}  # fmt: skip
    code = CODE.UPDATE_AND_CREATE_TOPIC
    if victim.harmless == CODE.GET_NAMESRV_CONFIG:
        code = CODE.PUT_KV_CONFIG
    with victim.peer() as peer:
        peer.send_what_fits(frame(code, fields, bytes(100_000), flag=2) * 2000)
        assert victim.process.memory_bytes() < before + 2 * GROWTH_BYTES_MAX
        assert peer.ask(victim.harmless).code == 0


def test_unknown_requests_are_refused_by_number(victim: Victim) -> None:
    with victim.peer() as peer:
        for code in (-1, 0, 99_999, 2**31 - 1, -(2**31)):
            answer = peer.ask(code)
            assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            assert str(code) in (answer.remark or "")


ABSURD = ("-1", "0", "65536", "2147483647", "2147483648", "-9223372036854775808",
          "9223372036854775807", "9223372036854775808", "1e300", "NaN", "", "null", "²",
          "9" * 400, "../..", "a\nb", "\x00", "x" * 100_000)  # fmt: skip
NUMBERED = {
    CODE.SEND_MESSAGE: ("queueId", "sysFlag", "bornTimestamp", "flag", "reconsumeTimes",
                        "defaultTopicQueueNums", "maxReconsumeTimes"),
    CODE.PULL_MESSAGE: ("queueId", "queueOffset", "maxMsgNums", "commitOffset", "subVersion"),
    CODE.UPDATE_CONSUMER_OFFSET: ("queueId", "commitOffset"),
    CODE.QUERY_CONSUMER_OFFSET: ("queueId",),
    CODE.SEARCH_OFFSET_BY_TIMESTAMP: ("queueId", "timestamp"),
    CODE.GET_MAX_OFFSET: ("queueId",),
    CODE.VIEW_MESSAGE_BY_ID: ("offset",),
    CODE.QUERY_MESSAGE: ("maxNum", "beginTimestamp", "endTimestamp"),
    CODE.QUERY_CONSUME_QUEUE: ("queueId", "index", "count"),
    CODE.INVOKE_BROKER_TO_RESET_OFFSET: ("timestamp", "queueId", "offset"),
    CODE.UPDATE_AND_CREATE_TOPIC: ("readQueueNums", "writeQueueNums", "perm", "topicSysFlag"),
}  # fmt: skip
GOOD = {
    "topic": "Absurd", "producerGroup": "P", "consumerGroup": "G", "group": "G", "queueId": "0",
    "defaultTopic": "TBW102", "queueOffset": "0", "commitOffset": "0", "timestamp": "0",
    "offset": "0", "sysFlag": "4", "subscription": "*", "key": "k", "readQueueNums": "4",
    "writeQueueNums": "4", "perm": "6", "topicFilterType": "SINGLE_TAG",
}  # fmt: skip


@pytest.mark.parametrize("code", NUMBERED)
def test_absurd_numbers_are_answered(broker: Victim, code: int) -> None:
    with broker.peer() as peer:
        for field in NUMBERED[code]:
            for value in ABSURD:
                answer = peer.ask(code, {**GOOD, field: value}, b"body")
                assert "Error:" not in (answer.remark or ""), (field, value, answer.remark)


def test_held_pulls_keep_nothing_of_their_bodies(broker: Victim) -> None:
    before = broker.process.memory_bytes()
    fields = {**GOOD, "topic": "TBW102", "sysFlag": "6", "suspendTimeoutMillis": "60000",
              "maxMsgNums": "1", "x": "y" * 100_000}  # fmt: skip
    with broker.peer() as peer:
        for opaque in range(300):
            peer.send(frame(CODE.PULL_MESSAGE, fields, bytes(MIB), opaque=opaque))
        wait_until(lambda: runtime(broker)["heldPulls"] == "300")
        assert broker.process.memory_bytes() < before + 64 * MIB
    wait_until(lambda: runtime(broker)["heldPulls"] == "0")


def runtime(broker: Victim) -> dict[str, str]:
    table: dict[str, str] = json.loads(broker.old.ask(CODE.GET_BROKER_RUNTIME_INFO).body)["table"]
    return table


BODIES = {
    "empty": b"",
    "no JSON": b"\xff\xfe\xfd",
    "deep list": b"[" * 1_000_000,
    "deep object": b'{"a":' * 1_000_000,
    "keys in keys": b"{" * 60 + b'{"a":1}' + b":1}" * 60,
    "braces": b"{" * (8 * MIB),
    "numbers as keys": b"{" + b"1:2," * MIB,
    "gigantic": b'{"clientID":"c","producerDataSet":['
    + b",".join(b'{"groupName":"P%d"}' % n for n in range(300_000))
    + b"]}",
    "many groups": b'{"clientID":"c","producerDataSet":['
    + b",".join(b'{"groupName":"P%d"}' % n for n in range(30_000))
    + b"]}",
}


@pytest.mark.parametrize("name", BODIES)
def test_invalid_bodies_get_an_answer(victim: Victim, name: str) -> None:
    codes = (CODE.HEART_BEAT, CODE.LOCK_BATCH_MQ, CODE.UPDATE_AND_CREATE_TOPIC_LIST,
             CODE.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, CODE.CHECK_CLIENT_CONFIG)  # fmt: skip
    fields: dict[str, str] = {}
    if victim.harmless == CODE.GET_NAMESRV_CONFIG:
        codes = (CODE.REGISTER_BROKER, CODE.QUERY_DATA_VERSION, CODE.REGISTER_TOPIC_IN_NAMESRV)  # type: ignore[assignment]
        fields = {"brokerName": "b", "brokerAddr": "127.0.0.1:1", "clusterName": "C",
                  "brokerId": "0", "haServerAddr": "", "topic": "T"}  # fmt: skip
    with victim.peer() as peer:
        for code in codes:
            began = time.monotonic()
            assert peer.ask(code, fields, BODIES[name]) is not None
            assert time.monotonic() - began < 10


NAMES = ("../../evil", "/tmp/evil", "a/b", "..", ".", "evil\x00", "evil\n", "$(touch evil)",
         "`touch evil`", "evil;id", "C:\\evil", "e" * 300)  # fmt: skip


def test_names_never_become_paths(broker: Victim, cluster: Cluster) -> None:
    root = cluster.broker_directory()
    before = sorted(map(str, cluster.directory.rglob("*evil*")))
    listed = sorted(os.listdir(root))
    with broker.peer() as peer:
        for name in NAMES:
            assert peer.ask(CODE.SEND_MESSAGE, {**GOOD, "topic": name}, b"x").code != 0
            assert peer.ask(CODE.UPDATE_AND_CREATE_TOPIC, {**GOOD, "topic": name}).code != 0
            assert peer.ask(CODE.DELETE_TOPIC_IN_BROKER, {"topic": name}).code != 0
            group = json.dumps({"groupName": name}).encode()
            assert peer.ask(CODE.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group).code != 0
            retry = {**GOOD, "topic": f"%RETRY%{name}"}
            assert peer.ask(CODE.SEND_MESSAGE, retry, b"x").code != 0
            peer.ask(CODE.PULL_MESSAGE, {**GOOD, "consumerGroup": name})
    assert sorted(map(str, cluster.directory.rglob("*evil*"))) == before
    assert sorted(os.listdir(root)) == listed
    assert not Path("/tmp/evil").exists()


def test_no_setting_that_is_a_path_or_a_command_can_be_changed(victim: Victim) -> None:
    code = CODE.UPDATE_BROKER_CONFIG
    if victim.harmless == CODE.GET_NAMESRV_CONFIG:
        code = CODE.UPDATE_NAMESRV_CONFIG
    with victim.peer() as peer:
        before = peer.ask(victim.harmless).body
        for text in (
            "rocketmqHome=-c $(touch /tmp/evil) x",  # CVE-2023-33246
            "filterServerNums=1",
            "configStorePath=/tmp/evil",  # CVE-2023-37582
            "configStorePathName=configStorePath\nconfigStorePath=/tmp/evil",
            "kvConfigPath=/tmp/evil",
            "storePathRootDir=/tmp/evil",
            "storePathCommitLog=/tmp/evil",
            "brokerConfigPath=/tmp/evil",
            "listenPort=1",
            "bindAddress=0.0.0.0",
            "namesrvAddr=10.0.0.1:1",
            "\xff\xfe",
            "x" * 100_000,
        ):
            answer = peer.ask(code, body=text.encode("latin-1"))
            assert answer.code not in (0, ResponseCode.SYSTEM_ERROR), text
        assert peer.ask(victim.harmless).body == before
    assert not Path("/tmp/evil").exists()


def test_a_client_id_cannot_forge_a_line_of_the_log(broker: Victim) -> None:
    forged = "2026-01-01 00:00:00,000 ERROR forged line"

    def heartbeat(client: str, topic: str) -> bytes:
        subscription = {"topic": topic, "subString": f"A\n{forged}"}
        consumer = {"groupName": "Forger", "subscriptionDataSet": [subscription]}
        return json.dumps({"clientID": client, "consumerDataSet": [consumer]}).encode()

    with broker.peer() as one, broker.peer() as other:
        assert one.ask(CODE.HEART_BEAT, body=heartbeat(f"a\n{forged}", "T1")).code == 0
        assert other.ask(CODE.HEART_BEAT, body=heartbeat(f"b\r\n{forged}", "T2\n")).code == 0
        broker.wait_for_log("subscribe differently")
        lines = list(broker.process.output)
    assert not [line for line in lines if line.startswith(forged)]


def test_bad_offsets_in_a_loop_do_not_fill_the_log(broker: Victim) -> None:
    fields = {
        "consumerGroup": "Looping",
        "topic": "TBW102",
        "queueId": "0",
        "queueOffset": "-7",
        "maxMsgNums": "1",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
    }
    broker.process.output.clear()
    with broker.peer() as peer:
        for number in range(1000):
            answer = peer.ask(CODE.PULL_MESSAGE, {**fields, "queueOffset": str(-1 - number)})
            assert answer.code == ResponseCode.PULL_OFFSET_MOVED
    lines = [line for line in list(broker.process.output) if "offset moved" in line]
    assert 0 < len(lines) < 500


def test_a_compressed_registration_cannot_exhaust_memory(namesrv: Victim) -> None:
    import zlib

    bomb = zlib.compress(bytes(512 * MIB), 9)
    fields = {"brokerName": "b", "brokerAddr": "127.0.0.1:1", "clusterName": "C", "brokerId": "0",
              "haServerAddr": "", "compressed": "true"}  # fmt: skip
    before = namesrv.process.memory_bytes()
    with namesrv.peer() as peer:
        assert peer.ask(CODE.REGISTER_BROKER, fields, bomb).code != 0
    wait_until(lambda: namesrv.process.memory_bytes() < before + 64 * MIB)


def test_every_peer_gets_its_own_answers_only(victim: Victim) -> None:
    chance = random.Random(3)
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(victim.peer()) for _ in range(30)]
        loud = [stack.enter_context(victim.peer()) for _ in range(30)]
        for turn in range(10):
            for number, peer in enumerate(peers):
                code, fields = CODE.GET_TOPIC_CONFIG, {"topic": f"nobody-{number}-{turn}"}
                if victim.harmless == CODE.GET_NAMESRV_CONFIG:
                    code = CODE.GET_ROUTEINFO_BY_TOPIC
                peer.send(frame(code, fields, opaque=number * 1000 + turn))
            for peer in loud:
                peer.send(chance.randbytes(200))
            for number, peer in enumerate(peers):
                answer = peer.next()
                assert answer is not None
                assert answer.opaque == number * 1000 + turn
                assert f"nobody-{number}-{turn}" in (answer.remark or "")


def test_the_broker_still_stores_and_delivers(broker: Victim) -> None:
    fields = {**GOOD, "topic": "AfterAll"}
    sent = broker.old.ask(CODE.SEND_MESSAGE, fields, b"still here")
    assert sent.code == 0
    pulled = broker.old.ask(CODE.PULL_MESSAGE, {**fields, "maxMsgNums": "2000000000"})
    assert pulled.code == 0
    assert b"still here" in pulled.body
