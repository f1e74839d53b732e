"""The requests that a follower refuses, with the codes of a RocketMQ slave.

RocketMQ's slave refuses sends with SYSTEM_BUSY, or with SERVICE_NOT_AVAILABLE if slaves may act for
a lost master. It refuses other requests that write to its store with SERVICE_NOT_AVAILABLE,
transactions and recalls with SLAVE_NOT_AVAILABLE, and resets with SYSTEM_ERROR. It accepts changes
of topics and groups and loses them at its next synchronisation. We refuse those like resets,
because no acknowledged change may be lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.command import Command
from rocketpost.server.routes.access import NOTHING
from rocketpost.server.routes.route import NO_HEADER, Reply, Route
from rocketpost.transport.connection import Connection

_TO_LEADER: Final = "this broker is a follower; send it to the leader of its group"
_NO_LEADER: Final = (
    "this slave acts for its master, which is gone: it serves consumers, but stores nothing; send "
    "it to another broker, or wait for the master"
)
_BUSY: Final = f"[REJECTREQUEST]system busy, {_TO_LEADER}"

_SENDS: Final = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
)
_NEEDS_LEADER: Final = (
    RequestCode.SEND_REPLY_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2,
    RequestCode.RESUME_CHECK_HALF_MESSAGE,
    RequestCode.POP_MESSAGE,
    RequestCode.PEEK_MESSAGE,
    RequestCode.NOTIFICATION,
    RequestCode.POLLING_INFO,
    RequestCode.ACK_MESSAGE,
    RequestCode.BATCH_ACK_MESSAGE,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
    RequestCode.GET_POP_STATE,
    RequestCode.GET_PRODUCER_STATES,
    RequestCode.FOLLOW_TABLES,
)
_LOCKS: Final = (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ)
_MASTER_ONLY: Final = (RequestCode.END_TRANSACTION, RequestCode.RECALL_MESSAGE)
_CHANGES: Final = (
    RequestCode.CONSUMER_SEND_MSG_BACK,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
    RequestCode.CLONE_GROUP_OFFSET,
    RequestCode.UPDATE_AND_CREATE_TOPIC,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
    RequestCode.DELETE_TOPIC_IN_BROKER,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    RequestCode.DELETE_SUBSCRIPTIONGROUP,
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN,
    RequestCode.SET_MESSAGE_REQUEST_MODE,
    RequestCode.PUT_NAMED_FILTER,
    RequestCode.DELETE_NAMED_FILTER,
    RequestCode.CLEAN_UNUSED_TOPIC,
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
    RequestCode.DELETE_EXPIRED_COMMITLOG,
    RequestCode.AUTH_CREATE_USER,
    RequestCode.AUTH_UPDATE_USER,
    RequestCode.AUTH_DELETE_USER,
    RequestCode.AUTH_CREATE_ACL,
    RequestCode.AUTH_UPDATE_ACL,
    RequestCode.AUTH_DELETE_ACL,
)

REFUSED: Final[dict[RequestCode, tuple[ResponseCode, str]]] = {
    **dict.fromkeys(_SENDS, (ResponseCode.SYSTEM_BUSY, _BUSY)),
    **dict.fromkeys(_NEEDS_LEADER, (ResponseCode.SERVICE_NOT_AVAILABLE, _TO_LEADER)),
    **dict.fromkeys(_LOCKS, (ResponseCode.SERVICE_NOT_AVAILABLE, _TO_LEADER)),
    **dict.fromkeys(_MASTER_ONLY, (ResponseCode.SLAVE_NOT_AVAILABLE, _TO_LEADER)),
    **dict.fromkeys(_CHANGES, (ResponseCode.SYSTEM_ERROR, _TO_LEADER)),
}
"""Response code and remark for each request that a follower refuses."""


Refusals = Mapping[RequestCode, tuple[ResponseCode, str]]

STANDING_BY: Final[Refusals] = {
    code: (ResponseCode.SERVICE_NOT_AVAILABLE, _TO_LEADER) if code in _SENDS else refusal
    for code, refusal in REFUSED.items()
    if code not in _LOCKS
}
"""Refusals of a follower that may act for its leader. It takes locks that its leader passes on
(``lockInStrictMode``); it refuses those of clients itself unless it acts."""

ACTING: Final[Refusals] = {
    code: (response, _NO_LEADER) for code, (response, _) in STANDING_BY.items()
}
"""Refusals of a follower that acts for its leader."""


OF_GROUP: Final[Refusals] = {
    code: (ResponseCode.SERVICE_NOT_AVAILABLE, _TO_LEADER) if code in _SENDS else refusal
    for code, refusal in REFUSED.items()
}
"""Refusals of a follower in a group that elects its leader."""


def follower_routes(served: Iterable[Route], refused: Refusals = REFUSED) -> list[Route]:
    """Return routes that refuse the requests for leaders, and serve the others."""
    kept = [route for route in served if route.code not in refused]
    return kept + [_refusing(code, *refusal) for code, refusal in refused.items()]


def refusing_routes(routes: Iterable[Route], reason: str) -> list[Route]:
    """Return routes that refuse the same requests, for the time between two terms."""
    return [_refusing(route.code, ResponseCode.SERVICE_NOT_AVAILABLE, reason) for route in routes]


def _refusing(code: RequestCode, response: ResponseCode, remark: str) -> Route:
    def refuse(connection: Connection, command: Command, header: None) -> Reply:
        return Reply(response, remark=remark)

    return Route(code, NO_HEADER, NOTHING, refuse)
