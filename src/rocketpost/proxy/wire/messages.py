"""The message classes of the protocol, made from the compiled proto text.

They have a descriptor pool of their own. With the common pool, a program that also imports an
official client could not start, because that registers the same names.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf import duration_pb2, timestamp_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from rocketpost.proxy.wire.descriptor import SERIALIZED

__all__ = ["SERVICE", "DecodeError"]

PACKAGE: Final = "apache.rocketmq.v2"
SERVICE: Final = f"{PACKAGE}.MessagingService"

POOL: Final = DescriptorPool()
for _file in (duration_pb2, timestamp_pb2):
    POOL.AddSerializedFile(_file.DESCRIPTOR.serialized_pb)
POOL.AddSerializedFile(SERIALIZED)


def message_class(name: str) -> Any:
    """Return the class of a message of the package."""
    return GetMessageClass(POOL.FindMessageTypeByName(f"{PACKAGE}.{name}"))


Status = message_class("Status")
Resource = message_class("Resource")
Address = message_class("Address")
Endpoints = message_class("Endpoints")
Broker = message_class("Broker")
MessageQueue = message_class("MessageQueue")
Assignment = message_class("Assignment")
Message = message_class("Message")
SystemProperties = message_class("SystemProperties")
Settings = message_class("Settings")
RetryPolicy = message_class("RetryPolicy")
TelemetryCommand = message_class("TelemetryCommand")
SendResultEntry = message_class("SendResultEntry")
AckMessageResultEntry = message_class("AckMessageResultEntry")
QueryRouteRequest = message_class("QueryRouteRequest")
QueryRouteResponse = message_class("QueryRouteResponse")
HeartbeatRequest = message_class("HeartbeatRequest")
HeartbeatResponse = message_class("HeartbeatResponse")
SendMessageRequest = message_class("SendMessageRequest")
SendMessageResponse = message_class("SendMessageResponse")
QueryAssignmentRequest = message_class("QueryAssignmentRequest")
QueryAssignmentResponse = message_class("QueryAssignmentResponse")
ReceiveMessageRequest = message_class("ReceiveMessageRequest")
ReceiveMessageResponse = message_class("ReceiveMessageResponse")
AckMessageRequest = message_class("AckMessageRequest")
AckMessageResponse = message_class("AckMessageResponse")
ForwardMessageToDeadLetterQueueRequest = message_class("ForwardMessageToDeadLetterQueueRequest")
ForwardMessageToDeadLetterQueueResponse = message_class("ForwardMessageToDeadLetterQueueResponse")
PullMessageRequest = message_class("PullMessageRequest")
PullMessageResponse = message_class("PullMessageResponse")
UpdateOffsetRequest = message_class("UpdateOffsetRequest")
UpdateOffsetResponse = message_class("UpdateOffsetResponse")
GetOffsetRequest = message_class("GetOffsetRequest")
GetOffsetResponse = message_class("GetOffsetResponse")
QueryOffsetRequest = message_class("QueryOffsetRequest")
QueryOffsetResponse = message_class("QueryOffsetResponse")
EndTransactionRequest = message_class("EndTransactionRequest")
EndTransactionResponse = message_class("EndTransactionResponse")
NotifyClientTerminationRequest = message_class("NotifyClientTerminationRequest")
NotifyClientTerminationResponse = message_class("NotifyClientTerminationResponse")
ChangeInvisibleDurationRequest = message_class("ChangeInvisibleDurationRequest")
ChangeInvisibleDurationResponse = message_class("ChangeInvisibleDurationResponse")
RecallMessageRequest = message_class("RecallMessageRequest")
RecallMessageResponse = message_class("RecallMessageResponse")


def set_ms(timestamp: Any, ms: int) -> None:
    """Set a Timestamp or Duration to a number of milliseconds."""
    timestamp.seconds, rest = divmod(ms, 1000)
    timestamp.nanos = rest * 1_000_000


def ms_of(timestamp: Any) -> int:
    """Return a Timestamp or Duration in milliseconds."""
    ms: int = timestamp.seconds * 1000 + timestamp.nanos // 1_000_000
    return ms


def endpoints_at(host: str, port: int) -> Any:
    """Return endpoints of one address."""
    scheme = 2 if ":" in host else 1 if host.replace(".", "").isdecimal() else 3
    endpoints = Endpoints(scheme=scheme)
    endpoints.addresses.add(host=host, port=port)
    return endpoints
