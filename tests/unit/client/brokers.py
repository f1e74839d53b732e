"""Fake servers that answer as a name server and brokers would, just enough for these tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from client.network import Answer, FakeNetwork, Serve
from rocketpost.codec.bodies.client import decode_heartbeat
from rocketpost.codec.bodies.route import encode_route
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.command import Command
from rocketpost.codec.lenient_json import encode
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
    store_ms: int = 2,
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
        store_ms=store_ms,
        store_host_bytes=HOST,
        reconsume_times=reconsume_times,
        prepared_position=0,
        body=body,
        topic=topic,
        properties_bytes=properties,
    )
    return b"".join(encode_record(value))


class QueueBroker:
    """A broker with queues in memory: pulls are held, offsets and sent-back messages kept."""

    def __init__(self, topic: str = "T", members: list[str] | None = None) -> None:
        self.topic = topic
        self.records: dict[tuple[str, int], list[bytes]] = {}
        self.offsets: dict[tuple[str, int], int] = {}
        self.min_offset = 0
        self.members = members
        self.client_ids: list[str] = []
        self.refuse: dict[int, int] = {}
        self.held: dict[tuple[str, int], list[tuple[Command, asyncio.Future[Answer]]]] = {}

    def put(
        self, body: bytes, *, queue_id: int = 0, topic: str | None = None, **fields: str
    ) -> None:
        key = topic or self.topic, queue_id
        stored = self.records.setdefault(key, [])
        offset = self.min_offset + len(stored)
        text = "".join(f"{name}\x01{value}\x02" for name, value in fields.items())
        stored.append(
            record(
                topic=key[0],
                body=body,
                properties=text.encode(),
                queue_offset=offset,
                position=offset * 100,
            )
        )
        for command, future in self.held.pop(key, []):
            if not future.done():
                future.set_result(self._pull_now(command))

    def serve(self, command: Command) -> Answer | asyncio.Future[Answer] | None:
        if command.code in self.refuse:
            return Answer(self.refuse[command.code], remark="refused")
        handler = getattr(self, f"_{RequestCode(command.code).name.lower()}", None)
        return handler(command) if handler else Answer()

    def _heart_beat(self, command: Command) -> Answer:
        client_id = decode_heartbeat(command.body).client_id
        if client_id not in self.client_ids:
            self.client_ids.append(client_id)
        return Answer()

    def _get_consumer_list_by_group(self, command: Command) -> Answer:
        ids = [*self.client_ids, *(self.members or [])]
        return Answer(body=encode({"consumerIdList": ids}))

    def _query_consumer_offset(self, command: Command) -> Answer:
        offset = self.offsets.get(_key(command))
        if offset is None:
            return Answer(ResponseCode.QUERY_NOT_FOUND)
        return Answer(fields={"offset": str(offset)})

    def _update_consumer_offset(self, command: Command) -> Answer:
        self.offsets[_key(command)] = int(command.fields["commitOffset"])
        return Answer()

    def _get_max_offset(self, command: Command) -> Answer:
        return Answer(fields={"offset": str(self.end(_key(command)))})

    def _get_min_offset(self, command: Command) -> Answer:
        return Answer(fields={"offset": str(self.min_offset)})

    def _search_offset_by_timestamp(self, command: Command) -> Answer:
        return Answer(fields={"offset": "1"})

    def _send_message_v2(self, command: Command) -> Answer:
        return stored(command)

    def _pull_message(self, command: Command) -> Answer | asyncio.Future[Answer]:
        key, offset = _key(command), int(command.fields["queueOffset"])
        if offset != self.end(key):
            return self._pull_now(command)
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.held.setdefault(key, []).append((command, future))
        return future

    def _pull_now(self, command: Command) -> Answer:
        key, offset = _key(command), int(command.fields["queueOffset"])
        end = self.end(key)
        code, next_offset, body = ResponseCode.SUCCESS, end, b""
        if not self.min_offset <= offset <= end:
            code = ResponseCode.PULL_OFFSET_MOVED
            next_offset = self.min_offset if offset < self.min_offset else end
        else:
            first = offset - self.min_offset
            found = self.records.get(key, [])[first : first + int(command.fields["maxMsgNums"])]
            next_offset, body = offset + len(found), b"".join(found)
        fields = {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": str(next_offset),
            "minOffset": str(self.min_offset),
            "maxOffset": str(end),
        }
        return Answer(code, fields, body)

    def end(self, key: tuple[str, int]) -> int:
        return self.min_offset + len(self.records.get(key, []))


def _key(command: Command) -> tuple[str, int]:
    return command.fields["topic"], int(command.fields["queueId"])
