"""Sending back of failed messages: to their broker, or else as new messages.

The broker puts a message that is sent back into the group's retry topic, with a delay level that
grows each time (10 s, 30 s, 1 min ... 2 h), and after the last retry into its dead-letter topic. If
the broker cannot, the client itself sends a copy to the retry topic.
"""

from __future__ import annotations

import logging
import time
from typing import Final

from rocketpost.client.message import DELAY_LEVEL_MAX, ReceivedMessage
from rocketpost.client.producer.flight import OutgoingSend
from rocketpost.client.producer.sender import Sender
from rocketpost.client.session import Session
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.properties import with_failure, without_failure
from rocketpost.codec.send_heads import SendHeads
from rocketpost.errors import ConfigError, ProtocolError, RocketpostError
from rocketpost.model import properties as names
from rocketpost.model.failure import ConsumeFailure, failure_of
from rocketpost.model.names import AUTO_CREATE_TOPIC, retry_topic
from rocketpost.model.sysflag import COMPRESSED, COMPRESSION_MASK

logger = logging.getLogger(__name__)

DEAD_LETTER: Final = -1
"""The delay level for the dead-letter topic."""
RETRY_MAX_DEFAULT: Final = 16
_SEND_BACK_TIMEOUT: Final = 5.0
_FIRST_LEVEL: Final = 3


class Retry(Exception):  # noqa: N818 - raised by handlers to ask for it
    """Raised by a handler to get the message again later; logged without a traceback.

    Args:
        delay_level: 1 to 18 for 1s 5s 10s 30s 1m ... 2h; 0 for the default growing delay; -1 for
            the dead-letter topic at once.

    ``raise Retry(-1) from error`` records ``error`` as the cause of the dead letter.
    """

    def __init__(self, delay_level: int = 0) -> None:
        if not isinstance(delay_level, int) or not -1 <= delay_level <= DELAY_LEVEL_MAX:
            raise ConfigError(f"delay_level must lie between -1 and {DELAY_LEVEL_MAX}")
        super().__init__(f"retry with delay level {delay_level}")
        self.delay_level = delay_level


def why_of(error: BaseException) -> ConsumeFailure | None:
    """Return the recorded failure of an error; for ``raise Retry() from error``, of ``error``."""
    return failure_of(error.__cause__ if isinstance(error, Retry) and error.__cause__ else error)


class SendBack:
    """Sends failed messages of one group back. Belongs to the event loop.

    Args:
        session: The connections to brokers.
        sender: Sends copies that brokers do not take back.
        group: The consumer group.
        retry_max: Deliveries after the first until the dead-letter topic.
        records_failures: Whether messages carry the reason of their failure.
    """

    def __init__(
        self,
        session: Session,
        sender: Sender,
        group: str,
        *,
        retry_max: int,
        records_failures: bool = True,
    ) -> None:
        self._session = session
        self._sender = sender
        self._group = group
        self._records_failures = records_failures
        self._retry_max = retry_max if retry_max >= 0 else RETRY_MAX_DEFAULT

    async def send_back(
        self, message: ReceivedMessage, delay_level: int, why: ConsumeFailure | None = None
    ) -> bool:
        """Send a message back; return whether the broker has it now."""
        why = why if self._records_failures else None
        try:
            await self._to_broker(message, delay_level, why)
            return True
        except RocketpostError as error:
            logger.warning("message not sent back: id=%s reason=%s", message.message_id, error)
        try:
            await self._as_new_message(message, delay_level, why)
            return True
        except RocketpostError as error:
            logger.warning("message not sent to retry: id=%s reason=%s", message.message_id, error)
        return False

    async def dead_letter(
        self, message: ReceivedMessage, why: ConsumeFailure | None = None
    ) -> bool:
        """Move a message to the dead-letter topic; return whether the broker did so."""
        why = why if self._records_failures else None
        try:
            await self._as_new_message(message, DEAD_LETTER, why)
            return True
        except RocketpostError as error:
            logger.warning("message not given up: id=%s reason=%s", message.message_id, error)
        return False

    async def _to_broker(
        self, message: ReceivedMessage, delay_level: int, why: ConsumeFailure | None
    ) -> None:
        fields = {
            "offset": str(message.position),
            "group": self._group,
            "delayLevel": str(delay_level),
            "originMsgId": message.message_id,
            "originTopic": message.topic,
            "unitMode": "false",
            "maxReconsumeTimes": str(self._retry_max),
        }
        if why is not None:  # our brokers store it with the message, others ignore it
            fields |= {"failureKind": why.kind, "failureText": why.text}
        address = self._session.routes.master(message.queue.broker_name)
        await self._session.call(
            address, RequestCode.CONSUMER_SEND_MSG_BACK, fields, timeout=_SEND_BACK_TIMEOUT
        )

    async def _as_new_message(
        self, message: ReceivedMessage, delay_level: int, why: ConsumeFailure | None
    ) -> None:
        topic = retry_topic(self._group)
        # Brokers create this topic on a heartbeat; it must not be created from the template.
        await self._session.routes.route(topic)
        route = await self._session.routes.publish(topic)
        out = self._copy(message, topic, delay_level, why)
        future = await self._sender.send(
            out, self._sender.choose(route), fixed=False, timeout=_SEND_BACK_TIMEOUT
        )
        await future

    def _copy(
        self, message: ReceivedMessage, topic: str, delay_level: int, why: ConsumeFailure | None
    ) -> OutgoingSend:
        times = message.reconsume_times
        # The broker decides by its own count; one over the maximum means the dead-letter topic.
        next_times = self._retry_max + 1 if delay_level == DEAD_LETTER else times + 1
        level = delay_level if delay_level > 0 else _FIRST_LEVEL + times
        properties = {
            **without_failure(message.properties),
            names.RETRY_TOPIC: message.topic,
            names.ORIGIN_MESSAGE_ID: message.properties.get(
                names.ORIGIN_MESSAGE_ID, message.message_id
            ),
        }
        if delay_level != DEAD_LETTER:
            properties[names.DELAY_LEVEL] = str(level)
        properties.pop(names.TRANSACTION_PREPARED, None)
        try:
            text = with_failure(properties, why).decode()
        except ProtocolError as error:
            raise RocketpostError(f"its properties cannot be written again: {error}") from None
        heads = SendHeads(
            RequestCode.SEND_MESSAGE_V2,
            group="CLIENT_INNER_PRODUCER",
            topic=topic,
            default_topic=AUTO_CREATE_TOPIC,
            default_queues=4,
            sys_flag=message.record.sys_flag & (COMPRESSED | COMPRESSION_MASK),
            reconsume_times=next_times,
            reconsume_times_max=self._retry_max,
        )
        body, born_ms = bytes(message.record.body), time.time_ns() // 1_000_000
        return OutgoingSend(heads, message.message_id, text, body, born_ms, message.flag)
