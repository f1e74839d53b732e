"""The exception tree; everything that Rocketpost raises on purpose hangs here.

RocketpostError
├── ConfigError               a settings file, option or argument is wrong; names the key
│   └── FilterError           a filter expression is wrong; says where and why
├── ProtocolError
│   ├── RemoteProtocolError   the peer sent bytes that cannot be understood
│   └── LocalProtocolError    we were about to send such bytes ourselves
├── StoreError                the store cannot do this; nothing was changed
│   ├── CorruptRecord         bytes on disk are not the record they should be
│   ├── StoreFull             no room to allocate; reads go on
│   ├── StoreBroken           a write or fsync failed; acknowledges nothing until restarted
│   └── StoreLocked           another process has this directory
├── Fault                     a refusal with a RocketMQ response code (``codec.faults``)
└── ClientError
    ├── RequestTimeout        no answer in time; the request may or may not have happened
    │   └── NoReply           the message of a request is stored, but nobody replied in time
    ├── ConnectionLost        the connection broke, so the request may or may not have happened
    │   └── NotConnected      no connection could be made, so nothing was sent
    ├── RouteNotFound         no broker is known for the topic
    ├── NoNameServer          no name server is configured or none answers
    ├── NotSupported          a broker lacks what this needs
    ├── AlreadyExists         a topic or group is there with another configuration
    └── MessageRefused        the message breaks a limit; checked before it is sent
"""

from __future__ import annotations

__all__ = [
    "AlreadyExists",
    "ClientError",
    "ConfigError",
    "ConnectionLost",
    "CorruptRecord",
    "Fault",
    "FilterError",
    "LocalProtocolError",
    "MessageRefused",
    "NoNameServer",
    "NoReply",
    "NotConnected",
    "NotSupported",
    "ProtocolError",
    "RemoteProtocolError",
    "RequestTimeout",
    "RocketpostError",
    "RouteNotFound",
    "StoreBroken",
    "StoreError",
    "StoreFull",
    "StoreLocked",
]


class RocketpostError(Exception):
    """Base of every error that Rocketpost raises on purpose."""


class ConfigError(RocketpostError):
    """A setting is unknown, malformed or contradictory; the text names it."""


class FilterError(ConfigError):
    """A filter expression is wrong.

    Attributes:
        reason: What is wrong, without the place.
        position: The character at fault, counted from 1; None if the whole is.
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
    """A value of ours does not fit the protocol; nothing was sent."""


class StoreError(RocketpostError):
    """The store refuses or failed; the operation changed nothing."""


class CorruptRecord(StoreError):  # noqa: N818 - named after what is found
    """Bytes on disk are not the record that they should be."""


class StoreFull(StoreError):  # noqa: N818
    """There is no room to allocate a file; reads go on."""


class StoreBroken(StoreError):  # noqa: N818
    """A write or fsync failed, so nothing is acknowledged until the process restarts."""


class StoreLocked(StoreError):  # noqa: N818
    """Another process has this store directory open."""


class Fault(RocketpostError):  # noqa: N818 - a refusal, the same class on both sides of the wire
    """A refusal that travels as a response code and a remark."""

    code: int = 1

    def __init__(self, remark: str = "") -> None:
        super().__init__(remark)
        self.remark = remark


class ClientError(RocketpostError):
    """The client could not do what it was asked."""


class AlreadyExists(ClientError):  # noqa: N818
    """A topic or group that was to be created is there with another configuration."""


class RequestTimeout(ClientError):  # noqa: N818
    """No answer came in time; the request may or may not have taken effect."""


class NotSupported(ClientError):  # noqa: N818
    """A broker lacks what this needs."""


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
    """The message breaks a limit; found before anything was sent."""
