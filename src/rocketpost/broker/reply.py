"""Replies: their requesters, and the messages that those receive.

A requester is identified by the client id of its heartbeats as a producer. The replier sends the
reply to any broker. Only a broker that the requester is connected to can deliver it; another
refuses, and the replier tries the next. The server sends the reply to the requester.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from rocketpost.broker.group.membership import Client
from rocketpost.broker.send import SendHeader, SendService
from rocketpost.codec.command import to_fields
from rocketpost.codec.faults import MessageIllegal
from rocketpost.codec.headers.reply import PushReply
from rocketpost.codec.properties import decode_properties, encode_properties
from rocketpost.errors import LocalProtocolError
from rocketpost.model import properties as names
from rocketpost.model.clock import Clock
from rocketpost.store.draft import Draft


class Producers(Protocol):
    """The part of the membership that replies use."""

    def producer(self, client_id: str) -> Client | None:
        """Return the newest connection of a producer with this id."""
        ...


class AcceptedReply(NamedTuple):
    """A reply that may be delivered."""

    draft: Draft
    """The message to store, if replies are stored."""
    requester_id: str
    requester: Client | None
    """The requester; None if it is not connected to this broker."""
    fields: dict[str, str]
    """The header fields of the push."""


class ReplyService:
    """Checks replies and finds their requesters. Owned by the event loop."""

    def __init__(
        self, *, sends: SendService, producers: Producers, clock: Clock, store_host: str
    ) -> None:
        self._sends = sends
        self._producers = producers
        self._clock = clock
        self._store_host = store_host

    def accept(
        self,
        header: SendHeader,
        body: bytes,
        *,
        born_host: bytes,
        peer: str,
        client_version: int,
    ) -> AcceptedReply:
        """Return the reply and its requester.

        Raises:
            Fault: The reply is not a valid message, or does not name its requester.
        """
        properties = decode_properties(header.properties.encode("utf-8", "replace"))
        requester_id = properties.get(names.REPLY_TO_CLIENT, "")
        if not requester_id or not properties.get(names.CORRELATION_ID):
            raise MessageIllegal(
                f"a reply must carry the properties {names.REPLY_TO_CLIENT} and "
                f"{names.CORRELATION_ID} of its request"
            )
        draft = self._sends.draft(header, body, born_host=born_host, client_version=client_version)
        now_ms = self._clock.now_ms()
        properties[names.PUSH_REPLY_TIME] = str(now_ms)
        push = PushReply(
            producer_group=header.producer_group,
            topic=header.topic,
            default_topic=header.default_topic,
            default_topic_queue_nums=header.default_topic_queue_nums,
            queue_id=draft.queue_id,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            flag=header.flag,
            properties=_text(properties),
            reconsume_times=header.reconsume_times,
            unit_mode=header.unit_mode,
            born_host=peer,
            store_host=self._store_host,
            store_timestamp=now_ms,
        )
        requester = self._producers.producer(requester_id)
        return AcceptedReply(draft, requester_id, requester, to_fields(push))


def _text(properties: dict[str, str]) -> str:
    try:
        return encode_properties(properties).decode()
    except LocalProtocolError as error:
        raise MessageIllegal(str(error)) from None
