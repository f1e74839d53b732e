from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest

from client.brokers import NAMESRV, QueueBroker, broker, network_of, route_of
from client.network import FakeNetwork
from rocketpost.client import (
    ClientError,
    ConfigError,
    LitePullConsumerConfig,
    Message,
    MessageQueue,
    MessageRefused,
    ProducerConfig,
    PullStatus,
    PushConsumerConfig,
    RouteNotFound,
    SendStatus,
    StartFrom,
)
from rocketpost.client.blocking import (
    AdminClient,
    LitePullConsumer,
    Producer,
    PullConsumer,
    PushConsumer,
    SimpleConsumer,
)
from rocketpost.codec.codes import RequestCode

A = "a:1"
ROUTES = {"T": route_of({"a": A}), "%RETRY%G": route_of({"a": A}, queues=1)}

Use = Callable[[FakeNetwork], FakeNetwork]


def loop_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "rocketpost-client-loop"]


def test_threads_share_a_producer_and_one_loop(use_network: Use) -> None:
    network = use_network(network_of(ROUTES, {A: broker()}))
    results: list[SendStatus] = []
    with (
        Producer("G", name_servers=NAMESRV) as first,
        Producer("H", name_servers=NAMESRV) as second,
    ):
        assert len(loop_threads()) == 1
        threads = [
            threading.Thread(target=lambda: results.append(first.send(Message("T", b"x")).status))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert second.send(Message("T", b"y")).status is SendStatus.SEND_OK
    assert results == [SendStatus.SEND_OK] * 8
    assert len(network.sent(RequestCode.SEND_MESSAGE_V2)) == 9
    assert loop_threads() == []


def test_everything_a_producer_does_can_be_waited_for(use_network: Use) -> None:
    use_network(network_of(ROUTES, {A: broker()}))
    with Producer("G", name_servers=NAMESRV) as producer:
        futures = [producer.send_soon(Message("T", b"x")) for _ in range(20)]
        producer.flush()
        assert {future.result(1).status for future in futures} == {SendStatus.SEND_OK}
        producer.send_oneway(Message("T", b"x"))
        assert len(producer.queues("T")) == 2
        assert len(producer.send_batch([Message("T", b"x")])) == 1
        with pytest.raises(MessageRefused):
            producer.send_soon(Message("T", b""))
        with pytest.raises(ClientError, match="running already"):
            producer.start()
    with pytest.raises(ClientError, match="not running"):
        producer.send(Message("T", b"x"))
    producer.stop()
    with pytest.raises(ConfigError):
        Producer("")


def test_pulling_and_administration_block_too(use_network: Use) -> None:
    store = QueueBroker()
    store.put(b"hello")
    use_network(network_of(ROUTES, {A: store.serve}))
    with PullConsumer("G", name_servers=NAMESRV) as consumer:
        queue = consumer.queues("T")[0]
        result = consumer.pull(queue, 0)
        assert result.status is PullStatus.FOUND
        assert [message.body for message in result.messages] == [b"hello"]
        assert consumer.max_offset(queue) == 1
        assert consumer.search_offset(queue, 0) == 1
        assert consumer.fetch_offset(queue) is None
        consumer.commit_offset(queue, 1)
        assert consumer.fetch_offset(queue) == 1
    with AdminClient(name_servers=NAMESRV) as admin:
        assert admin.call(lambda a: a.cluster.route("T")) == ROUTES["T"]


def test_a_lite_pull_consumer_polls_and_seeks(use_network: Use) -> None:
    broker = QueueBroker()
    use_network(network_of({"T": route_of({"a": A})}, {A: broker.serve}))
    queue = MessageQueue("a", 0, "T")
    config = LitePullConsumerConfig(name_servers=NAMESRV, start_from=StartFrom.FIRST)
    reader = LitePullConsumer("G", config=config)
    reader.subscribe("T")
    broker.put(b"0")
    with reader:
        assert [message.body for message in reader.poll()] == [b"0"]
        reader.commit()
        assert reader.committed(queue) == 1
        reader.seek_to_begin(queue)
        assert [message.body for message in reader.poll()] == [b"0"]
        reader.commit({queue: 0})
        reader.commit_soon()
        assert reader.assignment == reader.queues("T")
        reader.seek_to_time(queue, 0)
        reader.seek(queue, 0)
        reader.pause()
        reader.seek_to_end(queue)
        assert reader.poll(0.01) == []
        reader.resume()
        reader.unsubscribe("T")
        reader.assign([queue])
        assert reader.assignment == [queue]
    assert loop_threads() == []


def test_a_push_consumer_handles_in_threads_until_it_is_stopped(use_network: Use) -> None:
    store = QueueBroker()
    for n in range(3):
        store.put(b"%d" % n)
    use_network(network_of(ROUTES, {A: store.serve}))
    bodies: list[bytes] = []
    enough = threading.Event()

    def handle(message: object) -> None:
        bodies.append(message.body)  # type: ignore[attr-defined]
        if len(bodies) == 3:
            enough.set()

    config = PushConsumerConfig(start_from=StartFrom.FIRST)
    consumer = PushConsumer("G", name_servers=NAMESRV, config=config)
    consumer.subscribe("T", handle)
    with consumer:
        assert enough.wait(5)
        runner = threading.Thread(target=consumer.run_forever)
        runner.start()
    runner.join(5)
    assert not runner.is_alive()
    assert sorted(bodies) == [b"0", b"1", b"2"]
    assert store.offsets[("T", 0)] == 3


def test_a_forked_child_connects_again_and_the_parent_continues(use_network: Use) -> None:
    network = use_network(network_of(ROUTES, {A: broker()}))
    with Producer("G", name_servers=NAMESRV) as producer:
        mine = producer.send(Message("T", b"x")).message_id
        read_end, write_end = os.pipe()
        child = os.fork()
        if not child:
            network.requests.clear()
            result = producer.send(Message("T", b"from the child"))
            told = RequestCode.HEART_BEAT in {command.code for _, command in network.requests}
            producer.stop()
            os.write(write_end, f"{result.message_id} {told} {len(loop_threads())}".encode())
            os._exit(0)
        os.close(write_end)
        theirs, told, threads = os.read(read_end, 200).decode().split()
        os.close(read_end)
        os.waitpid(child, 0)
        assert theirs[:20] != mine[:20]
        assert (told, threads) == ("True", "0")
        assert producer.send(Message("T", b"x")).message_id[:20] == mine[:20]


def in_child(work: Callable[[], str]) -> str:
    """Return what ``work`` returns in a forked child, or what it raised."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if not child:
        try:
            said = work()
        except BaseException as error:
            said = repr(error)
        os.write(write_end, said.encode())
        os._exit(0)
    os.close(write_end)
    with open(read_end, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(child, 0)
    return said


def together(count: int, work: Callable[[], object]) -> list[str]:
    """Run ``work`` in threads that begin at the same time; return what they raised."""
    errors: list[str] = []
    begin = threading.Barrier(count)

    def run() -> None:
        begin.wait()
        try:
            work()
        except BaseException as error:
            errors.append(repr(error))

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def test_threads_of_a_forked_child_share_one_restart(use_network: Use) -> None:
    network = use_network(network_of(ROUTES, {A: broker()}))
    with Producer("G", name_servers=NAMESRV) as producer:
        producer.send(Message("T", b"x"))

        def child() -> str:
            network.requests.clear()
            started: list[object] = []
            make = producer._make
            producer._make = lambda: (started.append(None), make())[1]
            errors = together(8, lambda: producer.send(Message("T", b"x")))
            sent = network.sent(RequestCode.SEND_MESSAGE_V2)
            producer.stop()
            return f"{len(started)} started, {len(sent)} sent, {errors}"

        for _ in range(5):
            assert in_child(child) == "1 started, 8 sent, []"
        assert producer.send(Message("T", b"x")).status is SendStatus.SEND_OK


def test_a_child_whose_parent_held_the_lock_at_the_fork_continues(use_network: Use) -> None:
    use_network(network_of(ROUTES, {A: broker()}))
    with Producer("G", name_servers=NAMESRV) as producer:
        producer.send(Message("T", b"x"))
        with producer._lock:
            assert in_child(lambda: producer.send(Message("T", b"x")).status.name) == "SEND_OK"


def test_a_child_of_a_child_continues_too(use_network: Use) -> None:
    use_network(network_of(ROUTES, {A: broker()}))

    def send() -> str:
        return producer.send(Message("T", b"x")).status.name

    with Producer("G", name_servers=NAMESRV) as producer:
        assert in_child(lambda: in_child(send)) == "SEND_OK"
        assert in_child(lambda: send() + in_child(send)) == "SEND_OK" * 2


def test_a_named_client_has_an_id_of_its_own_in_a_child(use_network: Use) -> None:
    network = use_network(network_of(ROUTES, {A: broker()}))
    config = ProducerConfig(name_servers=NAMESRV, instance_name="web")
    with Producer("G", config=config) as producer:
        producer.send(Message("T", b"x"))

        def child() -> str:
            network.requests.clear()
            producer.send(Message("T", b"x"))
            producer.flush()
            (beat,) = network.sent(RequestCode.HEART_BEAT)
            return f"{os.getpid()} {bytes(beat.body).decode()}"

        pid, _, beat = in_child(child).partition(" ")
        assert f"@web#{pid}" in beat
        (beat,) = network.sent(RequestCode.HEART_BEAT)
        assert b'@web"' in beat.body


def test_a_push_consumer_stays_with_its_process(use_network: Use) -> None:
    use_network(network_of(ROUTES, {A: QueueBroker().serve}))
    consumer = PushConsumer("G", name_servers=NAMESRV)
    consumer.subscribe("T", print)
    with consumer:
        assert "belongs to the process that forked" in in_child(lambda: str(consumer.run_forever()))

        def child() -> str:
            consumer.stop()
            consumer.start()
            consumer.stop()
            return "started and stopped"

        assert in_child(child) == "started and stopped"
        assert consumer.queues is not None


def test_a_child_receives_what_its_parent_subscribed_to(use_network: Use) -> None:
    use_network(network_of(ROUTES, {A: broker()}))
    with SimpleConsumer("G", name_servers=NAMESRV) as consumer:
        consumer.subscribe("T", "a || b")

        def child() -> str:
            return str(consumer._now(lambda inner: list(inner._subscriptions)))

        assert in_child(child) == "['T']"


def test_sends_of_a_thread_share_wake_ups_and_keep_their_order(
    use_network: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = use_network(network_of(ROUTES, {A: broker()}))
    queue = MessageQueue("a", 0, "T")
    with Producer("G", name_servers=NAMESRV) as producer:
        producer.send(Message("T", b"first"))
        assert producer._thread is not None
        loop, wakes = producer._thread.loop, []
        wake = loop.call_soon_threadsafe
        monkeypatch.setattr(loop, "call_soon_threadsafe", lambda *a: (wakes.append(a), wake(*a))[1])
        holding = threading.Event()
        wake(holding.wait)  # the loop is busy: everything has to be handed over meanwhile
        futures = [producer.send_soon(Message("T", b"%d" % n), queue=queue) for n in range(300)]
        assert len(wakes) == 1
        holding.set()
        producer.send_oneway(Message("T", b"last"), queue=queue)
        producer.flush()
        assert {future.result(1).status for future in futures} == {SendStatus.SEND_OK}
    bodies = [bytes(command.body) for command in network.sent(RequestCode.SEND_MESSAGE_V2)]
    assert bodies == [b"first", *(b"%d" % n for n in range(300)), b"last"]


def test_a_thread_waits_while_too_much_is_handed_over(use_network: Use) -> None:
    use_network(network_of(ROUTES, {A: broker()}))
    config = ProducerConfig(name_servers=NAMESRV, in_flight_max=5)
    with Producer("G", config=config) as producer:
        producer.send(Message("T", b"x"))
        assert producer._thread is not None
        holding = threading.Event()
        producer._thread.loop.call_soon_threadsafe(holding.wait)
        futures = [producer.send_soon(Message("T", b"x")) for _ in range(5)]
        sixth = threading.Thread(
            target=lambda: futures.append(producer.send_soon(Message("T", b"x")))
        )
        sixth.start()
        sixth.join(0.05)
        assert sixth.is_alive()
        holding.set()
        sixth.join()
        assert [future.result(1).status for future in futures] == [SendStatus.SEND_OK] * 6


def test_stopping_sends_what_was_handed_over(use_network: Use) -> None:
    use_network(network_of(ROUTES, {A: broker()}))
    producer = Producer("G", name_servers=NAMESRV)
    producer.start()
    futures = [producer.send_soon(Message("T", b"x")) for _ in range(200)]
    unknown = producer.send_soon(Message("Unknown", b"x"))
    producer.stop()
    assert {future.result(0).status for future in futures} == {SendStatus.SEND_OK}
    with pytest.raises(RouteNotFound):
        unknown.result(0)
    with pytest.raises(ClientError, match="not running"):
        producer.send_soon(Message("T", b"x"))
