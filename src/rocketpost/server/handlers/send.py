"""Sends: into the log together, acknowledged together.

All sends of one turn of the event loop, from all connections, are written by one commit. With
ASYNC_FLUSH they are answered after it: the bytes are in the page cache and survive the death of
this process. With SYNC_FLUSH they wait in the durability gate for the ``fdatasync`` that covers
them. A duplicate (``broker.dedup.service``) waits for as much as its original does.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence

import msgspec

from rocketpost.broker.dedup.service import OnceService
from rocketpost.broker.kinds import WAITING_TOPICS, real_queue
from rocketpost.broker.send import SendHeader, SendService
from rocketpost.broker.stats import BrokerStats
from rocketpost.broker.timer.admission import recall_handle
from rocketpost.codec.codes import LANGUAGE, VERSION, RequestCode, ResponseCode
from rocketpost.codec.command import JSON, ONEWAY, Command
from rocketpost.codec.faults import ServiceNotAvailable
from rocketpost.codec.frames import encode_json_frame
from rocketpost.codec.headers.message import SendMessage, SendMessageV2
from rocketpost.codec.properties import decode_properties
from rocketpost.errors import StoreBroken, StoreError
from rocketpost.model import properties as names
from rocketpost.model.ids import Position
from rocketpost.model.names import TIMER_TOPIC
from rocketpost.server.access import PUB, of_topic
from rocketpost.server.dispatch import answer
from rocketpost.server.durability import DurabilityGate
from rocketpost.server.name_servers.announcing import Announcing
from rocketpost.server.route import Reply, Route, plain
from rocketpost.store.draft import Appended, Draft
from rocketpost.store.message_store import MessageStore
from rocketpost.store.topic_deletion import DroppedQueues
from rocketpost.transport.connection import Connection

logger = logging.getLogger(__name__)

_NO_FIELDS = msgspec.Raw(b"")
_NO_WAIT = f"{names.WAIT_STORE}\x01false\x02"


Ticket = tuple[Connection, Command, list[Appended], bytes]
"""A send that is in the log and not answered yet; last, whether each message is a duplicate."""
Stored = asyncio.Future[list[Appended]]
"""Done when messages of the broker's own are stored as safely as an acknowledged send."""


class SendHandler:
    """Takes sends, commits them in groups, answers them. Owned by the loop.

    Args:
        sync_flush: Whether an acknowledgement waits for the disk.
    """

    def __init__(
        self,
        *,
        store: MessageStore,
        service: SendService,
        once: OnceService,
        stats: BrokerStats,
        store_host: bytes,
        region: str,
        broker_name: str,
        announcing: Announcing,
        sync_flush: bool,
        flush_timeout_ms: int,
    ) -> None:
        self._store = store
        self._service = service
        self._once = once
        self._keys = once.keys
        self._stats = stats
        self._id_prefix = store_host.hex().upper().encode()
        self._announcing = announcing
        self._sync_flush = sync_flush
        self._loop = asyncio.get_running_loop()
        self._pending: list[Ticket] = []
        self._duplicates: list[Ticket] = []
        self._impatient: set[int] = set()
        self._handles: dict[int, str | None] = {}
        self._own: list[tuple[Stored, list[Appended]]] = []
        self._own_unsafe: deque[tuple[Stored, list[Appended]]] = deque()
        self._scheduled = False
        self._region = region
        self._broker_name = broker_name
        self.trace_on = True
        self.gate = DurabilityGate[Ticket](
            on_durable=self._acknowledge,
            on_timeout=self._answer_timed_out,
            on_position=self._became_durable,
            timeout_ms=flush_timeout_ms,
        )
        # What a stored message is answered with, by far the commonest response of a broker.
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

    def put(self, drafts: Sequence[Draft]) -> Stored:
        """Store messages of the broker's own, together with the sends of this turn.

        The result tells which were stored: all, or the first of them if the store is full then. It
        fails with a ``StoreError`` if they are not stored, or may not be.

        Raises:
            StoreError: Not even the first can be stored now.
        """
        assert drafts
        stored = [self._store.append(drafts[0])]
        try:
            for draft in drafts[1:]:
                stored.append(self._store.append(draft))
        except StoreError as error:
            logger.warning("stored in part: count=%s reason=%s", len(stored), error)
        future: Stored = self._loop.create_future()
        self._own.append((future, stored))
        self._schedule()
        return future

    def commit(self) -> None:
        """Write what was sent in this turn of the loop, and answer it or have it wait.

        Nobody else may commit to the store: if that fails, only the senders' tickets say whose
        messages are gone.
        """
        self._scheduled = False
        tickets, self._pending = self._pending, []
        duplicates, self._duplicates = self._duplicates, []
        impatient, self._impatient = self._impatient, set()
        own, self._own = self._own, []
        if not tickets and not own and not duplicates:
            return
        try:
            end = self._store.commit()
            if self._store.broken:
                # A sync failed since the append: what was written may not be there after a crash.
                raise StoreBroken(self._store.why_not_writable or "the store is broken")
            if tickets and _end_of(tickets[-1]) > end:
                raise StoreBroken("messages were taken back behind their senders' backs")
        except StoreError as error:
            logger.error("messages refused: count=%s reason=%s", len(tickets) + len(own), error)
            self._once.undo()
            for future, _ in own:
                if not future.done():
                    future.set_exception(error)
            for ticket in tickets:
                self._stats.put_failed()
                self._refuse(ticket, str(error))
            for ticket in duplicates:
                self._refuse(ticket, str(error))
            return
        self._once.commit()
        self._own_unsafe.extend(own)
        if self._sync_flush:
            for ticket in tickets:
                command = ticket[1]
                if id(command) not in impatient and not command.flag & ONEWAY:
                    self._park(ticket)
            self._store.request_flush()
            if impatient:
                self._acknowledge([ticket for ticket in tickets if id(ticket[1]) in impatient])
        else:
            self._store.confirm(end)
            self._acknowledge(tickets)
            self._settle_own(end)
        if duplicates:
            self._answer_again(duplicates, impatient)

    def close(self) -> None:
        """Commit what is pending and refuse what still waits for the disk."""
        self.commit()
        for ticket in self.gate.drain():
            self._refuse(ticket, "the broker is shutting down")
        self._fail_own("the broker is shutting down")
        self.gate.close()

    def fail_from_thread(self, reason: str) -> None:
        """Report, from the flusher's thread, that the log cannot be made durable any more."""
        self._loop.call_soon_threadsafe(self.fail, reason)

    def fail(self, reason: str) -> None:
        """Refuse everything that waits for the disk: it may not be there after a crash."""
        for ticket in self.gate.drain():
            self._refuse(ticket, reason)
        self._fail_own(reason)

    def send(self, connection: Connection, command: Command, header: SendHeader) -> None:
        """Serve a send, single or batch: a header field decides, not the code."""
        if header.sequence is not None or self._keys.is_on:
            self._send_once(connection, command, header)
            return
        store = self._store
        host = connection.peer_host
        try:
            if not store.writable:
                store.check_writable()
            if header.batch:
                drafts = self._service.draft_batch(header, command.body, born_host=host)
                stored = store.append_batch(drafts)
            else:
                draft = self._service.draft(
                    header, command.body, born_host=host, client_version=command.version
                )
                appended = store.append(draft)
                if draft.topic in WAITING_TOPICS:  # the sender knows nothing of that queue
                    real_topic, queue_id = real_queue(draft)
                    appended = appended._replace(topic=real_topic, queue_id=queue_id)
                    if draft.topic == TIMER_TOPIC and not command.flag & ONEWAY:
                        properties = decode_properties(draft.properties)
                        self._handles[id(command)] = recall_handle(properties, self._broker_name)
                stored = [appended]
        except StoreError as error:
            self._stats.put_failed()
            raise ServiceNotAvailable(str(error)) from error
        self._pending.append((connection, command, stored, b""))
        if self._sync_flush and _NO_WAIT in header.properties:
            self._impatient.add(id(command))
        if not self._scheduled:
            self._schedule()

    def _send_once(self, connection: Connection, command: Command, header: SendHeader) -> None:
        """Store what is new of a send; what is not is answered like its original."""
        store, host = self._store, connection.peer_host
        try:
            if not store.writable:
                store.check_writable()
            if header.batch:
                drafts = self._service.draft_batch(header, command.body, born_host=host)
            else:
                draft = self._service.draft(
                    header, command.body, born_host=host, client_version=command.version
                )
                drafts = [draft]
            admitted = self._once.admit(header, drafts)
            new = [draft for draft, each in zip(drafts, admitted, strict=True) if each.is_new]
            appended = store.append_batch(new) if header.batch else list(map(store.append, new))
        except StoreError as error:
            self._stats.put_failed()
            raise ServiceNotAvailable(str(error)) from error
        if not header.batch and new and new[0].topic in WAITING_TOPICS:
            real_topic, queue_id = real_queue(new[0])
            appended = [appended[0]._replace(topic=real_topic, queue_id=queue_id)]
        stored = self._once.take(admitted, appended)
        if drafts[0].topic == TIMER_TOPIC and not command.flag & ONEWAY:
            self._handles[id(command)] = self._handle(drafts[0], stored[0], is_new=bool(new))
        marks = b""
        if header.sequence is not None or len(new) < len(drafts):
            marks = b",".join([b"false" if each.is_new else b"true" for each in admitted])
        (self._pending if new else self._duplicates).append((connection, command, stored, marks))
        if self._sync_flush and _NO_WAIT in header.properties:
            self._impatient.add(id(command))
        self._schedule()

    def _handle(self, draft: Draft, stored: Appended, *, is_new: bool) -> str | None:
        """Return how a timed message is recalled; a duplicate is as its original is."""
        if is_new:
            return recall_handle(decode_properties(draft.properties), self._broker_name)
        record = self._store.record_at(stored.position)
        if record is None or record.topic != TIMER_TOPIC:
            return None  # delivered meanwhile, or not visible yet
        return recall_handle(record.properties, self._broker_name)

    def _answer_again(self, tickets: list[Ticket], impatient: set[int]) -> None:
        """Answer duplicates as safely as their originals were."""
        safe: list[Ticket] = []
        for ticket in tickets:
            waits = self._sync_flush and id(ticket[1]) not in impatient
            if waits and _end_of(ticket) > self._store.durable_position:
                self._park(ticket)
            else:
                safe.append(ticket)
        self._acknowledge(safe)

    def _park(self, ticket: Ticket) -> None:
        """Let a send wait for the disk; while that is slow, it keeps only what its answer needs."""
        command = ticket[1]
        command.body = b""
        command.raw_fields = _NO_FIELDS
        command.text_fields = {}
        self.gate.park(_end_of(ticket), ticket)

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.commit)

    def _became_durable(self, position: Position) -> None:
        if self._sync_flush:
            self._store.confirm(position)
            self._settle_own(position)

    def _settle_own(self, position: Position) -> None:
        waiting = self._own_unsafe
        while waiting and waiting[0][1][-1].end <= position:
            future, stored = waiting.popleft()
            if not future.done():
                future.set_result(stored)

    def _fail_own(self, reason: str) -> None:
        while self._own_unsafe:
            future, _ = self._own_unsafe.popleft()
            if not future.done():
                future.set_exception(StoreBroken(reason))

    def _acknowledge(self, tickets: list[Ticket]) -> None:
        if self._announcing.topics:
            tickets = self._hold_back_new(tickets)
        self._answer_stored(tickets)

    def _hold_back_new(self, tickets: list[Ticket]) -> list[Ticket]:
        """Let the first sends to a topic wait until it has a route; return the others."""
        new: list[Ticket] = []
        known: list[Ticket] = []
        for ticket in tickets:
            is_new = ticket[2][0].topic in self._announcing.topics
            (new if is_new else known).append(ticket)
        if new:
            topics = {ticket[2][0].topic for ticket in new}
            self._announcing.when_announced(topics, lambda: self._answer_stored(new))
        return known

    def _answer_stored(self, tickets: list[Ticket]) -> None:
        template = self._ok_traced if self.trace_on else self._ok_untraced
        frames: list[bytes] = []
        answering: Connection | None = None
        for connection, command, stored, marks in tickets:
            if command.flag & ONEWAY:
                continue
            first = stored[0]
            unique_key = first.keys[0]
            if (
                len(stored) > 1
                or command.encoding != JSON
                or not unique_key.isalnum()
                or (self._handles and id(command) in self._handles)
            ):
                answer(
                    connection, command, self._reply(command, stored, ResponseCode.SUCCESS, marks)
                )
                continue
            header = template % (
                first.position,
                first.queue_id,
                first.queue_offset,
                unique_key.encode(),
                marks and b'"duplicate":"%b",' % marks,
                command.opaque,
            )
            if connection is not answering:
                if answering is not None:
                    answering.answer_all(frames)
                frames, answering = [], connection
            frames.append(encode_json_frame(header))
        if answering is not None:
            answering.answer_all(frames)

    def _answer_timed_out(self, tickets: list[Ticket]) -> None:
        for connection, command, stored, marks in tickets:
            reply = self._reply(command, stored, ResponseCode.FLUSH_DISK_TIMEOUT, marks)
            answer(connection, command, reply)

    def _reply(self, command: Command, stored: list[Appended], code: int, marks: bytes) -> Reply:
        prefix = self._id_prefix.decode()
        fields = {
            "msgId": ",".join(f"{prefix}{each.position:016X}" for each in stored),
            "queueId": str(stored[0].queue_id),
            "queueOffset": str(stored[0].queue_offset),
            "transactionId": stored[0].keys[0],
            "MSG_REGION": self._region,
            "TRACE_ON": "true" if self.trace_on else "false",
        }
        if marks:
            fields["duplicate"] = marks.decode()
            fields["queueOffsets"] = ",".join(str(each.queue_offset) for each in stored)
        handle = self._handles.pop(id(command), None) if self._handles else None
        if handle is not None:
            fields["recallHandle"] = handle
        return Reply(code, fields=fields)

    def _refuse(self, ticket: Ticket, reason: str) -> None:
        self._handles.pop(id(ticket[1]), None)
        reply = Reply(ResponseCode.SERVICE_NOT_AVAILABLE, remark=reason)
        answer(ticket[0], ticket[1], reply)


class SendsFirst:
    """Commits what was sent before queues are dropped, so that senders learn if that fails."""

    def __init__(self, sends: SendHandler, store: MessageStore) -> None:
        self._sends = sends
        self._store = store

    def drop_queues(self, topic: str) -> DroppedQueues:
        """Forget the queues of a topic.

        Raises:
            StoreError: They cannot be dropped.
        """
        self._sends.commit()
        return self._store.drop_queues(topic)


def _end_of(ticket: Ticket) -> Position:
    """Return where the last message of a send ends; that of a duplicate may be anywhere."""
    stored = ticket[2]
    return max([each.end for each in stored]) if ticket[3] else stored[-1].end
