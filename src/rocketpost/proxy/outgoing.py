"""Messages that clients send: their stored properties."""

from __future__ import annotations

import zlib
from typing import Any, Final

from rocketpost.model import properties as names
from rocketpost.proxy.refusals import Refusal
from rocketpost.proxy.settings import ProxyConfig
from rocketpost.proxy.wire.enums import Code, Encoding, MessageType
from rocketpost.proxy.wire.messages import ms_of

BORN_HOST: Final = "__BORNHOST"
BORN_TIMESTAMP: Final = "BORN_TIMESTAMP"
TRACE_CONTEXT: Final = "TRACE_CONTEXT"
_GZIP_OR_ZLIB: Final = 47
"""The parameter by which zlib reads both forms."""


def stored_properties(
    message: Any, topic: str, *, peer: str, now_ms: int, config: ProxyConfig
) -> dict[str, str]:
    """Return the properties under which a checked message is stored.

    Args:
        message: The message.
        topic: Its topic, which is also the producer group.
        peer: The client's address, if the message does not name its host.
        now_ms: The time.
        config: The limits.

    Raises:
        Refusal: The delivery time or the recovery time is too far away.
    """
    system = message.system_properties
    # The unique key first: brokers recognise the rest by comparison.
    stored = {names.UNIQUE_KEY: system.message_id, **message.user_properties}
    if system.tag:
        stored[names.TAGS] = system.tag
    if system.keys:
        stored[names.KEYS] = names.KEY_SEPARATOR.join(system.keys)
    if system.message_type == MessageType.TRANSACTION:
        stored[names.TRANSACTION_PREPARED] = "true"
        _add_recovery(stored, system, config)
    if system.HasField("delivery_timestamp"):
        _add_delivery(stored, ms_of(system.delivery_timestamp), now_ms, config)
    if system.message_group:
        stored[names.SHARDING_KEY] = system.message_group
    if system.HasField("priority"):
        if system.priority < 0:
            raise Refusal(Code.BAD_REQUEST, f"the priority {system.priority} is below 0")
        stored[names.PRIORITY] = str(system.priority)
    if system.lite_topic:
        raise Refusal(Code.NOT_IMPLEMENTED, "lite topics are not supported by this server")
    if system.trace_context:
        stored[TRACE_CONTEXT] = system.trace_context
    stored[names.RECONSUME_TIME] = str(system.delivery_attempt)
    stored[BORN_HOST] = system.born_host or peer
    if system.HasField("born_timestamp"):
        stored[BORN_TIMESTAMP] = str(ms_of(system.born_timestamp))
    stored[names.PRODUCER_GROUP] = topic
    return stored


def _add_recovery(stored: dict[str, str], system: Any, config: ProxyConfig) -> None:
    if system.HasField("orphaned_transaction_recovery_duration"):
        seconds = system.orphaned_transaction_recovery_duration.seconds
    else:
        text = stored.get(names.TRANSACTION_IMMUNITY, "0")
        seconds = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else -1
    if not 0 <= seconds <= config.recovery_seconds_max:
        raise Refusal(
            Code.BAD_REQUEST,
            "the time until a transaction is asked about is not within 0 to "
            f"{config.recovery_seconds_max} s",
        )
    if seconds:
        stored[names.TRANSACTION_IMMUNITY] = str(seconds)


def _add_delivery(
    stored: dict[str, str], deliver_ms: int, now_ms: int, config: ProxyConfig
) -> None:
    if deliver_ms < 0 or deliver_ms - now_ms > config.delay_ms_max:
        raise Refusal(
            Code.ILLEGAL_DELIVERY_TIME,
            f"the message is to be delivered in {deliver_ms - now_ms} ms; at most "
            f"{config.delay_ms_max} are allowed",
        )
    if config.uses_delay_levels:
        wait_ms = deliver_ms - now_ms
        levels = config.delays_ms
        level = next((at for at, each in enumerate(levels, 1) if each >= wait_ms), len(levels))
        stored[names.DELAY_LEVEL] = str(level)
    else:
        # A broker takes a time that is over for no time at all, so that it is due now.
        stored[names.TIMER_DELIVER_MS] = str(max(deliver_ms, 1))


def stored_body(message: Any, config: ProxyConfig) -> bytes:
    """Return the body to store: never in gzip's form, which not all clients can read.

    Raises:
        Refusal: It is marked as compressed but is not, or it becomes too large.
    """
    body: bytes = message.body
    if message.system_properties.body_encoding != Encoding.GZIP:
        return body
    reader = zlib.decompressobj(_GZIP_OR_ZLIB)
    limit = min(config.body_bytes_max, config.call_bytes_max)
    try:
        plain = reader.decompress(body, limit + 1)
    except zlib.error as error:
        raise Refusal(Code.MESSAGE_CORRUPTED, f"the body is not in gzip's form: {error}") from None
    if len(plain) > limit:
        raise Refusal(
            Code.MESSAGE_BODY_TOO_LARGE,
            f"the decompressed body has more than {limit} bytes",
        )
    if not reader.eof or (not plain and config.refuses_empty_bodies):
        raise Refusal(Code.MESSAGE_CORRUPTED, "the compressed body is empty or cut off")
    return plain
