from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from client.brokers import NAMESRV, QueueBroker, name_server, record, route_of
from client.network import Answer, FakeNetwork
from rocketpost.client.admin import AdminClient, DeadLetter, Outcome, Selection
from rocketpost.client.admin.resending import copy_properties
from rocketpost.client.config import ClientConfig
from rocketpost.client.message import ReceivedMessage
from rocketpost.codec.bodies.client import LockRequest, LockResponse
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.command import Command
from rocketpost.codec.lenient_json import decode, encode
from rocketpost.codec.properties import decode_properties
from rocketpost.codec.record import decode_record
from rocketpost.errors import ClientError, ConfigError, Fault, RequestTimeout, RouteNotFound
from rocketpost.model.route import MessageQueue
from rocketpost.testing.virtual_time import in_virtual_time

A = "127.0.0.1:10911"
DLQ = "%DLQ%G"

Use = Callable[[FakeNetwork], FakeNetwork]


class DeadBroker(QueueBroker):
    """A broker with dead letters, an index of what is sent to it, and one lock."""

    def __init__(self) -> None:
        super().__init__(DLQ)
        self.sent: dict[str, bytes] = {}
        self.orders: list[str] = []
        self.holder: str | None = None
        self.silent = self.loses_answers = self.indexes_nothing = False

    def _get_min_offset(self, command: Command) -> Answer:
        return Answer(fields={"offset": "0"})

    def _search_offset_by_timestamp(self, command: Command) -> Answer:
        return Answer(fields={"offset": "0"})

    def _lock_batch_mq(self, command: Command) -> Answer:
        self.orders.append("lock")
        asked = decode(command.body, LockRequest)
        if self.holder in (None, asked.client_id):
            self.holder = asked.client_id
            return Answer(body=encode(LockResponse(lockOKMQSet=asked.mq_set)))
        return Answer(body=encode(LockResponse()))

    def _unlock_batch_mq(self, command: Command) -> Answer:
        self.orders.append("unlock")
        if self.holder == decode(command.body, LockRequest).client_id:
            self.holder = None
        return Answer()

    def _query_message(self, command: Command) -> Answer:
        self.orders.append("look")
        found = self.sent.get(command.fields["key"])
        if found is None or self.indexes_nothing:
            return Answer(ResponseCode.QUERY_NOT_FOUND)
        return Answer(body=found)

    def _send_message_v2(self, command: Command) -> Answer | None:  # type: ignore[override]
        self.orders.append("send")
        if self.silent:
            return None
        properties = command.fields["i"].encode()
        key = decode_properties(properties)["UNIQ_KEY"]
        assert key not in self.sent, "sent twice"
        self.sent[key] = record(body=command.body, properties=properties)
        if self.loses_answers:
            return None
        return Answer(fields={"msgId": "AA", "queueId": command.fields["e"], "queueOffset": "0"})


def admin() -> AdminClient:
    return AdminClient(config=ClientConfig(name_servers=NAMESRV, call_timeout=0.05))


@pytest.fixture
def dead(use_network: Use) -> DeadBroker:
    fake, dead = FakeNetwork(), DeadBroker()
    route = route_of({"a": A}, queues=1)
    fake.servers = {NAMESRV: name_server({DLQ: route, "T": route}), A: dead.serve}
    use_network(fake)
    return dead


def letter(**properties: str) -> DeadLetter:
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    stored = decode_record(record(topic=DLQ, properties=text.encode(), position=7))
    return DeadLetter("G", ReceivedMessage(stored, MessageQueue("a", 0, DLQ)))


def test_every_condition_must_be_met() -> None:
    one = letter(RETRY_TOPIC="T", KEYS="k1 k2", UNIQ_KEY="U", ORIGIN_MESSAGE_ID="O")
    for good in (
        Selection(),
        Selection(ids=frozenset({"U", "x"})),
        Selection(ids=frozenset({"O"})),
        Selection(ids=frozenset({one.id})),
        Selection(keys=frozenset({"k2"})),
        Selection(topic="T", begin_ms=2, end_ms=2),
    ):
        assert good.takes(one)
    for bad in (
        Selection(ids=frozenset({"x"})),
        Selection(keys=frozenset({"k"})),
        Selection(topic="X"),
        Selection(begin_ms=3),
        Selection(end_ms=1),
        Selection(ids=frozenset({"U"}), topic="X"),
    ):
        assert not bad.takes(one)


def test_the_copy_loses_what_retries_noted() -> None:
    one = letter(
        RETRY_TOPIC="T", ORIGIN_MESSAGE_ID="O", DELAY="0", WAIT="false", UNIQ_KEY="U", KEYS="k",
        TAGS="A", REAL_TOPIC="x", REAL_QID="0", MAX_RECONSUME_TIMES="2", TRAN_MSG="true", who="me",
    )  # fmt: skip
    assert copy_properties(one) == {
        "KEYS": "k",
        "TAGS": "A",
        "who": "me",
        "UNIQ_KEY": one.resent_id,
        "TRANSFER_FLAG": "true",
        "WAIT": "true",
        "__DEAD_LETTER": f"{DLQ}/{one.id}",
    }


def test_the_id_of_the_copy_follows_from_the_dead_letter() -> None:
    one, other = letter(UNIQ_KEY="U"), letter(UNIQ_KEY="V")
    assert one.resent_id == letter(UNIQ_KEY="U").resent_id
    assert one.resent_id != other.resent_id
    assert one.resent_id != one._replace(group="H").resent_id
    assert len(bytes.fromhex(one.resent_id)) == 16
    assert bytes.fromhex(one.resent_id)[10:14] == bytes(4)


@in_virtual_time
async def test_a_message_is_locked_for_looked_for_and_sent(dead: DeadBroker) -> None:
    dead.put(b"x", RETRY_TOPIC="T", UNIQ_KEY="U")
    async with admin() as client:
        [done] = await client.dead_letters.resend("G")
        assert done.outcome is Outcome.SENT
        assert dead.orders == ["lock", "lock", "look", "send", "look", "unlock"]
        [again] = await client.dead_letters.resend("G")
    assert again.outcome is Outcome.ALREADY_SENT
    assert dead.orders[6:] == ["lock", "lock", "look", "unlock"]


@in_virtual_time
async def test_a_pause_is_followed_by_another_look(dead: DeadBroker) -> None:
    for name in "UV":
        dead.put(b"x", RETRY_TOPIC="T", UNIQ_KEY=name)
    async with admin() as client:
        await client.dead_letters.resend("G", rate=5)
        assert dead.orders[1:5] == ["lock", "look", "send", "look"]
        assert dead.orders[5:] == ["lock", "look", "lock", "look", "send", "unlock"]
        done = await client.dead_letters.resend("G", rate=0.001)  # what is done needs no pause
    assert [each.outcome for each in done] == [Outcome.ALREADY_SENT] * 2


@in_virtual_time
async def test_a_dry_run_locks_and_sends_nothing(dead: DeadBroker) -> None:
    dead.put(b"x", RETRY_TOPIC="T", UNIQ_KEY="U")
    async with admin() as client:
        [done] = await client.dead_letters.resend("G", dry_run=True)
    assert done.outcome is Outcome.WOULD_SEND
    assert dead.orders == ["look"]


@pytest.mark.parametrize("stored", [True, False])
@in_virtual_time
async def test_a_send_without_an_answer_is_not_repeated_by_this_run(
    dead: DeadBroker, stored: bool
) -> None:
    dead.put(b"x", RETRY_TOPIC="T", UNIQ_KEY="U")
    dead.put(b"y", RETRY_TOPIC="T", UNIQ_KEY="V")
    dead.loses_answers, dead.silent = stored, not stored
    async with admin() as client:
        with pytest.raises(RequestTimeout):
            await client.dead_letters.resend("G")
        assert dead.orders.count("send") == 1
        assert dead.holder is not None  # nobody looks before it can have arrived
        dead.loses_answers = dead.silent = False
        done = await client.dead_letters.resend("G")
    first = Outcome.ALREADY_SENT if stored else Outcome.SENT
    assert [each.outcome for each in done] == [first, Outcome.SENT]
    assert len(dead.sent) == 2


@in_virtual_time
async def test_dead_letters_that_cannot_be_sent_are_reported_and_the_rest_is_sent(
    dead: DeadBroker,
) -> None:
    dead.put(b"1", UNIQ_KEY="U")
    dead.put(b"2", RETRY_TOPIC="Gone", UNIQ_KEY="V")
    dead.put(b"3", RETRY_TOPIC="SCHEDULE_TOPIC_XXXX", UNIQ_KEY="W")
    dead.put(b"4", RETRY_TOPIC="T", UNIQ_KEY="X", big="b" * 32_700)
    dead.put(b"5", RETRY_TOPIC="T", UNIQ_KEY="Y")
    async with admin() as client:
        done = await client.dead_letters.resend("G")
    assert [each.outcome for each in done] == [Outcome.REFUSED] * 4 + [Outcome.SENT]
    assert all(each.reason for each in done[:4])


@in_virtual_time
async def test_a_refusal_is_certain(dead: DeadBroker) -> None:
    dead.put(b"x", RETRY_TOPIC="T", UNIQ_KEY="U")
    dead.refuse[RequestCode.SEND_MESSAGE_V2] = ResponseCode.NO_PERMISSION
    async with admin() as client:
        [done] = await client.dead_letters.resend("G")
    assert (done.outcome, done.reason) == (Outcome.REFUSED, "refused")
    assert dead.holder is None


@in_virtual_time
async def test_without_an_index_it_stops(dead: DeadBroker) -> None:
    dead.indexes_nothing = True
    for name in "UV":
        dead.put(b"x", RETRY_TOPIC="T", UNIQ_KEY=name)
    async with admin() as client:
        with pytest.raises(ClientError, match="messageIndexEnable"):
            await client.dead_letters.resend("G")
    assert len(dead.sent) == 1


@in_virtual_time
async def test_a_look_up_that_fails_stops_the_run(dead: DeadBroker) -> None:
    dead.put(b"x", RETRY_TOPIC="T", UNIQ_KEY="U")
    dead.refuse[RequestCode.QUERY_MESSAGE] = ResponseCode.SYSTEM_ERROR
    async with admin() as client:
        with pytest.raises(Fault):
            await client.dead_letters.resend("G")
    assert dead.sent == {}


@in_virtual_time
async def test_another_run_is_waited_for(dead: DeadBroker) -> None:
    dead.put(b"x", RETRY_TOPIC="T", UNIQ_KEY="U")
    dead.holder = "other"
    told = asyncio.Event()
    async with admin() as client:
        run = asyncio.create_task(client.dead_letters.resend("G", on_wait=told.set))
        await told.wait()
        assert dead.sent == {}
        dead.holder = None
        [done] = await run
    assert done.outcome is Outcome.SENT


@in_virtual_time
async def test_another_run_is_not_waited_for_without_end(dead: DeadBroker) -> None:
    dead.holder = "other"
    async with admin() as client:
        with pytest.raises(ClientError, match="another call"):
            await client.dead_letters.resend("G")
    assert dead.holder == "other"


@in_virtual_time
async def test_the_lock_of_a_dead_run_is_taken(dead: DeadBroker) -> None:
    dead.put(b"x", RETRY_TOPIC="T", UNIQ_KEY="U")
    dead.holder = "killed"
    async with admin() as client:
        [done] = await client.dead_letters.resend("G", after="killed")
    assert done.outcome is Outcome.SENT


@in_virtual_time
async def test_a_lock_that_was_lost_stops_the_run(dead: DeadBroker) -> None:
    for name in "UV":
        dead.put(b"x", RETRY_TOPIC="T", UNIQ_KEY=name)

    def steal(_: object) -> None:
        dead.holder = "other"

    async with admin() as client:
        with pytest.raises(ClientError, match="lost"):
            await client.dead_letters.resend("G", on_each=steal)
    assert len(dead.sent) == 1
    assert dead.holder == "other"


@in_virtual_time
async def test_a_group_that_nobody_knows_is_an_error(dead: DeadBroker) -> None:
    async with admin() as client:
        with pytest.raises(
            RouteNotFound, match="no registered broker has dead letters of the group"
        ):
            await client.dead_letters.resend("H")
        with pytest.raises(ConfigError):
            await client.dead_letters.resend("a/b")


@in_virtual_time
async def test_a_group_that_never_failed_has_no_dead_letters(use_network: Use) -> None:
    fake = FakeNetwork()
    fake.servers = {NAMESRV: name_server({"%RETRY%G": route_of({"a": A}, queues=1)})}
    use_network(fake)
    async with admin() as client:
        assert [_ async for _ in client.dead_letters.read("G")] == []
        assert await client.dead_letters.resend("G") == []


@in_virtual_time
async def test_a_topic_that_may_not_be_read_is_an_error(use_network: Use) -> None:
    fake = FakeNetwork()
    fake.servers = {NAMESRV: name_server({DLQ: route_of({"a": A}, queues=1, perm=2)})}
    use_network(fake)
    async with admin() as client:
        with pytest.raises(RouteNotFound, match="updateTopicPerm"):
            [_ async for _ in client.dead_letters.read("G")]


@in_virtual_time
async def test_a_span_of_time_is_looked_up_and_checked(dead: DeadBroker) -> None:
    dead.put(b"x", RETRY_TOPIC="T", UNIQ_KEY="U")
    async with admin() as client:
        found = [each async for each in client.dead_letters.read("G", Selection(begin_ms=0))]
        assert [each.message.body for each in found] == [b"x"]
        late = [each async for each in client.dead_letters.read("G", Selection(begin_ms=3))]
    assert late == []
