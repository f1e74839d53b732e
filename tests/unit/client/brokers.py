"""Fake servers that answer as a name server and brokers would, just enough for these tests."""

from __future__ import annotations

from collections.abc import Callable

from client.network import Answer, FakeNetwork, Serve
from rocketpost.codec.bodies.route import encode_route
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.command import Command
from rocketpost.codec.record import Record, encode_record, pack_host
from rocketpost.model.route import BrokerData, QueueData, TopicRoute

NAMESRV = "ns:1"
HOST = pack_host("127.0.0.1", 10911)


def route_of(brokers: dict[str, str], *, queues: int = 2, perm: int = 6) -> TopicRoute:
    """Return a route: broker names to their masters' addresses."""
    return TopicRoute(
        broker_datas=[
            BrokerData(broker_name=name, broker_addrs={0: address}, cluster="C")
            for name, address in brokers.items()
        ],
        queue_datas=[
            QueueData(broker_name=name, perm=perm, read_queue_nums=queues, write_queue_nums=queues)
            for name in brokers
        ],
    )


def name_server(routes: dict[str, TopicRoute]) -> Serve:
    def serve(command: Command) -> Answer:
        assert command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC
        route = routes.get(command.fields["topic"])
        if route is None:
            return Answer(ResponseCode.TOPIC_NOT_EXIST, remark="no such topic")
        return Answer(body=encode_route(route, standard=True))

    return serve


def broker(send: Callable[[Command], Answer | None] | None = None, **others: Serve) -> Serve:
    """Return a broker that stores nothing: sends succeed unless ``send`` says otherwise."""
    by_code = {int(RequestCode[name]): serve for name, serve in others.items()}

    def serve(command: Command) -> Answer | None:
        if command.code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
            return send(command) if send else stored(command)
        if command.code in by_code:
            return by_code[command.code](command)
        return Answer()

    return serve


def stored(command: Command, code: int = 0) -> Answer:
    fields = {"msgId": "AA", "queueId": command.fields["e"], "queueOffset": "7"}
    return Answer(code, fields)


def network_of(
    routes: dict[str, TopicRoute], brokers: dict[str, Serve], namesrv: str = NAMESRV
) -> FakeNetwork:
    network = FakeNetwork()
    network.servers = {namesrv: name_server(routes), **brokers}
    return network


def record(
    *,
    topic: str = "T",
    body: bytes = b"hello",
    properties: bytes = b"",
    queue_offset: int = 0,
    position: int = 0,
    sys_flag: int = 0,
    reconsume_times: int = 0,
) -> bytes:
    value = Record(
        size=0,
        magic=0,
        body_crc=0,
        queue_id=0,
        flag=0,
        queue_offset=queue_offset,
        position=position,
        sys_flag=sys_flag,
        born_ms=1,
        born_host_bytes=HOST,
        store_ms=2,
        store_host_bytes=HOST,
        reconsume_times=reconsume_times,
        prepared_position=0,
        body=body,
        topic=topic,
        properties_bytes=properties,
    )
    return b"".join(encode_record(value))
