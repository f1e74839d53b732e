"""Stored messages and reports like those of real brokers and consumers."""

from __future__ import annotations

from rocketpost.client.message import ReceivedMessage
from rocketpost.codec.properties import encode_properties
from rocketpost.codec.record import Record, decode_record, encode_record, pack_host
from rocketpost.model.route import MessageQueue

# As a Java client writes it: queues are object literals as keys.
RUNNING_INFO = (
    b'{"mqTable":{{"brokerName":"broker-a","queueId":3,"topic":"Demo"}:{"cachedMsgCount":0,'
    b'"commitOffset":1,"droped":false}},"properties":{"language":"JAVA",'
    b'"PROP_CLIENT_VERSION":"V5_3_3"},"statusTable":{"Demo":{"consumeFailedMsgs":2,'
    b'"consumeFailedTPS":0.5,"consumeOKTPS":1.0,"consumeRT":3.25,"pullRT":0.0,"pullTPS":0.0}},'
    b'"subscriptionSet":[{"classFilterMode":false,"codeSet":[],"expressionType":"TAG",'
    b'"subString":"A || B","subVersion":1,"tagsSet":["A","B"],"topic":"Demo"},'
    b'{"subString":"*","topic":"%RETRY%g"}]}'
)


def make_message(
    body: bytes = b"body-0", broker: str = "broker-a", **properties: str
) -> ReceivedMessage:
    """Return a message at offset 5 of queue 1 of the topic Demo."""
    record = Record(
        size=0,
        magic=0,
        body_crc=0,
        queue_id=1,
        flag=0,
        queue_offset=5,
        position=786,
        sys_flag=0,
        born_ms=1_794_784_528_182,
        born_host_bytes=pack_host("127.0.0.1", 44872),
        store_ms=1_794_784_528_244,
        store_host_bytes=pack_host("127.0.0.1", 34141),
        reconsume_times=0,
        prepared_position=0,
        body=body,
        topic="Demo",
        properties_bytes=encode_properties(properties),
    )
    stored = decode_record(b"".join(encode_record(record)))
    return ReceivedMessage(stored, MessageQueue(broker, 1, "Demo"), 8)
