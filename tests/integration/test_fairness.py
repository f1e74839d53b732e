"""Nobody starves the others: attacks on a broker, and how other clients fare meanwhile.

Measured in requests, not in seconds: while an attack lasts, another client asks for something small
again and again. A broker that served the attack in one go would answer it once or twice.
"""

from __future__ import annotations

import json
import select
import socket
import time
from collections.abc import Callable, Iterator, Mapping

import pytest

from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.command import Command, decode_command, encode_command
from rocketpost.codec.frames import FrameDecoder
from rocketpost.testing import Cluster

pytestmark = pytest.mark.slow

CODE = RequestCode
SECONDS = 60.0
SMALL = {"topic": "Small", "queueId": "0"}
SERVED_MIN = 8
"""The lowest number of times that another client is served during an attack."""


class Peer:
    """One connection to a broker."""

    def __init__(self, port: int, *, receive_bytes: int | None = None) -> None:
        self._socket = socket.socket()
        if receive_bytes is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self._socket.settimeout(SECONDS)
        self._socket.connect(("127.0.0.1", port))
        self._decoder = FrameDecoder()
        self._opaque = 1_000_000
        self.answers: list[Command] = []
        self.requests: list[Command] = []
        self.is_closed = False

    def close(self) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def send_what_fits(self, data: bytes) -> int:
        """Send until the broker takes nothing for a moment; return how much it took."""
        sent = 0
        while sent < len(data) and self._is_ready(select.POLLOUT, 0.5):
            sent += self._socket.send(data[sent : sent + 64 * 1024])
        return sent

    def _is_ready(self, event: int, timeout: float) -> bool:
        poll = select.poll()  # thousands of sockets are too many for select
        poll.register(self._socket, event)
        return bool(poll.poll(timeout * 1000))

    def receive(self, timeout: float = SECONDS) -> bool:
        """Wait for bytes; return whether any came."""
        if self.is_closed or not self._is_ready(select.POLLIN, timeout):
            return False
        try:
            data = self._socket.recv(1 << 20)
        except ConnectionResetError:
            data = b""
        self.is_closed = not data
        for command in map(decode_command, self._decoder.feed(data)):
            (self.answers if command.is_response else self.requests).append(command)
        return True

    def ask(self, code: int, fields: Mapping[str, str] | None = None, body: bytes = b"") -> Command:
        """Send a request and return its answer."""
        self._opaque += 1
        self.send(frame(code, fields, body, opaque=self._opaque))
        while True:
            for answer in self.answers:
                if answer.opaque == self._opaque:
                    self.answers.remove(answer)
                    return answer
            assert self.receive(), f"no answer to {code}"

    def wait_for(self, count: int) -> None:
        """Return once ``count`` answers are here."""
        while len(self.answers) < count:
            assert self.receive(), f"{len(self.answers)} of {count} answers"


class Broker:
    """A broker under attack."""

    def __init__(self, cluster: Cluster) -> None:
        self.process = cluster.brokers[0]
        self.port = int(cluster.broker_addresses[0].rpartition(":")[2])
        self._peers: list[Peer] = []
        self.longest_seconds = 0.0
        """How long it took at most, when others were last served during an attack."""
        self.bystander = self.peer()
        self.create_topic("Small", 4)

    def peer(self, *, receive_bytes: int | None = None) -> Peer:
        peer = Peer(self.port, receive_bytes=receive_bytes)
        self._peers.append(peer)
        return peer

    def hang_up(self) -> None:
        """Close every connection but the bystander's."""
        for peer in self._peers[1:]:
            peer.close()
        del self._peers[1:]

    def close(self) -> None:
        for peer in self._peers:
            peer.close()

    def create_topic(self, topic: str, queues: int) -> None:
        fields = {
            "topic": topic,
            "defaultTopic": "TBW102",
            "readQueueNums": str(queues),
            "writeQueueNums": str(queues),
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
        }
        assert self.bystander.ask(CODE.UPDATE_AND_CREATE_TOPIC, fields).code == 0

    def runtime(self, key: str) -> int:
        answer = self.bystander.ask(CODE.GET_BROKER_RUNTIME_INFO)
        return int(json.loads(answer.body)["table"][key])

    def served_while(self, is_under_way: Callable[[], bool]) -> int:
        """Ask for something small as long as an attack lasts; return how often it was answered."""
        served = 0
        self.longest_seconds = 0.0
        now = time.monotonic()
        deadline = now + 5 * SECONDS
        while is_under_way():
            assert self.bystander.ask(CODE.GET_MAX_OFFSET, SMALL).code == 0
            served += 1
            before, now = now, time.monotonic()
            self.longest_seconds = max(self.longest_seconds, now - before)
            assert now < deadline
        return served


def frame(
    code: int,
    fields: Mapping[str, str] | None = None,
    body: bytes = b"",
    *,
    opaque: int = 1,
    flag: int = 0,
) -> bytes:
    head = encode_command(code, opaque=opaque, flag=flag, fields=fields, body_bytes=len(body))
    return head + body


def wait_until(condition: Callable[[], bool], what: str = "") -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("fairness")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def shared(cluster: Cluster) -> Iterator[Broker]:
    broker = Broker(cluster)
    yield broker
    broker.close()


@pytest.fixture
def broker(shared: Broker) -> Iterator[Broker]:
    yield shared
    shared.hang_up()
    assert shared.process.is_running
    assert not [line for line in list(shared.process.output) if "Traceback" in line]


WIDE = {"topic": "Wide", "consumerGroup": "G", "queueId": "-1", "pollTime": "0", "bornTime": "0"}
POP = {**WIDE, "maxMsgNums": "32", "invisibleTime": "60000", "initMode": "0", "exp": "*"}


@pytest.mark.parametrize("count", [8, pytest.param(600, marks=pytest.mark.long)])
@pytest.mark.parametrize("code", [CODE.NOTIFICATION, CODE.POP_MESSAGE])
def test_looking_into_thousands_of_queues_does_not_block_others(
    broker: Broker, code: int, count: int
) -> None:
    broker.create_topic("Wide", 65_536)
    attacker = broker.peer()
    attacker.send(b"".join(frame(code, POP, opaque=opaque) for opaque in range(count)))

    def is_under_way() -> bool:
        attacker.receive(0)
        return len(attacker.answers) < count

    # A fast machine looks into so many queues in about eight turns; without turns it is one.
    assert broker.served_while(is_under_way) >= count * SERVED_MIN // 2
    assert [answer.opaque for answer in attacker.answers] == list(range(count))


def test_a_message_that_arrives_while_a_pop_looks_is_found(broker: Broker) -> None:
    broker.create_topic("Wide", 65_536)
    consumer, producer = broker.peer(), broker.peer()
    for opaque in range(10):
        consumer.send(frame(CODE.POP_MESSAGE, {**POP, "pollTime": "50000"}, opaque=opaque))
        time.sleep(0.01 * opaque)  # somewhere amid the look of about 100 ms
        fields = {
            **WIDE,
            "producerGroup": "P",
            "defaultTopic": "TBW102",
            "queueId": str(opaque * 6000),
            "sysFlag": "0",
            "bornTimestamp": "1",
            "flag": "0",
        }
        assert producer.ask(CODE.SEND_MESSAGE, fields, b"found").code == 0
        consumer.wait_for(opaque + 1)
        assert consumer.answers[-1].code == ResponseCode.SUCCESS


def test_a_oneway_request_is_not_computed(broker: Broker) -> None:
    broker.create_topic("Wide", 65_536)
    attacker = broker.peer()
    attacker.send(frame(CODE.GET_TOPIC_STATS_INFO, {"topic": "Wide"}, flag=2) * 300)
    assert attacker.ask(CODE.GET_MAX_OFFSET, SMALL).code == 0


PULL = {
    **SMALL,
    "consumerGroup": "G",
    "queueOffset": "0",
    "maxMsgNums": "32",
    "sysFlag": "6",
    "commitOffset": "0",
    "suspendTimeoutMillis": "60000",
    "subscription": "*",
}
SEND = {
    "producerGroup": "P",
    "defaultTopic": "TBW102",
    "sysFlag": "0",
    "bornTimestamp": "1",
    "flag": "0",
}


def test_one_connection_leaves_room_for_the_pulls_of_others(broker: Broker) -> None:
    broker.create_topic("Held", 1)
    pull = {**PULL, "topic": "Held"}
    attacker, consumer = broker.peer(), broker.peer()
    count = 20_000
    sent = b"".join(frame(CODE.PULL_MESSAGE, pull, opaque=opaque) for opaque in range(count))
    attacker.send(sent)
    wait_until(lambda: bool(attacker.receive(0.01)) or bool(attacker.answers))
    busy = attacker.answers[0]
    assert busy.code == ResponseCode.SYSTEM_BUSY  # Java's consumer tries again 3 s later
    assert "of this connection" in (busy.remark or "")
    attacker.wait_for(count - broker.runtime("heldPulls"))
    assert broker.runtime("heldPulls") == 16_384
    consumer.send(frame(CODE.PULL_MESSAGE, pull, opaque=1))
    wait_until(lambda: broker.runtime("heldPulls") == 16_385)
    refused = len(attacker.answers)

    sent_at = broker.peer().ask(CODE.SEND_MESSAGE, {**SEND, "topic": "Held", "queueId": "0"}, b"x")
    assert sent_at.code == 0
    consumer.wait_for(1)
    assert b"x" in consumer.answers[0].body

    def is_under_way() -> bool:
        attacker.receive(0)
        return len(attacker.answers) < refused + 16_384

    # The consumer was not behind thousands, and others are served while those are woken.
    assert broker.served_while(is_under_way) >= SERVED_MIN


def heartbeat(client_id: str, group: str = "G", topics: tuple[str, ...] = ("Small",)) -> bytes:
    consumer = {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "subscriptionDataSet": [
            {"topic": topic, "subString": "*", "tagsSet": [], "codeSet": [], "subVersion": 1}
            for topic in topics
        ],
        "unitMode": False,
    }
    body = {"clientID": client_id, "consumerDataSet": [consumer], "producerDataSet": []}
    return frame(CODE.HEART_BEAT, None, json.dumps(body).encode(), opaque=1)


def test_questions_to_a_silent_client_block_nothing_else(broker: Broker) -> None:
    silent = broker.peer()
    silent.send(heartbeat("silent"))
    silent.wait_for(1)
    ask = {"consumerGroup": "G", "clientId": "silent", "jstackEnable": "false"}
    attackers = [broker.peer() for _ in range(3)]
    for attacker in attackers:
        count = 6000
        attacker.send(frame(CODE.GET_CONSUMER_RUNNING_INFO, ask) * count)
    for attacker in attackers:
        attacker.wait_for(count - 64)
        assert {answer.code for answer in attacker.answers} == {ResponseCode.SYSTEM_BUSY}
    broker.create_topic("Fresh", 1)  # an administrator is not refused
    while silent.receive(0):
        pass
    asked = [each for each in silent.requests if each.code == CODE.GET_CONSUMER_RUNNING_INFO]
    assert 0 < len(asked) <= 64


@pytest.mark.parametrize("count", [800, pytest.param(3000, marks=pytest.mark.long)])
def test_members_are_notified_in_proportion_when_many_join_and_leave(
    broker: Broker, count: int
) -> None:
    members = [broker.peer() for _ in range(count)]
    for number, member in enumerate(members):
        member.send(heartbeat(f"m{number}", group="Crowd"))

    def member_count() -> int:
        answer = broker.bystander.ask(CODE.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "Crowd"})
        return len(json.loads(answer.body)["consumerIdList"]) if answer.code == 0 else 0

    broker.served_while(lambda: member_count() < count)
    for member in members[::2]:
        member.close()
    stay = members[1::2]
    broker.served_while(lambda: member_count() > len(stay))

    def notices() -> int:
        return sum(each.code == CODE.NOTIFY_CONSUMER_IDS_CHANGED for each in stay[0].requests)

    while stay[0].receive(0.5):  # until no more notices come
        pass
    # Each of the changes told everybody before: the oldest heard of all of them.
    assert 1 <= notices() < count // 5
    last = stay[-1]
    assert last.receive(0)
    assert any(each.code == CODE.NOTIFY_CONSUMER_IDS_CHANGED for each in last.requests)


@pytest.mark.long
def test_many_deletions_do_not_block_others(broker: Broker) -> None:
    count = 2000
    attacker = broker.peer()
    create = {
        "defaultTopic": "TBW102",
        "readQueueNums": "4",
        "writeQueueNums": "4",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
    }
    for number in range(count):
        fields = {**create, "topic": f"Gone{number}"}
        attacker.send(frame(CODE.UPDATE_AND_CREATE_TOPIC, fields, opaque=number))
    attacker.wait_for(count)
    for number in range(4 * count):
        fields = {**SEND, "topic": f"Gone{number // 4}", "queueId": str(number % 4)}
        attacker.send(frame(CODE.SEND_MESSAGE, fields, b"x", opaque=number))
    attacker.wait_for(5 * count)
    attacker.answers.clear()
    deletions = [
        frame(CODE.DELETE_TOPIC_IN_BROKER, {"topic": f"Gone{number}"}, opaque=number)
        for number in range(count)
    ]
    attacker.send(b"".join(deletions))

    def is_under_way() -> bool:
        attacker.receive(0)
        return len(attacker.answers) < count

    began = time.monotonic()
    broker.served_while(is_under_way)
    assert {answer.code for answer in attacker.answers} == {0}
    assert broker.longest_seconds < (time.monotonic() - began) / 10


@pytest.mark.long
def test_queries_for_a_hot_key_do_not_block_others(broker: Broker) -> None:
    attacker = broker.peer()
    keyed = {**SEND, **SMALL, "properties": "KEYS\x01hot\x02"}
    first_ms = 0
    for _ in range(56):
        attacker.send(frame(CODE.SEND_MESSAGE, keyed, b"x") * 1000)
        attacker.wait_for(1000)
        attacker.answers.clear()
        first_ms = first_ms or int(time.time() * 1000)
    # All that is newer is passed over before the first is found.
    ask = {"topic": "Small", "key": "hot", "maxNum": "64", "beginTimestamp": "0"}
    query = frame(CODE.QUERY_MESSAGE, {**ask, "endTimestamp": str(first_ms)})
    attacker.send(query * 600)

    def is_under_way() -> bool:
        attacker.receive(0)
        return len(attacker.answers) < 600

    assert broker.served_while(is_under_way) >= 100


MIB = 1024 * 1024


@pytest.mark.parametrize("count", [40, pytest.param(1000, marks=pytest.mark.long)])
def test_peers_that_do_not_read_take_no_more_than_the_bound(
    tmp_path_factory: pytest.TempPathFactory, count: int
) -> None:
    settings = {"unwrittenBytesMax": str(32 * MIB)}
    with Cluster(tmp_path_factory.mktemp("unread"), settings=settings) as cluster:
        broker = Broker(cluster)
        topics = [{"topicName": f"Long-name-of-a-topic-{n:04d}", "perm": 6} for n in range(500)]
        body = json.dumps({"topicConfigList": topics}).encode()
        assert broker.bystander.ask(CODE.UPDATE_AND_CREATE_TOPIC_LIST, None, body).code == 0
        answer = broker.bystander.ask(CODE.GET_ALL_TOPIC_CONFIG)
        before = broker.process.memory_bytes()
        # The system takes some, and less than 4 MiB stay: from there on a connection has to wait.
        request = frame(CODE.GET_ALL_TOPIC_CONFIG) * (6 * MIB // len(answer.body))
        silent = [broker.peer(receive_bytes=4096) for _ in range(count)]
        for peer in silent:
            peer.send_what_fits(request)
            assert broker.bystander.ask(CODE.GET_ALL_TOPIC_CONFIG).body == answer.body
        log = broker.process.output
        wait_until(lambda: any("bytes wait for all" in line for line in list(log)), "none dropped")
        # Thrice the bound, as memory is not given back at once, and 64 KiB each that do not count.
        assert broker.process.memory_bytes() < before + (3 * 32 + 16) * MIB + count * 128 * 1024
        for peer in silent:
            peer.close()
        assert broker.bystander.ask(CODE.GET_MAX_OFFSET, SMALL).code == 0
        broker.close()
