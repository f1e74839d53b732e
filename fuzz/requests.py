"""Requests that a server knows, with fields and bodies that it did not expect."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from fuzz import json_shapes
from fuzz.supply import Supply
from rocketpost.codec.batch import BatchItem, encode_batch
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.command import BINARY, JSON, ONEWAY, Command, encode_command
from rocketpost.errors import LocalProtocolError

NAMES: Final = (
    *("TopicA", "TopicB", "GroupA", "GroupB", "%RETRY%GroupA", "%DLQ%GroupA", "TBW102"),
    *("DefaultCluster", "broker-a", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "c1"),
    *("127.0.0.1:10911", "ORDER_TOPIC_CONFIG", "TAG", "SQL92", "UPPER", "BenchmarkTest"),
)
_BODIES: Final[Mapping[int, tuple[str, ...]]] = {
    RequestCode.HEART_BEAT: ("heartbeat",),
    RequestCode.LOCK_BATCH_MQ: ("lock",),
    RequestCode.UNLOCK_BATCH_MQ: ("lock",),
    RequestCode.CHECK_CLIENT_CONFIG: ("check",),
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: ("topics",),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: ("group",),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: ("groups",),
    RequestCode.REGISTER_BROKER: ("registration",),
    RequestCode.QUERY_DATA_VERSION: ("version",),
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: ("route",),
}
_GOOD: Final = {
    "brokername": "broker-a", "brokeraddr": "127.0.0.1:10911", "clustername": "DefaultCluster",
    "haserveraddr": "127.0.0.1:10912", "cluster": "DefaultCluster", "statsname": "TOPIC_PUT_NUMS",
    "topicfiltertype": "SINGLE_TAG", "subscription": "A || B", "expressiontype": "TAG",
    "attributes": "+message.type=NORMAL", "value": "broker-a:4", "boundarytype": "UPPER",
    "readqueuenums": "4", "writequeuenums": "4", "perm": "6", "order": "false", "batch": "false",
    "invisibletime": "30000", "polltime": "10000", "exptype": "TAG", "exp": "*",
    "extrainfo": "0 1700000000000 30000 0 0 broker-a 0 0", "endtimestamp": "1900000000000",
    "compressed": "false", "suspendtimeoutmillis": "10000",
}  # fmt: skip
_SENDS: Final = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
)
_PROPERTIES: Final = (
    "", "UNIQ_KEY\x01AB12\x02", "KEYS\x01a b\x02TAGS\x01A\x02", "DELAY\x013\x02", "DELAY\x01²\x02",
    "DELAY\x01--5\x02", "TRAN_MSG\x01true\x02", "a\x01\x02", "\x01b\x02", "nothing", "TAGS\x01A",
    "WAIT\x01false\x02", "UNIQ_KEY\x01\"\\\x02", "DELAY\x01" + "9" * 5000 + "\x02",
    "UNIQ_KEY\x01K\x02x\x01\x00\x02", "UNIQ_KEY\x01K\x02x\x01" + "\x00" * 600 + "\x02",
)  # fmt: skip


def learnt_headers(codes: Sequence[int], probe: Any) -> dict[int, dict[str, str]]:
    """Return the fields that the handler of each code reads, each with the kind of its value.

    Args:
        codes: The request codes.
        probe: Sends an empty request of a code.
    """
    learnt: dict[int, dict[str, str]] = {}
    original = Command.read

    def read(self: Command, cls: type[Any]) -> Any:
        kinds = {field.encode_name: str(field.type) for field in msgspec.structs.fields(cls)}
        learnt.setdefault(self.code, {}).update(kinds)
        return original(self, cls)

    Command.read = read  # type: ignore[method-assign]
    try:
        for code in codes:
            probe(code)
    finally:
        Command.read = original  # type: ignore[method-assign]
    return learnt


class Requests:
    """Makes requests out of fuzz bytes.

    Args:
        codes: The request codes that the server knows.
        headers: The fields of each code, with the kinds of their values.
        settings: The keys that an administrator may try to change.
    """

    def __init__(
        self,
        codes: Sequence[int],
        headers: Mapping[int, Mapping[str, str]],
        settings: Sequence[str],
    ) -> None:
        self._codes = codes
        self._headers = headers
        self._settings = settings

    def frame(self, supply: Supply, opaque: int) -> tuple[bytes, bool]:
        """Return the bytes of a request, and whether it wants a response."""
        code = supply.pick(self._codes)
        if supply.chance(64):
            code = supply.number(-(2**15), 2**15 - 1)
        flag = ONEWAY if supply.chance(16) else 0
        kinds = self._headers.get(code, {})
        names = list(kinds)
        fields = {name: _good(supply, name, kinds[name]) for name in names}
        for _ in range(supply.number(0, 2) if names else 0):
            # One or two at a time: a request that is wrong everywhere is refused at once.
            name = supply.pick(names)
            if supply.chance(8):
                fields.pop(name, None)
            else:
                fields[name] = supply.text(NAMES)
        body = self._body(supply, code)
        encoding = BINARY if supply.chance(8) else JSON
        try:
            head = encode_command(
                code, opaque=opaque, flag=flag, fields=fields, body_bytes=len(body),
                encoding=encoding,
            )  # fmt: skip
        except LocalProtocolError:
            head = encode_command(code, opaque=opaque, flag=flag, body_bytes=len(body))
        return head + body, not flag

    def _body(self, supply: Supply, code: int) -> bytes:
        if code in _SENDS:
            if supply.chance(3):
                items = [
                    BatchItem(supply.byte(), supply.raw(20), supply.text(_PROPERTIES).encode())
                    for _ in range(supply.number(1, 3))
                ]
                try:
                    body = encode_batch(items)
                except struct.error:
                    body = b"x"
                return body[: len(body) - (supply.byte() % 8 if supply.chance(4) else 0)]
            return b"m" * supply.number(1, 5000) if supply.chance(4) else supply.raw(60)
        if code in (RequestCode.UPDATE_BROKER_CONFIG, RequestCode.UPDATE_NAMESRV_CONFIG):
            pairs = [
                f"{supply.pick(self._settings)}={supply.text()}" for _ in range(supply.number(0, 3))
            ]
            return "\n".join(pairs).encode("utf-8", "replace")
        shapes = _BODIES.get(code)
        if shapes is None:
            return supply.raw(16) if supply.chance(8) else b""
        body = json_shapes.body(supply, NAMES, shapes)
        return zlib.compress(body) if supply.chance(16) else body


def _good(supply: Supply, name: str, kind: str) -> str:
    """Return a value that the field may well have."""
    lower = name.lower()
    if "bool" in kind:
        return supply.pick(("false", "true"))
    if lower in ("sysflag", "f"):
        return str(supply.byte())
    if lower in _GOOD:
        return _GOOD[lower]
    if "int" in kind:
        return str(supply.number(0, 3))
    if lower in ("i", "properties"):
        return supply.pick(_PROPERTIES)
    if name == "c" or lower == "defaulttopic":
        return "TBW102"
    if "topic" in lower or name == "b":
        return supply.pick(("TopicA", "TopicB", "BenchmarkTest", "TopicA"))
    if "group" in lower or name == "a":
        return supply.pick(("GroupA", "GroupB"))
    if name == "msgId":
        return "7F00000100002A9F" + supply.raw(8).hex().upper().rjust(16, "0")
    return supply.pick(NAMES)
