"""Frame heads of one producer's sends to one topic, put together from encoded parts.

    {"code":310,"extFields":{"a":group,"b":topic,"c":..,"d":..,"f":..,     same for all
    "g":time,"h":flag,"i":properties                                       of the message
    ,"j":..,"k":..,"m":..,"e":queue,"n":broker},"flag":0,..,"opaque":      of the queue
    opaque                                                                 of the request
    ,"serializeTypeCurrentRPC":"JSON","version":..}                        same for all

The bytes are those of ``codec.command`` for the same fields, at a third of its cost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from rocketpost.codec.codes import LANGUAGE, VERSION
from rocketpost.codec.command import JSON
from rocketpost.codec.frames import FRAME_BYTES_MAX, encode_prefix
from rocketpost.kernel import FORM
from rocketpost.kernel.client_sends import encode_head
from rocketpost.model.route import MessageQueue

_QUEUES_MAX: Final = 4096
_END: Final = b',"serializeTypeCurrentRPC":"JSON","version":%d}' % VERSION
_IS_COMPILED: Final = FORM.is_compiled
_encode: Final[Callable[[object], bytes]] = msgspec.json.Encoder().encode


class SendHeads:
    """Encodes the heads of SEND_MESSAGE_V2 and its kin.

    Args:
        code: The request code.
        group: The producer group.
        topic: The topic.
        default_topic: The template of a topic that does not exist yet.
        default_queues: The number of queues of such a topic.
        sys_flag: The sysFlag of the messages.
        is_batch: Whether the body is a batch.
        reconsume_times: Number of earlier deliveries of the messages.
        reconsume_times_max: Number of them after which a message is a dead letter, if it has one.
    """

    def __init__(
        self,
        code: int,
        *,
        group: str,
        topic: str,
        default_topic: str,
        default_queues: int,
        sys_flag: int = 0,
        is_batch: bool = False,
        reconsume_times: int = 0,
        reconsume_times_max: int | None = None,
    ) -> None:
        self.code = code
        self.topic = topic
        self._constant = {
            "a": group,
            "b": topic,
            "c": default_topic,
            "d": str(default_queues),
            "f": str(sys_flag),
        }
        self._rest = {"j": str(reconsume_times), "k": "false"}
        if reconsume_times_max is not None:
            self._rest["l"] = str(reconsume_times_max)
        self._rest["m"] = "true" if is_batch else "false"
        self._start = b'{"code":%d,"extFields":%b,"g":"' % (code, _encode_text(self._constant)[:-1])
        self._fixed_bytes = len(self._start) + len(_END)
        self._tails: dict[MessageQueue, bytes] = {}

    def encode(
        self,
        queue: MessageQueue,
        opaque: int,
        born_ms: int,
        flag: int,
        properties: str,
        sequence: str | None,
        body_bytes: int,
    ) -> bytes:
        """Return the head of a frame: everything but the body.

        Raises:
            LocalProtocolError: The frame would be too large.
        """
        tail = self._tails.get(queue)
        if tail is None:
            tail = self._tail(queue)
        more = b"" if sequence is None else b',"sequence":' + _encode_text(sequence)
        try:
            if _IS_COMPILED:
                head = encode_head(
                    self._start, born_ms, flag, properties, more, tail, opaque, _END, body_bytes
                )
                if len(head) + body_bytes <= FRAME_BYTES_MAX:
                    return head
            text = _encode(properties) + more
        except UnicodeEncodeError:
            text = _encode_text(properties) + more
        message = b'%d","h":"%d","i":' % (born_ms, flag)
        number = b"%d" % opaque
        size = self._fixed_bytes + len(message) + len(text) + len(tail) + len(number)
        prefix = encode_prefix(JSON, size, body_bytes)
        return b"".join((prefix, self._start, message, text, tail, number, _END))

    def fields(
        self, born_ms: int, flag: int, properties: str, sequence: str | None
    ) -> dict[str, str]:
        """Return the same header as fields, without those of the queue."""
        fields = {**self._constant, "g": str(born_ms), "h": str(flag), "i": properties}
        if sequence is not None:
            fields["sequence"] = sequence
        return fields | self._rest

    def _tail(self, queue: MessageQueue) -> bytes:
        fields = self._rest | {"e": str(queue.queue_id), "n": queue.broker_name}
        tail = b',%b,"flag":0,"language":"%b","opaque":' % (
            _encode_text(fields)[1:],
            LANGUAGE.encode(),
        )
        if len(self._tails) >= _QUEUES_MAX:
            self._tails.clear()
        self._tails[queue] = tail
        return tail


def _encode_text(value: str | dict[str, str]) -> bytes:
    try:
        return _encode(value)
    except UnicodeEncodeError:  # a lone surrogate
        if isinstance(value, str):
            return _encode(_printable(value))
        return _encode({name: _printable(text) for name, text in value.items()})


def _printable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
