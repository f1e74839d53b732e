"""JSON bodies of queue assignments and of request modes.

A group *pulls* (each queue has one owner) or *pops* (members share queues, message by message); the
*request mode* says which, per topic and group. In pop mode, ``popShareQueueNum`` is the number of
other members' queues that each member also pops from; 0 or less means all queues, written in an
assignment as queue -1 of each broker.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from rocketpost.codec.bodies.leniency import decode_body, enum_name, fill
from rocketpost.codec.lenient_json import decode_any
from rocketpost.codec.numbers import Int32
from rocketpost.model.route import MessageQueue

PULL: Final = "PULL"
POP: Final = "POP"
MODES: Final = (PULL, POP)
ALL_QUEUES: Final = -1
"""The queue id that stands for every queue of a broker."""


class QueryAssignment(msgspec.Struct, rename="camel", kw_only=True):
    """The body of QUERY_ASSIGNMENT (400)."""

    client_id: str
    consumer_group: str
    message_model: str = "CLUSTERING"
    strategy_name: str = "AVG"
    topic: str


class Assignment(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """A queue assigned to the requester, and the mode in which it reads it."""

    message_queue: MessageQueue
    mode: str = PULL


class Assignments(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """Answer to QUERY_ASSIGNMENT; None means that the requester keeps its queues."""

    message_queue_assignments: list[Assignment] | None = None


class RequestMode(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """Request mode of a group for a topic; the body of SET_MESSAGE_REQUEST_MODE (401)."""

    consumer_group: str
    mode: str = PULL
    pop_share_queue_num: Int32 = 0
    topic: str


class RequestModeTable(msgspec.Struct, rename="camel"):
    """Modes by topic and group: ``messageRequestMode.json``, GET_ALL_MESSAGE_REQUEST_MODE (402)."""

    message_request_mode_map: dict[str, dict[str, RequestMode]] = {}


def decode_query(data: bytes | memoryview) -> QueryAssignment:
    """Read the body of QUERY_ASSIGNMENT.

    Raises:
        RemoteProtocolError: The body is malformed.
    """
    return decode_body(data, QueryAssignment)


def decode_assignments(data: bytes | memoryview) -> Assignments:
    """Read an assignment.

    Raises:
        RemoteProtocolError: The body is malformed.
    """
    return decode_body(data, Assignments)


def decode_request_mode(data: bytes | memoryview) -> RequestMode:
    """Read a request mode; a mode other than PULL and POP becomes empty.

    Raises:
        RemoteProtocolError: The body is malformed.
    """
    return fill(RequestMode, _with_mode(decode_any(data)))


def decode_request_modes(data: bytes | memoryview) -> RequestModeTable:
    """Read the table of modes.

    Raises:
        RemoteProtocolError: The body is malformed.
    """
    plain = decode_any(data)
    rows = plain.get("messageRequestModeMap") if isinstance(plain, dict) else None
    if isinstance(rows, dict):
        for row in rows.values():
            if isinstance(row, dict):
                row.update({group: _with_mode(mode) for group, mode in row.items()})
    return fill(RequestModeTable, plain)


def _with_mode(plain: Any) -> Any:
    if isinstance(plain, dict) and plain.get("mode") is not None:
        return plain | {"mode": enum_name(plain["mode"], MODES, "")}
    return plain
