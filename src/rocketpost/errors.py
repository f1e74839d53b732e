"""The tree of exceptions that Rocketpost raises on purpose.

RocketpostError
├── ConfigError               a setting, option or argument is wrong; the text names it
│   └── FilterError           a filter expression is wrong; the text says where and why
├── ProtocolError
│   ├── RemoteProtocolError   the peer sent bytes that cannot be understood
│   └── LocalProtocolError    one of our values does not fit the protocol; nothing was sent
├── ReplicationError          the stream between master and slave cannot go on; close it, try again
├── StoreError                the store cannot do this; nothing was changed
│   ├── CorruptRecord         bytes on disk are not a sound record
│   ├── StoreFull             no space to allocate a file; reads continue
│   ├── StoreBroken           a write or fsync failed; acknowledges nothing until restarted
│   ├── TermEnded             the broker takes no messages: its term ended or has not begun
│   ├── OutcomeUnknown        written by a leader, but perhaps not kept by its group
│   └── StoreLocked           another process has this directory open
├── Fault                     a refusal with a RocketMQ response code; one class per code:
│   └── TopicNotExist, GroupNotExist, NoPermission, SystemBusy, ServerError, ...
└── ClientError
    ├── RequestTimeout        no answer in time; the request may or may not have happened
    │   └── NoReply           the message of a request is stored, but nobody replied in time
    ├── ConnectionLost        the connection broke, so the request may or may not have happened
    │   └── NotConnected      no connection could be made, so nothing was sent
    ├── RouteNotFound         no broker is known for the topic
    ├── NoNameServer          no name server is configured or none answers
    ├── NotSupported          a broker lacks a feature that the call needs
    ├── AlreadyExists         the topic or group exists with another configuration
    └── MessageRefused        the message breaks a limit; checked before it is sent
"""

from __future__ import annotations

__all__ = [
    "AlreadyExists",
    "ClientError",
    "ConfigError",
    "ConnectionLost",
    "ConsumeTimedOut",
    "ConsumerNotOnline",
    "CorruptRecord",
    "Fault",
    "FilterDataNotExist",
    "FilterDataNotLatest",
    "FilterError",
    "FlowControl",
    "GoAway",
    "GroupNotExist",
    "IllegalOperation",
    "InvalidParameter",
    "LocalProtocolError",
    "MessageIllegal",
    "MessageRefused",
    "NoMessage",
    "NoNameServer",
    "NoPermission",
    "NoReply",
    "NotConnected",
    "NotSupported",
    "OutcomeUnknown",
    "ProducerFenced",
    "ProtocolError",
    "PullNotFound",
    "PullOffsetMoved",
    "PullRetryImmediately",
    "QueryNotFound",
    "RemoteProtocolError",
    "ReplicationError",
    "RequestCodeNotSupported",
    "RequestTimeout",
    "RocketpostError",
    "RouteNotFound",
    "SequenceForgotten",
    "SequenceOutOfOrder",
    "ServerError",
    "ServiceNotAvailable",
    "SlaveNotAvailable",
    "StoreBroken",
    "StoreError",
    "StoreFull",
    "StoreLocked",
    "SubscriptionNotExist",
    "SubscriptionNotLatest",
    "SubscriptionParseFailed",
    "SystemBusy",
    "TermEnded",
    "TopicNotExist",
    "UnknownFault",
]


class RocketpostError(Exception):
    """Base of every error that Rocketpost raises on purpose."""


class ConfigError(RocketpostError):
    """A setting is unknown, malformed or contradictory; the text names it."""


class FilterError(ConfigError):
    """A filter expression is wrong.

    Attributes:
        reason: The mistake, without its position.
        position: The character at fault, counted from 1; None for the whole expression.
    """

    def __init__(self, reason: str, position: int | None = None) -> None:
        place = "" if position is None else f"at character {position}: "
        super().__init__(f"{place}{reason}")
        self.reason = reason
        self.position = position


class ProtocolError(RocketpostError):
    """Bytes that break the remoting protocol."""


class RemoteProtocolError(ProtocolError):
    """The peer sent bytes that cannot be understood."""


class LocalProtocolError(ProtocolError):
    """One of our values does not fit the protocol; nothing was sent."""


class ReplicationError(RocketpostError):
    """The stream between a master and a slave cannot go on; close it and try again."""


class StoreError(RocketpostError):
    """The store refused or failed; the operation changed nothing."""


class CorruptRecord(StoreError):  # noqa: N818 - named after what is found
    """Bytes on disk are not a sound record."""


class StoreFull(StoreError):  # noqa: N818
    """There is no space to allocate a file; reads continue."""


class StoreBroken(StoreError):  # noqa: N818
    """A write or fsync failed, so nothing is acknowledged until the process restarts."""


class TermEnded(StoreError):  # noqa: N818
    """The broker takes no messages now: its term has ended, or none has begun."""


class OutcomeUnknown(StoreError):  # noqa: N818
    """The leader of a group wrote messages, but cannot tell whether the group keeps them."""


class StoreLocked(StoreError):  # noqa: N818
    """Another process has this store directory open."""


class Fault(RocketpostError):  # noqa: N818 - a refusal, the same class on both sides of the wire
    """A refusal, sent as a response code and a remark.

    Each subclass stands for one code; :class:`UnknownFault` for codes without a class.
    """

    code: int = 1

    def __init__(self, remark: str = "") -> None:
        super().__init__(remark)
        self.remark = remark


# Refusals, by response code.


class ServerError(Fault):
    """A failure without a code of its own; the remark describes it."""

    code = 1  # SYSTEM_ERROR


class SystemBusy(Fault):
    """The server sheds load; try another broker, or try later."""

    code = 2  # SYSTEM_BUSY


class RequestCodeNotSupported(Fault):
    """The server does not handle this request code."""

    code = 3  # REQUEST_CODE_NOT_SUPPORTED


class SlaveNotAvailable(Fault):
    """The request needs a master, or a slave that is in sync."""

    code = 11  # SLAVE_NOT_AVAILABLE


class MessageIllegal(Fault):
    """The message breaks a limit: size, properties, topic length."""

    code = 13  # MESSAGE_ILLEGAL


class ServiceNotAvailable(Fault):
    """The store accepts no writes now: disk full, failed flush or shutdown."""

    code = 14  # SERVICE_NOT_AVAILABLE


class NoPermission(Fault):
    """A permission bit, a disabled group or an access rule forbids the request."""

    code = 16  # NO_PERMISSION


class TopicNotExist(Fault):
    """The topic does not exist and may not be created by use."""

    code = 17  # TOPIC_NOT_EXIST


class PullNotFound(Fault):
    """No message at this offset yet."""

    code = 19  # PULL_NOT_FOUND


class PullRetryImmediately(Fault):
    """No message matched so far; continue from the next offset at once."""

    code = 20  # PULL_RETRY_IMMEDIATELY


class PullOffsetMoved(Fault):
    """The offset lies outside the queue."""

    code = 21  # PULL_OFFSET_MOVED


class QueryNotFound(Fault):
    """The requested object does not exist."""

    code = 22  # QUERY_NOT_FOUND


class SubscriptionParseFailed(Fault):
    """The filter expression is wrong."""

    code = 23  # SUBSCRIPTION_PARSE_FAILED


class SubscriptionNotExist(Fault):
    """The broker does not know the subscription; send a heartbeat first."""

    code = 24  # SUBSCRIPTION_NOT_EXIST


class SubscriptionNotLatest(Fault):
    """The broker's copy of the subscription is older than the request."""

    code = 25  # SUBSCRIPTION_NOT_LATEST


class GroupNotExist(Fault):
    """The consumer group does not exist and may not be created by use."""

    code = 26  # SUBSCRIPTION_GROUP_NOT_EXIST


class FilterDataNotExist(Fault):
    """The broker has no compiled filter for this subscription."""

    code = 27  # FILTER_DATA_NOT_EXIST


class FilterDataNotLatest(Fault):
    """The compiled filter is older than the request."""

    code = 28  # FILTER_DATA_NOT_LATEST


class InvalidParameter(Fault):
    """A field is missing or has an invalid value."""

    code = 29  # INVALID_PARAMETER


class ConsumerNotOnline(Fault):
    """No member of the group is connected."""

    code = 206  # CONSUMER_NOT_ONLINE


class ConsumeTimedOut(Fault):
    """The client that the request was relayed to did not answer in time."""

    code = 207  # CONSUME_MSG_TIMEOUT


class NoMessage(Fault):
    """The offset is outside the queue."""

    code = 208  # NO_MESSAGE


class FlowControl(Fault):
    """The server asks the client to slow down."""

    code = 215  # FLOW_CONTROL


class IllegalOperation(Fault):
    """The operation is not allowed in this state."""

    code = 604  # ILLEGAL_OPERATION


class GoAway(Fault):
    """The server is shutting down; reconnect and try once more."""

    code = 1500  # GO_AWAY


class ProducerFenced(Fault):
    """A later epoch of this producer id has begun; this producer must stop sending."""

    code = 7001  # PRODUCER_FENCED


class SequenceOutOfOrder(Fault):
    """The message before this one is not stored yet; send it first, then this one again."""

    code = 7002  # SEQUENCE_OUT_OF_ORDER


class SequenceForgotten(Fault):
    """The message is too old to tell whether it was stored before; it was not stored now."""

    code = 7003  # SEQUENCE_FORGOTTEN


class UnknownFault(Fault):
    """A response code without a class of its own."""

    def __init__(self, code: int, remark: str = "") -> None:
        super().__init__(remark)
        self.code = code

    def __str__(self) -> str:
        return f"code {self.code}: {self.remark}"


# Clients.


class ClientError(RocketpostError):
    """A client's operation failed."""


class AlreadyExists(ClientError):  # noqa: N818
    """The topic or group to create exists with another configuration."""


class RequestTimeout(ClientError):  # noqa: N818
    """No answer came in time; the request may or may not have taken effect."""

    request_code: int | None = None
    """Code of the request, if one request timed out."""


class NotSupported(ClientError):  # noqa: N818
    """A broker lacks a feature that the call needs."""


class NoReply(RequestTimeout):
    """The message of a request is stored, but nobody replied in time."""


class ConnectionLost(ClientError):  # noqa: N818
    """The connection broke; the request may or may not have taken effect."""


class NotConnected(ConnectionLost):
    """No connection could be made, so nothing was sent."""


class RouteNotFound(ClientError):  # noqa: N818
    """No broker is known for the topic."""


class NoNameServer(ClientError):  # noqa: N818
    """No name server is configured, or none of them answers."""


class MessageRefused(ClientError):  # noqa: N818
    """The message breaks a limit; nothing was sent."""
