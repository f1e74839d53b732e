"""The request that sends a message or a batch: its properties, its body and the head of its frame.

The sender adds the queue.
"""

from __future__ import annotations

import time
from typing import Final

from rocketpost.client.compression import compress
from rocketpost.client.config import ProducerConfig
from rocketpost.client.message import Message, check_message
from rocketpost.client.producer.batching import PackedBatch
from rocketpost.client.producer.flight import OutgoingSend
from rocketpost.codec.batch import encode_batch
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.send_heads import SendHeads
from rocketpost.transport.unique_id import unique_id

_TOPICS_MAX: Final = 1024
"""Number of topics whose encoded parts are kept."""
_SEND: Final = int(RequestCode.SEND_MESSAGE_V2)


class Envelopes:
    """Encodes the messages of one producer."""

    def __init__(self, group: str, config: ProducerConfig) -> None:
        self._group = group
        self._config = config
        self._heads: dict[tuple[str, int, int], SendHeads] = {}
        self._plain: dict[str, SendHeads] = {}
        """Those of uncompressed messages, by topics whose names have been checked."""
        self._plain_bytes_max = config.message_bytes_max
        if 0 < config.compress_bytes_min <= config.message_bytes_max:
            self._plain_bytes_max = config.compress_bytes_min - 1

    def one(
        self,
        message: Message,
        more_properties: str = "",
        *,
        message_id: str | None = None,
        code: int = _SEND,
    ) -> OutgoingSend:
        """Return the send of a message; compress its body if that is worthwhile.

        Raises:
            MessageRefused: The message breaks a rule.
        """
        born_ms = time.time_ns() // 1_000_000
        if message_id is None:
            message_id = unique_id(born_ms)
        body, heads = message.body, self._plain.get(message.topic)
        if (
            heads is not None
            and type(body) is bytes
            and 0 < len(body) <= self._plain_bytes_max
            and code == _SEND
        ):
            properties = message.property_text(message_id) + more_properties
            return OutgoingSend(heads, message_id, properties, body, born_ms, message.flag)
        return self._check_and_encode(message, more_properties, message_id, code, born_ms)

    def _check_and_encode(
        self, message: Message, more_properties: str, message_id: str, code: int, born_ms: int
    ) -> OutgoingSend:
        config = self._config
        check_message(message, body_bytes_max=config.message_bytes_max)
        body, sys_flag = message.body, 0
        if len(body) >= config.compress_bytes_min > 0:
            small, bits = compress(bytes(body), config.compression, config.compression_level)
            if len(small) < len(body):
                body, sys_flag = small, bits
        properties = message.property_text(message_id) + more_properties
        heads = self._heads_of(message.topic, sys_flag, code)
        if not sys_flag and code == _SEND:
            self._plain[message.topic] = heads
        return OutgoingSend(heads, message_id, properties, body, born_ms, message.flag)

    def batch(self, packed: PackedBatch) -> OutgoingSend:
        """Return the send of a batch."""
        first, items = packed.messages[0], packed.items
        wait = "true" if first.wait_store else "false"
        # Apache's broker appends these to the properties of each entry, and the last of equal names
        # counts: a unique key here would become the id of every message.
        properties = f"WAIT\x01{wait}\x02"
        heads = self._heads_of(first.topic, 0, RequestCode.SEND_BATCH_MESSAGE)
        ids, body = ",".join(packed.ids), encode_batch(items)
        born_ms = time.time_ns() // 1_000_000
        return OutgoingSend(heads, ids, properties, body, born_ms, count=len(items))

    def _heads_of(self, topic: str, sys_flag: int, code: int) -> SendHeads:
        found = self._heads.get((topic, sys_flag, code))
        if found is None:
            found = SendHeads(
                code,
                group=self._group,
                topic=topic,
                default_topic=self._config.auto_create_topic,
                default_queues=self._config.auto_create_queues,
                sys_flag=sys_flag,
                is_batch=code == RequestCode.SEND_BATCH_MESSAGE,
            )
            if len(self._heads) >= _TOPICS_MAX:
                self._heads.clear()
                self._plain.clear()
            self._heads[topic, sys_flag, code] = found
        return found
