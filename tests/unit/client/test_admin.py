from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from msgspec.structs import replace

from client.brokers import HOST, NAMESRV, broker, name_server, record, route_of
from client.network import Answer, FakeNetwork
from rocketpost.client import ClientError, ConnectionLost, MessageQueue, RouteNotFound
from rocketpost.client.admin import AdminClient
from rocketpost.codec.bodies.cluster import ClusterInfo, encode_cluster
from rocketpost.codec.bodies.group import GroupNames, GroupTableBody, encode_group_table
from rocketpost.codec.bodies.offset import (
    ConsumeState,
    QueueProgress,
    encode_consume_state,
    encode_queue_offsets,
)
from rocketpost.codec.bodies.topic import (
    TopicQueueState,
    TopicState,
    TopicTableBody,
    encode_topic_state,
    encode_topic_table,
)
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.command import Command
from rocketpost.codec.faults import (
    ConsumerNotOnline,
    GroupNotExist,
    IllegalOperation,
    NoMessage,
    TopicNotExist,
)
from rocketpost.codec.lenient_json import decode_any, encode
from rocketpost.codec.record import message_id, pack_host
from rocketpost.errors import AlreadyExists
from rocketpost.model.group import GroupConfig
from rocketpost.model.route import BrokerData
from rocketpost.model.topic import TopicChange, TopicConfig

A, B = "127.0.0.1:10911", "b:1"
Q0, Q1 = MessageQueue("a", 0, "T"), MessageQueue("b", 0, "T")
BOTH = route_of({"a": A, "b": B})

Use = Callable[[FakeNetwork], FakeNetwork]


def network(
    at_a: dict[str, Callable[[Command], Answer]] | None = None,
    at_b: dict[str, Callable[[Command], Answer]] | None = None,
    at_ns: dict[int, Answer] | None = None,
) -> FakeNetwork:
    fake = FakeNetwork()
    routes = name_server({"T": BOTH, "%RETRY%G": BOTH})

    def serve_names(command: Command) -> Answer:
        answer = (at_ns or {}).get(command.code)
        if answer is None:
            answer = routes(command)
        assert isinstance(answer, Answer)
        return answer

    fake.servers = {NAMESRV: serve_names, A: broker(**(at_a or {})), B: broker(**(at_b or {}))}
    return fake


def admin() -> AdminClient:
    return AdminClient(name_servers=NAMESRV)


async def test_masters_of_a_cluster_are_found(use_network: Use) -> None:
    info = ClusterInfo(
        broker_addr_table={
            "a": BrokerData(broker_name="a", broker_addrs={0: A, 1: "s:1"}, cluster="C"),
            "b": BrokerData(broker_name="b", broker_addrs={1: B}, cluster="C"),
        },
        cluster_addr_table={"C": ["a", "b"]},
    )
    answer = Answer(body=encode_cluster(info))
    use_network(network(at_ns={RequestCode.GET_BROKER_CLUSTER_INFO: answer}))
    async with admin() as client:
        assert await client.cluster.masters("C") == [A]
        assert await client.cluster.broker_addresses("a") == {0: A, 1: "s:1"}
        with pytest.raises(RouteNotFound, match="known are: C"):
            await client.cluster.masters("D")


async def test_settings_of_name_servers_are_read_and_written(use_network: Use) -> None:
    fake = use_network(
        network(
            at_ns={
                RequestCode.PUT_KV_CONFIG: Answer(),
                RequestCode.GET_KV_CONFIG: Answer(ResponseCode.QUERY_NOT_FOUND),
                RequestCode.WIPE_WRITE_PERM_OF_BROKER: Answer(fields={"wipeTopicCount": "3"}),
                RequestCode.GET_NAMESRV_CONFIG: Answer(body=b"listenPort=9876\n"),
            }
        )
    )
    async with admin() as client:
        await client.cluster.put_kv("N", "k", "v")
        assert await client.cluster.kv("N", "k") is None
        assert await client.cluster.wipe_write_perm("a") == {NAMESRV: 3}
        assert await client.cluster.config() == {NAMESRV: {"listenPort": "9876"}}
    fields = fake.sent(RequestCode.PUT_KV_CONFIG)[0].fields
    assert fields == {"namespace": "N", "key": "k", "value": "v"}


def shown(config: TopicConfig) -> Callable[[Command], Answer]:
    """Serve GET_TOPIC_CONFIG of a topic that is there."""
    return lambda command: Answer(body=encode(config))


def absent(command: Command) -> Answer:
    """Serve GET_TOPIC_CONFIG of a topic that is not there."""
    return Answer(ResponseCode.TOPIC_NOT_EXIST)


def groups_shown(*configs: GroupConfig) -> Callable[[Command], Answer]:
    table = {config.group_name: config for config in configs}
    body = encode_group_table(GroupTableBody(subscription_group_table=table))
    return lambda command: Answer(body=body)


async def test_topics_are_created_on_the_given_brokers(use_network: Use) -> None:
    at_ns = {RequestCode.DELETE_TOPIC_IN_NAMESRV: Answer()}
    fake = use_network(network({"GET_TOPIC_CONFIG": absent}, at_ns=at_ns))
    async with admin() as client:
        config = TopicConfig(
            topic_name="New", read_queue_nums=3, attributes={"+message.type": "FIFO", "x": "1"}
        )
        await client.topics.create(A, config)
        await client.topics.delete("New", [A, B])
    [create] = fake.sent(RequestCode.UPDATE_AND_CREATE_TOPIC)
    assert (create.fields["topic"], create.fields["readQueueNums"]) == ("New", "3")
    assert create.fields["attributes"] == "+message.type=FIFO,+x=1"
    assert len(fake.sent(RequestCode.DELETE_TOPIC_IN_BROKER)) == 2


async def test_existing_topics_and_groups_are_not_created_again(use_network: Use) -> None:
    topic = TopicConfig(topic_name="T", read_queue_nums=3, attributes={"x": "1"})
    group = GroupConfig(group_name="G", attributes={"y": "1"})
    fake = use_network(
        network(
            {
                "GET_TOPIC_CONFIG": shown(topic),
                "GET_ALL_SUBSCRIPTIONGROUP_CONFIG": groups_shown(group),
            }
        )
    )
    async with admin() as client:
        await client.topics.create(A, replace(topic, attributes={"+x": "1"}))
        await client.groups.create(A, replace(group, attributes={"+y": "1"}))
        with pytest.raises(AlreadyExists, match=r"topic T .*readQueueNums=3->8"):
            await client.topics.create(A, replace(topic, read_queue_nums=8))
        with pytest.raises(AlreadyExists, match=r"group G .*y=1->unset"):
            await client.groups.create(A, GroupConfig(group_name="G"))
    assert not fake.sent(RequestCode.UPDATE_AND_CREATE_TOPIC)
    assert not fake.sent(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP)


async def test_an_update_sends_what_it_leaves_out_as_it_is(use_network: Use) -> None:
    topic = TopicConfig(
        topic_name="T", read_queue_nums=16, perm=4, order=True, attributes={"x": "1", "y": "2"}
    )
    group = GroupConfig(group_name="G", retry_queue_nums=4, attributes={"x": "1", "y": "2"})
    fake = use_network(
        network(
            {
                "GET_TOPIC_CONFIG": shown(topic),
                "GET_ALL_SUBSCRIPTIONGROUP_CONFIG": groups_shown(group),
            }
        )
    )
    async with admin() as client:
        after = await client.topics.update(A, "T", attributes={"x": None, "z": "3"})
        assert after == replace(topic, attributes={"y": "2", "z": "3"})
        changed = await client.groups.update(A, "G", retry_max_times=3, attributes={"x": None})
        assert changed == replace(group, retry_max_times=3, attributes={"y": "2"})
        assert await client.topics.update(A, "T", perm=4) == topic  # nothing is sent
        with pytest.raises(GroupNotExist):
            await client.groups.update(A, "H", retry_max_times=3)
    [sent] = fake.sent(RequestCode.UPDATE_AND_CREATE_TOPIC)
    assert sent.fields["readQueueNums"] == sent.fields["writeQueueNums"] == "16"
    assert (sent.fields["perm"], sent.fields["order"]) == ("4", "true")
    assert sent.fields["attributes"] == "-x,+z=3"
    [body] = [
        decode_any(command.body)
        for command in fake.sent(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP)
    ]
    assert isinstance(body, dict)
    assert (body["retryQueueNums"], body["retryMaxTimes"]) == (4, 3)
    assert body["attributes"] == {"-x": ""}


async def test_a_broker_that_cannot_show_one_topic_shows_all(use_network: Use) -> None:
    table = TopicTableBody(topic_config_table={"T": TopicConfig(topic_name="T", perm=2)})
    use_network(
        network(
            {
                "GET_TOPIC_CONFIG": lambda command: Answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED),
                "GET_ALL_TOPIC_CONFIG": lambda command: Answer(body=encode_topic_table(table)),
            }
        )
    )
    async with admin() as client:
        assert (await client.topics.config(A, "T")).perm == 2
        with pytest.raises(TopicNotExist):
            await client.topics.config(A, "U")


@pytest.mark.parametrize(
    ("groups", "offset", "expected"),
    [
        ([], 0, "no group has read the 5 messages in queue 1"),
        (["G"], 3, r"messages in queue 1 have not been consumed by G \(2\)"),
        (["G"], 5, None),
    ],
)
async def test_an_update_hides_no_messages_at_any_broker(
    use_network: Use, groups: list[str], offset: int, expected: str | None
) -> None:
    two, q1 = TopicConfig(topic_name="T", read_queue_nums=2), MessageQueue("a", 1, "T")
    state = TopicState(
        queues={Q0: TopicQueueState(max_offset=9), q1: TopicQueueState(max_offset=5)}
    )
    progress = ConsumeState(queues={q1: QueueProgress(broker_offset=5, consumer_offset=offset)})
    fake = use_network(
        network(
            {
                "GET_TOPIC_CONFIG": shown(two),
                "GET_TOPIC_STATS_INFO": lambda command: Answer(body=encode_topic_state(state)),
                "QUERY_TOPIC_CONSUME_BY_WHO": lambda command: Answer(
                    body=encode(GroupNames(groups))
                ),
                "GET_CONSUME_STATS": lambda command: Answer(body=encode_consume_state(progress)),
            }
        )
    )
    async with admin() as client:
        small = partial(client.topics.update, A, "T", read_queue_nums=1, write_queue_nums=1)
        if expected is None:
            assert (await small()).read_queue_nums == 1
            return
        with pytest.raises(IllegalOperation, match=expected):
            await small()
        change = TopicChange(topic_name="T", read_queue_nums=1)
        table = TopicTableBody(topic_config_table={"T": two})
        fake.servers[A] = broker(
            GET_ALL_TOPIC_CONFIG=lambda command: Answer(body=encode_topic_table(table)),
            GET_TOPIC_STATS_INFO=lambda command: Answer(body=encode_topic_state(state)),
            QUERY_TOPIC_CONSUME_BY_WHO=lambda command: Answer(body=encode(GroupNames(groups))),
            GET_CONSUME_STATS=lambda command: Answer(body=encode_consume_state(progress)),
            GET_TOPIC_CONFIG=shown(two),
        )
        with pytest.raises(IllegalOperation, match=expected):
            await client.topics.put_many(A, [change])
        assert not fake.sent(RequestCode.UPDATE_AND_CREATE_TOPIC)
        await small(force=True)
        await client.topics.put_many(A, [change], force=True)
    [forced] = fake.sent(RequestCode.UPDATE_AND_CREATE_TOPIC)
    assert (forced.fields["readQueueNums"], forced.fields["force"]) == ("1", "true")
    [listed] = fake.sent(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST)
    assert listed.fields["force"] == "true"


async def test_states_of_all_brokers_are_put_together(use_network: Use) -> None:
    def state(queue: MessageQueue) -> Callable[[Command], Answer]:
        value = TopicState(queues={queue: TopicQueueState(max_offset=5)}, put_tps=1.5)
        return lambda command: Answer(body=encode_topic_state(value))

    def progress(queue: MessageQueue) -> Callable[[Command], Answer]:
        value = ConsumeState(queues={queue: QueueProgress(broker_offset=9)}, consume_tps=2.0)
        return lambda command: Answer(body=encode_consume_state(value))

    def reset(queue: MessageQueue) -> Callable[[Command], Answer]:
        return lambda command: Answer(body=encode_queue_offsets({queue: 4}))

    use_network(network(
        {"GET_TOPIC_STATS_INFO": state(Q0), "GET_CONSUME_STATS": progress(Q0),
         "INVOKE_BROKER_TO_RESET_OFFSET": reset(Q0)},
        {"GET_TOPIC_STATS_INFO": state(Q1), "GET_CONSUME_STATS": progress(Q1),
         "INVOKE_BROKER_TO_RESET_OFFSET": reset(Q1)},
    ))  # fmt: skip
    async with admin() as client:
        topic = await client.topics.state("T")
        assert (set(topic.queues), topic.put_tps) == ({Q0, Q1}, 3.0)
        group = await client.groups.progress("G")
        assert (set(group.queues), group.consume_tps) == ({Q0, Q1}, 4.0)
        assert await client.groups.reset_offset("G", "T", 0) == {Q0: 4, Q1: 4}


@pytest.mark.parametrize(
    ("timestamp", "force", "expected"),
    [(-1, True, {Q0: 9}), (-1, False, {}), (5, False, {Q0: 1}), (5, True, {Q0: 1})],
)
async def test_where_members_should_reset_and_none_is_online_offsets_are_stored(
    use_network: Use, timestamp: int, force: bool, expected: dict[MessageQueue, int]
) -> None:
    state = ConsumeState(queues={Q0: QueueProgress(broker_offset=9, consumer_offset=4)})
    fake = use_network(network(
        {"INVOKE_BROKER_TO_RESET_OFFSET": lambda _: Answer(ResponseCode.CONSUMER_NOT_ONLINE),
         "GET_CONSUME_STATS": lambda _: Answer(body=encode_consume_state(state)),
         "SEARCH_OFFSET_BY_TIMESTAMP": lambda _: Answer(fields={"offset": "1"})},
        {"INVOKE_BROKER_TO_RESET_OFFSET": lambda _: Answer(body=encode_queue_offsets({Q1: 2}))},
    ))  # fmt: skip
    async with admin() as client:
        stand = await client.groups.reset_offset("G", "T", timestamp, force=force)
    assert stand == {Q0: 4, Q1: 2} | expected
    stored = [each.fields["commitOffset"] for each in fake.sent(RequestCode.UPDATE_CONSUMER_OFFSET)]
    assert stored == [str(offset) for offset in expected.values()]


async def test_a_group_that_is_online_anywhere_is_online(use_network: Use) -> None:
    offline = {
        "GET_CONSUMER_CONNECTION_LIST": lambda command: Answer(ResponseCode.CONSUMER_NOT_ONLINE)
    }
    online = {
        "GET_CONSUMER_CONNECTION_LIST": lambda command: Answer(
            body=b'{"connectionSet":[{"clientId":"c","language":"JAVA","version":479}]}'
        )
    }
    use_network(network(offline, online))
    async with admin() as client:
        connections = await client.groups.connections("G")
        assert [each.client_id for each in connections.connection_set] == ["c"]
    use_network(network(offline, offline))
    async with admin() as client:
        with pytest.raises(ConsumerNotOnline):
            await client.groups.connections("G")


async def test_groups_and_settings_travel_as_java_writes_them(use_network: Use) -> None:
    fake = use_network(
        network(
            {
                "GET_BROKER_CONFIG": lambda command: Answer(body=b"brokerName=a\nx=1\\:2\n"),
                "GET_ALL_SUBSCRIPTIONGROUP_CONFIG": groups_shown(),
            }
        )
    )
    async with admin() as client:
        await client.groups.create(A, GroupConfig(group_name="G", retry_max_times=3))
        await client.brokers.update_config(A, {"k": "v"})
        assert await client.brokers.config(A) == {"brokerName": "a", "x": "1:2"}
    [create] = fake.sent(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP)
    assert b'"groupName":"G"' in create.body
    assert b'"retryMaxTimes":3' in create.body
    assert fake.sent(RequestCode.UPDATE_BROKER_CONFIG)[0].body == b"k=v\n"


async def test_messages_are_found_by_key_and_collisions_left_out(use_network: Use) -> None:
    hit = record(properties=b"KEYS\x01k1 k2\x02UNIQ_KEY\x01U\x02", position=7)
    collision = record(properties=b"KEYS\x01other\x02")
    elsewhere = record(topic="Other", properties=b"KEYS\x01k1\x02")
    fake = use_network(network(
        {"QUERY_MESSAGE": lambda command: Answer(body=hit + collision + elsewhere)},
        {"QUERY_MESSAGE": lambda command: Answer(ResponseCode.QUERY_NOT_FOUND)},
    ))  # fmt: skip
    async with admin() as client:
        [message] = await client.messages.by_key("T", "k1")
        assert (message.message_id, message.queue.broker_name) == ("U", "a")
        assert [m.position for m in await client.messages.by_unique_id("T", "U")] == [7]
        assert await client.messages.by_unique_id("T", "V") == []
        with pytest.raises(NoMessage):
            await client.messages.by_id("T", "V")
    wanted = [command.fields["_UNIQUE_KEY_QUERY"] for command in fake.sent(12)]
    assert set(wanted) == {"true", "false"}


async def test_a_query_needs_one_broker_that_answers(use_network: Use) -> None:
    hit = record(properties=b"KEYS\x01k\x02")
    fake = use_network(network({"QUERY_MESSAGE": lambda command: Answer(body=hit)}))
    fake.cut(B)
    async with admin() as client:
        assert len(await client.messages.by_key("T", "k")) == 1
        fake.cut(A)
        with pytest.raises(ClientError):
            await client.messages.by_key("T", "k")


async def test_an_offset_id_leads_to_the_broker_in_it(use_network: Use) -> None:
    stored = record(position=64, body=b"found")
    fake = use_network(network({"VIEW_MESSAGE_BY_ID": lambda command: Answer(body=stored)}))
    offset_id = message_id(HOST, 64)
    async with admin() as client:
        assert (await client.messages.by_offset_id(offset_id)).body == b"found"
        assert (await client.messages.by_id("T", offset_id)).body == b"found"
    assert fake.sent(RequestCode.VIEW_MESSAGE_BY_ID, A)[0].fields["offset"] == "64"


async def test_slaves_are_asked_for_the_message_of_a_dead_master(use_network: Use) -> None:
    copies = {
        "s:1": record(position=64, body=b"of another master").replace(
            HOST, pack_host("10.0.0.9", 1)
        ),
        "s:2": record(position=64, body=b"found"),
    }
    slaves = BrokerData(broker_name="a", broker_addrs={2: "s:2", 1: "s:1"})
    info = ClusterInfo(broker_addr_table={"a": slaves}, cluster_addr_table={"C": ["a"]})
    cluster = Answer(body=encode_cluster(info))
    fake = use_network(network(at_ns={RequestCode.GET_BROKER_CLUSTER_INFO: cluster}))
    for address, stored in copies.items():
        fake.servers[address] = broker(VIEW_MESSAGE_BY_ID=lambda _, at=stored: Answer(body=at))
    fake.cut(A)
    async with admin() as client:
        message = await client.messages.by_offset_id(message_id(HOST, 64))
        assert (message.body, message.queue.broker_name) == (b"found", "a")
        fake.cut("s:2")
        with pytest.raises(ConnectionLost):
            await client.messages.by_offset_id(message_id(HOST, 64))


async def test_an_admin_client_that_is_not_running_says_so() -> None:
    with pytest.raises(ClientError, match="not running"):
        _ = admin().cluster


@pytest.mark.parametrize(
    ("a_second", "count_max", "found"),
    [(10, 64, 64), (10, 150, 150), (10, 999, 200), (70, 999, 124)],
)
async def test_messages_are_queried_by_key_page_by_page(
    use_network: Use, a_second: int, count_max: int, found: int, caplog: pytest.LogCaptureFixture
) -> None:
    stored = [
        record(properties=b"KEYS\x01k\x02", position=number, store_ms=number // a_second * 1000)
        for number in range(200)
    ]

    def query(command: Command) -> Answer:
        end, count = int(command.fields["endTimestamp"]), int(command.fields["maxNum"])
        assert count <= 64
        hits = [each for n, each in enumerate(stored) if n // a_second * 1000 <= end]
        return Answer(body=b"".join(hits[-1 : -1 - count : -1]))

    use_network(network({"QUERY_MESSAGE": query}, {"QUERY_MESSAGE": lambda _: Answer(22)}))
    async with admin() as client:
        messages = await client.messages.by_key("T", "k", count_max=count_max)
    assert [message.position for message in messages] == list(range(200 - found, 200))
    assert ("some are omitted" in caplog.text) == (a_second > 64)
