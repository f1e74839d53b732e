"""Header fields and body of the request that sends a message or a batch.

The fields have the one-letter names of SEND_MESSAGE_V2. The sender adds the queue.
"""

from __future__ import annotations

import time

from rocketpost.client.compression import compress
from rocketpost.client.config import ProducerConfig
from rocketpost.client.message import Message, check_message
from rocketpost.client.producer.batching import PackedBatch
from rocketpost.client.producer.flight import OutgoingSend
from rocketpost.codec.batch import encode_batch
from rocketpost.codec.codes import RequestCode
from rocketpost.transport.unique_id import unique_id


class Envelopes:
    """Encodes the messages of one producer."""

    def __init__(self, group: str, config: ProducerConfig) -> None:
        self._group = group
        self._config = config

    def one(
        self, message: Message, more_properties: str = "", *, message_id: str | None = None
    ) -> OutgoingSend:
        """Return the send of a message; compress its body if that is worthwhile.

        Raises:
            MessageRefused: The message breaks a rule.
        """
        config = self._config
        check_message(message, body_bytes_max=config.message_bytes_max)
        if message_id is None:
            message_id = unique_id()
        body, sys_flag = message.body, 0
        if len(body) >= config.compress_bytes_min > 0:
            small, bits = compress(bytes(body), config.compression, config.compression_level)
            if len(small) < len(body):
                body, sys_flag = small, bits
        fields = self._fields(message.topic, message.property_text(message_id) + more_properties)
        fields["f"] = str(sys_flag)
        fields["h"] = str(message.flag)
        return OutgoingSend(RequestCode.SEND_MESSAGE_V2, message.topic, message_id, fields, body)

    def batch(self, packed: PackedBatch) -> OutgoingSend:
        """Return the send of a batch."""
        first = packed.messages[0]
        wait = "true" if first.wait_store else "false"
        # Apache's broker appends these to the properties of each entry, and the last of equal names
        # counts: a unique key here would become the id of every message.
        fields = self._fields(first.topic, f"WAIT\x01{wait}\x02")
        fields["m"] = "true"
        code, body = RequestCode.SEND_BATCH_MESSAGE, encode_batch(packed.items)
        return OutgoingSend(
            code, first.topic, ",".join(packed.ids), fields, body, len(packed.items)
        )

    def _fields(self, topic: str, properties: str) -> dict[str, str]:
        config = self._config
        return {
            "a": self._group,
            "b": topic,
            "c": config.auto_create_topic,
            "d": str(config.auto_create_queues),
            "f": "0",
            "g": str(time.time_ns() // 1_000_000),
            "h": "0",
            "i": properties,
            "j": "0",
            "k": "false",
            "m": "false",
        }
