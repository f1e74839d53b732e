"""Response codes and the refusals of ``rocketpost.errors`` that they stand for.

A broker raises ``TopicNotExist("...")``, the remark is sent, and the client that receives code 17
raises ``TopicNotExist`` again. A code without a class of its own becomes :class:`UnknownFault`.
"""

from __future__ import annotations

from rocketpost.errors import (
    ConsumerNotOnline,
    ConsumeTimedOut,
    Fault,
    FilterDataNotExist,
    FilterDataNotLatest,
    FlowControl,
    GoAway,
    GroupNotExist,
    IllegalOperation,
    InvalidParameter,
    MessageIllegal,
    NoMessage,
    NoPermission,
    ProducerFenced,
    PullNotFound,
    PullOffsetMoved,
    PullRetryImmediately,
    QueryNotFound,
    RequestCodeNotSupported,
    SequenceForgotten,
    SequenceOutOfOrder,
    ServerError,
    ServiceNotAvailable,
    SlaveNotAvailable,
    SubscriptionNotExist,
    SubscriptionNotLatest,
    SubscriptionParseFailed,
    SystemBusy,
    TopicNotExist,
    UnknownFault,
)

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
    "ServerError",
    "ServiceNotAvailable",
    "SlaveNotAvailable",
    "SubscriptionNotExist",
    "SubscriptionNotLatest",
    "SubscriptionParseFailed",
    "SystemBusy",
    "TopicNotExist",
    "UnknownFault",
    "fault_for",
]

_BY_CODE: dict[int, type[Fault]] = {
    int(cls.code): cls for cls in Fault.__subclasses__() if cls is not UnknownFault
}


def fault_for(code: int, remark: str | None) -> Fault:
    """Return the exception that a response ``code`` stands for."""
    cls = _BY_CODE.get(code)
    return cls(remark or "") if cls else UnknownFault(code, remark or "")
