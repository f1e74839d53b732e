"""Transactions of the SDK: what goes over the wire, and what it answers brokers that ask."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from client.brokers import HOST, NAMESRV, broker, network_of, record, route_of
from client.network import Answer, FakeNetwork
from rocketpost.client import (
    ConfigError,
    Message,
    MessageRefused,
    ProducerConfig,
    ReceivedMessage,
    TransactionProducer,
    TransactionState,
)
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.command import Command, to_fields
from rocketpost.codec.faults import IllegalOperation
from rocketpost.codec.headers.transaction import CheckTransaction
from rocketpost.codec.properties import decode_properties, encode_properties
from rocketpost.codec.record import message_id
from rocketpost.testing.waiting import settle, until

COMMIT, ROLLBACK, UNKNOWN = TransactionState
SEND, END = RequestCode.SEND_MESSAGE_V2, RequestCode.END_TRANSACTION
A, B = "a:1", "b:1"
ROUTES = {"T": route_of({"a": A})}
POSITION = 4711

Use = Callable[[FakeNetwork], FakeNetwork]


def stored(command: Command, code: int = 0) -> Answer:
    fields = {"msgId": message_id(HOST, POSITION), "queueId": "0", "queueOffset": "7"}
    return Answer(code, {**fields, "transactionId": "from the broker"})


def producer(checker: object = None, **more: object) -> TransactionProducer:
    config = ProducerConfig(name_servers=NAMESRV)
    return TransactionProducer("G", checker=checker, config=config, **more)  # type: ignore[arg-type]


def ask(network: FakeNetwork, id_: str, *, group: str = "G", broker_name: str = "a") -> None:
    """Ask a producer what became of a transaction, as its broker does."""
    properties = encode_properties({"UNIQ_KEY": id_, "PGROUP": group, "TRAN_MSG": "true"})
    header = CheckTransaction(
        tran_state_table_offset=8,
        commit_log_offset=99,
        transaction_id=id_,
        msg_id=id_,
        broker_name=broker_name,
    )
    network.links[A][0].send_oneway(
        RequestCode.CHECK_TRANSACTION_STATE,
        fields=to_fields(header),
        body=record(properties=properties),
    )


async def test_a_half_and_its_end_carry_everything(use_network: Use) -> None:
    network = use_network(network_of(ROUTES, {A: broker(stored)}))
    async with producer(lambda message: UNKNOWN) as sender:
        done = await sender.send_in_transaction(
            Message("T", b"body", keys="k"), lambda message, _: COMMIT, immunity_seconds=20
        )
    assert (done.state, done.confirmed) == (COMMIT, True)
    [half], [end] = network.sent(SEND), network.sent(END)
    properties = decode_properties(half.fields["i"].encode())
    assert (properties["TRAN_MSG"], properties["PGROUP"]) == ("true", "G")
    assert properties["CHECK_IMMUNITY_TIME_IN_SECONDS"] == "20"
    assert end.fields == {
        "topic": "T",
        "producerGroup": "G",
        "tranStateTableOffset": "7",
        "commitLogOffset": str(POSITION),
        "commitOrRollback": "8",
        "fromTransactionCheck": "false",
        "msgId": done.sent.message_id,
        "transactionId": "from the broker",
        "bname": "a",
    }
    assert not end.is_oneway


@pytest.mark.parametrize(
    ("outcome", "state", "number"),
    [
        (COMMIT, COMMIT, "8"),
        (ROLLBACK, ROLLBACK, "12"),
        (UNKNOWN, UNKNOWN, "0"),
        (None, UNKNOWN, "0"),
    ],
)
async def test_the_outcome_decides(
    use_network: Use, outcome: TransactionState | None, state: TransactionState, number: str
) -> None:
    network = use_network(network_of(ROUTES, {A: broker(stored)}))

    async def execute(message: Message, transaction_id: str) -> TransactionState | None:
        return outcome

    async with producer(lambda message: UNKNOWN) as sender:
        done = await sender.send_in_transaction(Message("T", b"body"), execute)
        await until(lambda: network.sent(END))
    assert (done.state, done.error) == (state, None)
    [end] = network.sent(END)
    assert end.fields["commitOrRollback"] == number
    assert end.is_oneway == (state is UNKNOWN)  # nobody answers those


@pytest.mark.parametrize("wrong", ["raises", "nonsense"])
async def test_failures_are_left_to_the_checker(use_network: Use, wrong: str) -> None:
    use_network(network_of(ROUTES, {A: broker(stored)}))

    def execute(message: Message, transaction_id: str) -> TransactionState:
        if wrong == "raises":
            raise OSError("no database")
        return "commit"  # type: ignore[return-value]

    async with producer(lambda message: UNKNOWN) as sender:
        done = await sender.send_in_transaction(Message("T", b"body"), execute)
    assert done.state is UNKNOWN
    assert isinstance(done.error, OSError if wrong == "raises" else TypeError)


async def test_a_half_that_is_not_safe_is_rolled_back_unseen(use_network: Use) -> None:
    unsafe = broker(lambda command: stored(command, ResponseCode.FLUSH_DISK_TIMEOUT))
    network = use_network(network_of(ROUTES, {A: unsafe}))
    called: list[str] = []

    async with producer(lambda message: UNKNOWN) as sender:
        done = await sender.send_in_transaction(
            Message("T", b"body"), lambda message, id_: called.append(id_)
        )
    assert (done.state, called) == (ROLLBACK, [])
    assert network.sent(END)[0].fields["commitOrRollback"] == "12"


async def test_an_end_that_is_refused_is_not_confirmed(use_network: Use) -> None:
    refusing = broker(stored, END_TRANSACTION=lambda command: Answer(604, remark="too late"))
    use_network(network_of(ROUTES, {A: refusing}))
    async with producer(lambda message: UNKNOWN) as sender:
        done = await sender.send_in_transaction(Message("T", b"b"), lambda message, _: COMMIT)
        assert (done.state, done.confirmed) == (COMMIT, False)
        transaction = await sender.begin(Message("T", b"b"))
        with pytest.raises(IllegalOperation, match="too late"):
            await transaction.rollback()


async def test_a_broker_with_odd_ids_does_not_undo_the_local_transaction(use_network: Use) -> None:
    odd = broker(lambda command: Answer(0, {"msgId": "?", "queueId": "0", "queueOffset": "7"}))
    use_network(network_of(ROUTES, {A: odd}))
    async with producer(lambda message: UNKNOWN) as sender:
        done = await sender.send_in_transaction(Message("T", b"b"), lambda message, _: COMMIT)
    assert (done.state, done.confirmed) == (COMMIT, False)


async def test_brokers_of_the_named_topics_know_it_from_the_start(use_network: Use) -> None:
    network = use_network(network_of(ROUTES, {A: broker(stored)}))
    async with producer(lambda message: UNKNOWN, topics=["T", "Missing"]):
        assert network.sent(RequestCode.HEART_BEAT, A)


async def test_questions_are_answered_by_ends(use_network: Use) -> None:
    network = use_network(network_of(ROUTES, {A: broker(stored)}))
    asked: list[ReceivedMessage] = []

    def check(message: ReceivedMessage) -> TransactionState:
        asked.append(message)
        if message.message_id == "bad":
            raise LookupError("no database")
        return COMMIT

    async with producer(check, topics=["T"]):
        for id_ in ("good", "bad"):
            ask(network, id_)
        ask(network, "foreign", group="other")
        await until(lambda: len(network.sent(END)) == 2)
    answers = {end.fields["msgId"]: end.fields for end in network.sent(END)}
    assert answers.keys() == {"good", "bad"} == {message.message_id for message in asked}
    assert answers["good"]["commitOrRollback"] == "8"
    assert answers["bad"]["commitOrRollback"] == "0"
    for answer in answers.values():
        assert answer["fromTransactionCheck"] == "true"
        assert (answer["commitLogOffset"], answer["tranStateTableOffset"]) == ("99", "8")
    assert asked[0].topic == "T"


async def test_a_question_without_its_message_is_passed_over(use_network: Use) -> None:
    network = use_network(network_of(ROUTES, {A: broker(stored)}))
    async with producer(lambda message: COMMIT, topics=["T"]):
        header = CheckTransaction(tran_state_table_offset=8, commit_log_offset=99)
        network.links[A][0].send_oneway(
            RequestCode.CHECK_TRANSACTION_STATE, fields=to_fields(header), body=b"nothing"
        )
        ask(network, "next")
        await until(lambda: network.sent(END))
    assert [end.fields["msgId"] for end in network.sent(END)] == ["next"]


async def test_a_transaction_that_still_runs_here_is_unknown(use_network: Use) -> None:
    """A checker would not find it in the database and have it rolled back."""
    network = use_network(network_of(ROUTES, {A: broker(stored)}))
    async with producer(lambda message: ROLLBACK) as sender:
        transaction = await sender.begin(Message("T", b"b"))
        ask(network, transaction.id)
        await until(lambda: network.sent(END))
        assert network.sent(END)[0].fields["commitOrRollback"] == "0"
        await transaction.commit()
        ask(network, transaction.id)
        await until(lambda: len(network.sent(END)) == 3)
    assert network.sent(END)[2].fields["commitOrRollback"] == "12"  # now the checker is asked


async def test_a_half_message_left_on_another_broker_is_rolled_back(use_network: Use) -> None:
    network = use_network(network_of(ROUTES, {A: broker(stored)}))
    async with producer(lambda message: COMMIT) as sender:
        done = await sender.send_in_transaction(Message("T", b"b"), lambda message, _: COMMIT)
        ask(network, done.sent.message_id, broker_name="b")
        await until(lambda: len(network.sent(END)) == 2)
    assert network.sent(END)[1].fields["commitOrRollback"] == "12"


async def test_no_more_questions_wait_than_fit(use_network: Use) -> None:
    network = use_network(network_of(ROUTES, {A: broker(stored)}))
    going = asyncio.Event()

    async def check(message: ReceivedMessage) -> TransactionState:
        await going.wait()
        return COMMIT

    async with producer(check, topics=["T"], check_concurrency=1, checks_held_max=2):
        for id_ in ("one", "two", "three"):
            ask(network, id_)
        await settle()
        going.set()
        await until(lambda: len(network.sent(END)) == 2)
        await settle()
    assert len(network.sent(END)) == 2


async def test_messages_that_break_a_rule_are_refused(use_network: Use) -> None:
    use_network(network_of(ROUTES, {A: broker(stored)}))
    with pytest.raises(ConfigError, match="check_concurrency"):
        producer(lambda message: COMMIT, check_concurrency=0)
    async with producer(lambda message: COMMIT) as sender:
        with pytest.raises(MessageRefused, match="delayed"):
            await sender.begin(Message("T", b"b", delay_level=1))
        with pytest.raises(MessageRefused, match="immunity"):
            await sender.begin(Message("T", b"b"), immunity_seconds=10**9)
