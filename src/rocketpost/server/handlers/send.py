"""Requests to send: decodes them, drafts messages, and answers when the log writer says so.

The handler decides nothing about safety: ``server.writer.log_writer`` writes, waits and tells it
which sends to acknowledge or refuse. A duplicate (``broker.dedup.service``) waits until its
original is as safe as an acknowledged send.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from rocketpost.broker.dedup.service import DedupService
from rocketpost.broker.kinds import WAITING_TOPICS, real_queue
from rocketpost.broker.send import SendHeader, SendService
from rocketpost.broker.stats import BrokerStats
from rocketpost.broker.timer.admission import recall_handle
from rocketpost.codec.codes import LANGUAGE, VERSION, RequestCode, ResponseCode
from rocketpost.codec.command import JSON, ONEWAY, Command
from rocketpost.codec.faults import ServerError, ServiceNotAvailable
from rocketpost.codec.frames import encode_json_frame
from rocketpost.codec.headers.message import SendMessage, SendMessageV2
from rocketpost.codec.properties import decode_properties
from rocketpost.errors import StoreError
from rocketpost.model import properties as names
from rocketpost.model.names import TIMER_TOPIC
from rocketpost.server.name_servers.announcing import Announcing
from rocketpost.server.routes.access import PUB, of_topic
from rocketpost.server.routes.dispatch import answer
from rocketpost.server.routes.route import Reply, Route, plain
from rocketpost.server.writer.log_writer import LogWriter
from rocketpost.server.writer.pending_sends import PendingSend, refusal_code
from rocketpost.server.writer.send_lane import SendLane
from rocketpost.store.draft import Appended, Draft
from rocketpost.store.message_store import MessageStore
from rocketpost.transport.connection import Connection

TOO_FEW_REPLICAS: Final = "in-sync replicas not enough"
"""RocketMQ's text for a send that is refused because too few replicas are in sync."""

_NO_FIELDS = msgspec.Raw(b"")
_NO_WAIT = f"{names.WAIT_STORE}\x01false\x02"


class ClientSend(PendingSend, gc=False):
    """A client's send, with the data for its answer."""

    connection: Connection
    command: Command
    duplicates: bytes
    """A flag for each message, true for duplicates; may be empty if there are none."""
    recall_handle: str | None
    """Handle to recall a timed message, "" if it cannot be; None for other messages."""


class SendHandler:
    """Serves sends. Owned by the loop."""

    def __init__(
        self,
        *,
        writer: LogWriter,
        store: MessageStore,
        service: SendService,
        dedup: DedupService,
        stats: BrokerStats,
        store_host: bytes,
        region: str,
        broker_name: str,
        announcing: Announcing,
    ) -> None:
        self._writer = writer
        self._store = store
        self._refuses_new = store.refuses_new
        self._service = service
        self._dedup = dedup
        self._keys = dedup.keys
        self._stats = stats
        self._id_prefix = store_host.hex().upper().encode()
        self._announcing = announcing
        self._region = region
        self._broker_name = broker_name
        self.trace_on = True
        self.lane: SendLane | None = None
        """The lane that may take the next messages of a queue."""
        # The answer to a stored message, by far the most common response of a broker.
        region_json = msgspec.json.encode(region).replace(b"%", b"%%")
        before = (
            b'{"code":0,"extFields":{"msgId":"' + self._id_prefix + b'%016X","queueId":"%d",'
            b'"queueOffset":"%d","transactionId":"%b",%b"MSG_REGION":' + region_json
        )
        after = (
            b'"},"flag":1,"language":"' + LANGUAGE.encode() + b'","opaque":%d,'
            b'"serializeTypeCurrentRPC":"JSON","version":' + str(VERSION).encode() + b"}"
        )
        self._ok_traced = before + b',"TRACE_ON":"true' + after
        self._ok_untraced = before + b',"TRACE_ON":"false' + after

    def routes(self) -> Sequence[Route]:
        """Return the routes of the three kinds of send."""
        return [
            plain(RequestCode.SEND_MESSAGE, SendMessage, of_topic(PUB), self.send),
            plain(RequestCode.SEND_MESSAGE_V2, SendMessageV2, of_topic(PUB), self.send),
            plain(RequestCode.SEND_BATCH_MESSAGE, SendMessageV2, of_topic(PUB), self.send),
        ]

    def send(self, connection: Connection, command: Command, header: SendHeader) -> None:
        """Serve a single or batch send; a header field tells which, not the request code."""
        if header.sequence is not None or self._keys.is_on:
            self._send_once(connection, command, header)
            return
        writer, host = self._writer, connection.peer_host
        handle = None
        try:
            if self._refuses_new:
                self._store.check_writable()
            if writer.is_short:
                _check_replicas(header)
            if header.batch:
                drafts = self._service.draft_batch(header, command.body, born_host=host)
                stored = writer.append_batch(drafts)
            else:
                draft = self._service.draft(
                    header, command.body, born_host=host, client_version=command.version
                )
                appended = writer.append(draft)
                if draft.topic in WAITING_TOPICS:  # the sender does not know that queue
                    real_topic, queue_id = real_queue(draft)
                    appended = appended._replace(topic=real_topic, queue_id=queue_id)
                    if draft.topic == TIMER_TOPIC and not command.flag & ONEWAY:
                        properties = decode_properties(draft.properties)
                        handle = recall_handle(properties, self._broker_name) or ""
                stored = [appended]
        except StoreError as error:
            self._stats.count_failed_put()
            raise ServiceNotAvailable(str(error)) from error
        send = ClientSend(
            self,
            stored,
            writer.term,
            writer.waits and _wants_early_answer(command, header),
            connection,
            command,
            b"",
            handle,
        )
        writer.submit(send)
        if self.lane is not None:
            self.lane.learn(header.topic, stored[0].queue, connection, command)

    def _send_once(self, connection: Connection, command: Command, header: SendHeader) -> None:
        """Store the new messages of a send; answer the duplicates like their originals."""
        writer, host = self._writer, connection.peer_host
        try:
            if self._refuses_new:
                self._store.check_writable()
            if writer.is_short:
                _check_replicas(header)
            if header.batch:
                drafts = self._service.draft_batch(header, command.body, born_host=host)
            else:
                draft = self._service.draft(
                    header, command.body, born_host=host, client_version=command.version
                )
                drafts = [draft]
            admitted = self._dedup.admit(header, drafts)
            new = [draft for draft, each in zip(drafts, admitted, strict=True) if each.is_new]
            appended = writer.append_batch(new) if header.batch else list(map(writer.append, new))
        except StoreError as error:
            self._stats.count_failed_put()
            raise ServiceNotAvailable(str(error)) from error
        if not header.batch and new and new[0].topic in WAITING_TOPICS:
            real_topic, queue_id = real_queue(new[0])
            appended = [appended[0]._replace(topic=real_topic, queue_id=queue_id)]
        stored = self._dedup.take(admitted, appended)
        handle = None
        if drafts[0].topic == TIMER_TOPIC and not command.flag & ONEWAY:
            handle = self._handle(drafts[0], stored[0], is_new=bool(new)) or ""
        duplicates = b""
        if header.sequence is not None or len(new) < len(drafts):
            duplicates = b",".join([b"false" if each.is_new else b"true" for each in admitted])
        send = ClientSend(
            self,
            stored,
            writer.term,
            writer.waits and _wants_early_answer(command, header),
            connection,
            command,
            duplicates,
            handle,
        )
        if new:
            writer.submit(send)
        else:
            writer.submit_duplicate(send)

    def _handle(self, draft: Draft, stored: Appended, *, is_new: bool) -> str | None:
        """Return the recall handle of a timed message; a duplicate has that of its original."""
        if is_new:
            return recall_handle(decode_properties(draft.properties), self._broker_name)
        record = self._store.record_at(stored.position)
        if record is None or record.topic != TIMER_TOPIC:
            return None  # delivered meanwhile, or not visible yet
        return recall_handle(record.properties, self._broker_name)

    # Called by the log writer.

    def acknowledge(self, sends: list[ClientSend]) -> None:
        """Answer stored sends; for a new topic, answer once it has a route."""
        if self._announcing.topics:
            sends = self._hold_back_new(sends, self._answer_stored)
        self._answer_stored(sends)

    def answer_late(self, sends: list[ClientSend], status: ResponseCode) -> None:
        """Answer written sends with a status that names the rule they do not meet."""

        def answer_now(sends: list[ClientSend]) -> None:
            for send in sends:
                self._answer(send, self._reply(send, status))

        if self._announcing.topics:
            sends = self._hold_back_new(sends, answer_now)
        answer_now(sends)

    def refuse(self, sends: list[ClientSend], error: StoreError) -> None:
        """Refuse sends whose messages may be lost in a crash."""
        for send in sends:
            self._answer(send, Reply(refusal_code(error), remark=str(error)))

    def refuse_unwritten(self, sends: list[ClientSend], error: StoreError) -> None:
        """Refuse sends that could not be written."""
        for _ in sends:
            self._stats.count_failed_put()
        self.refuse(sends, error)

    def _hold_back_new(
        self, sends: list[ClientSend], answer_now: Callable[[list[ClientSend]], None]
    ) -> list[ClientSend]:
        """Hold the first sends to a new topic until it has a route; return the others."""
        new: list[ClientSend] = []
        known: list[ClientSend] = []
        for send in sends:
            is_new = send.stored[0].topic in self._announcing.topics
            (new if is_new else known).append(send)
        if new:
            topics = {send.stored[0].topic for send in new}
            self._announcing.when_announced(topics, lambda: answer_now(new))
        return known

    def _answer_stored(self, sends: list[ClientSend]) -> None:
        template = self._ok_traced if self.trace_on else self._ok_untraced
        frames: list[bytes] = []
        answering: Connection | None = None
        for send in sends:
            command = send.command
            is_oneway = bool(command.flag & ONEWAY)
            if command.timing is not None:
                command.timing.end(command.code, ResponseCode.SUCCESS, is_oneway=is_oneway)
                command.timing = None
            if is_oneway:
                continue
            stored = send.stored
            position, _, queue_offset, _, _, queue_id, _, keys, _ = stored[0]
            unique_key = keys[0]
            if (
                len(stored) > 1
                or command.encoding != JSON
                or not unique_key.isalnum()
                or send.recall_handle is not None
            ):
                self._answer(send, self._reply(send, ResponseCode.SUCCESS))
                continue
            duplicates = send.duplicates
            header = template % (
                position,
                queue_id,
                queue_offset,
                unique_key.encode(),
                duplicates and b'"duplicate":"%b",' % duplicates,
                command.opaque,
            )
            connection = send.connection
            if connection is not answering:
                if answering is not None:
                    answering.answer_at_once(b"".join(frames), len(frames))
                frames, answering = [], connection
            frames.append(encode_json_frame(header))
        if answering is not None:
            answering.answer_at_once(b"".join(frames), len(frames))

    def _answer(self, send: ClientSend, reply: Reply) -> None:
        answer(send.connection, send.command, reply)

    def _reply(self, send: ClientSend, code: int) -> Reply:
        prefix = self._id_prefix.decode()
        stored = send.stored
        fields = {
            "msgId": ",".join(f"{prefix}{each.position:016X}" for each in stored),
            "queueId": str(stored[0].queue_id),
            "queueOffset": str(stored[0].queue_offset),
            "transactionId": stored[0].keys[0],
            "MSG_REGION": self._region,
            "TRACE_ON": "true" if self.trace_on else "false",
        }
        if send.duplicates:
            fields["duplicate"] = send.duplicates.decode()
            fields["queueOffsets"] = ",".join(str(each.queue_offset) for each in stored)
        if send.recall_handle:
            fields["recallHandle"] = send.recall_handle
        return Reply(code, fields=fields)


def _wants_early_answer(command: Command, header: SendHeader) -> bool:
    """Return whether a sender waits for the write only; shrink the command if it waits for more.

    For sends that wait for the disk or slaves, only the data for their answers is kept in memory.
    """
    if command.flag & ONEWAY or _NO_WAIT in header.properties:
        return True
    command.body = b""
    command.raw_fields = _NO_FIELDS
    command.text_fields = {}
    return False


def _check_replicas(header: SendHeader) -> None:
    """Refuse a send that would wait for slaves of which too few are in sync."""
    if _NO_WAIT not in header.properties:
        raise ServerError(TOO_FEW_REPLICAS)
