"""Refusals as exceptions: one class per response code, the same on both sides of the wire.

A broker raises ``TopicNotExist("...")``, the remark travels, and the client that receives code 17
raises ``TopicNotExist`` again. A code without a class of its own becomes :class:`UnknownFault`.
"""

from __future__ import annotations

from rocketpost.codec.codes import ResponseCode
from rocketpost.errors import Fault

__all__ = [
    "ConsumeTimedOut",
    "ConsumerNotOnline",
    "Fault",
    "FilterDataNotExist",
    "FilterDataNotLatest",
    "FlowControl",
    "GoAway",
    "GroupNotExist",
    "IllegalOperation",
    "InvalidParameter",
    "MessageIllegal",
    "NoMessage",
    "NoPermission",
    "ProducerFenced",
    "PullNotFound",
    "PullOffsetMoved",
    "PullRetryImmediately",
    "QueryNotFound",
    "RequestCodeNotSupported",
    "SequenceForgotten",
    "SequenceOutOfOrder",
    "ServiceNotAvailable",
    "SlaveNotAvailable",
    "SubscriptionNotExist",
    "SubscriptionNotLatest",
    "SubscriptionParseFailed",
    "SystemBusy",
    "SystemError_",
    "TopicNotExist",
    "UnknownFault",
    "fault_for",
]


class SystemError_(Fault):  # noqa: N801 - the plain name is a builtin
    """Something failed that has no code of its own; the remark says what."""

    code = ResponseCode.SYSTEM_ERROR


class SystemBusy(Fault):
    """The server sheds load; try another broker or later."""

    code = ResponseCode.SYSTEM_BUSY


class RequestCodeNotSupported(Fault):
    """Nobody handles this request code here."""

    code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED


class SlaveNotAvailable(Fault):
    """The request needs a master, or a slave that is in sync."""

    code = ResponseCode.SLAVE_NOT_AVAILABLE


class MessageIllegal(Fault):
    """The message breaks a limit: size, properties, topic length."""

    code = ResponseCode.MESSAGE_ILLEGAL


class ServiceNotAvailable(Fault):
    """The store takes no writes now: disk full, failed flush, shutting down."""

    code = ResponseCode.SERVICE_NOT_AVAILABLE


class NoPermission(Fault):
    """A permission bit, a disabled group or an access rule forbids it."""

    code = ResponseCode.NO_PERMISSION


class TopicNotExist(Fault):
    """The topic is unknown here and may not be created on the fly."""

    code = ResponseCode.TOPIC_NOT_EXIST


class PullNotFound(Fault):
    """No message at this offset yet."""

    code = ResponseCode.PULL_NOT_FOUND


class PullRetryImmediately(Fault):
    """Nothing matched so far; go on from the next offset at once."""

    code = ResponseCode.PULL_RETRY_IMMEDIATELY


class PullOffsetMoved(Fault):
    """The offset lies outside the queue."""

    code = ResponseCode.PULL_OFFSET_MOVED


class QueryNotFound(Fault):
    """What was asked for is not there."""

    code = ResponseCode.QUERY_NOT_FOUND


class SubscriptionParseFailed(Fault):
    """The filter expression is wrong."""

    code = ResponseCode.SUBSCRIPTION_PARSE_FAILED


class SubscriptionNotExist(Fault):
    """The broker knows no such subscription; a heartbeat should precede it."""

    code = ResponseCode.SUBSCRIPTION_NOT_EXIST


class SubscriptionNotLatest(Fault):
    """The broker's copy of the subscription is older than the request."""

    code = ResponseCode.SUBSCRIPTION_NOT_LATEST


class GroupNotExist(Fault):
    """The consumer group is unknown here and may not be created on the fly."""

    code = ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


class FilterDataNotExist(Fault):
    """No compiled filter is known for this subscription."""

    code = ResponseCode.FILTER_DATA_NOT_EXIST


class FilterDataNotLatest(Fault):
    """The compiled filter is older than the request."""

    code = ResponseCode.FILTER_DATA_NOT_LATEST


class InvalidParameter(Fault):
    """A field is missing or has a value that cannot be used."""

    code = ResponseCode.INVALID_PARAMETER


class ConsumerNotOnline(Fault):
    """No member of the group is connected."""

    code = ResponseCode.CONSUMER_NOT_ONLINE


class ConsumeTimedOut(Fault):
    """The client that the request was relayed to did not answer in time."""

    code = ResponseCode.CONSUME_MSG_TIMEOUT


class NoMessage(Fault):
    """The offset is outside the queue."""

    code = ResponseCode.NO_MESSAGE


class FlowControl(Fault):
    """The server asks the client to slow down."""

    code = ResponseCode.FLOW_CONTROL


class IllegalOperation(Fault):
    """The operation is not allowed in this state."""

    code = ResponseCode.ILLEGAL_OPERATION


class GoAway(Fault):
    """The server is shutting down; reconnect and try once more."""

    code = ResponseCode.GO_AWAY


class ProducerFenced(Fault):
    """A later epoch of this producer id has begun; this producer must send no more."""

    code = ResponseCode.PRODUCER_FENCED


class SequenceOutOfOrder(Fault):
    """The message before this one is not stored yet; send that first, then this one again."""

    code = ResponseCode.SEQUENCE_OUT_OF_ORDER


class SequenceForgotten(Fault):
    """So old that nobody can tell any more whether it is stored; nothing was stored now."""

    code = ResponseCode.SEQUENCE_FORGOTTEN


class UnknownFault(Fault):
    """A response code without a class of its own."""

    def __init__(self, code: int, remark: str = "") -> None:
        super().__init__(remark)
        self.code = code

    def __str__(self) -> str:
        return f"code {self.code}: {self.remark}"


_BY_CODE: dict[int, type[Fault]] = {
    int(cls.code): cls for cls in Fault.__subclasses__() if cls is not UnknownFault
}


def fault_for(code: int, remark: str | None) -> Fault:
    """Return the exception that a response ``code`` stands for."""
    cls = _BY_CODE.get(code)
    return cls(remark or "") if cls else UnknownFault(code, remark or "")
