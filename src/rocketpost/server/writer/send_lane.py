"""The send lane: plain sends from a connection to the log writer, without an object for each.

A connection offers what it has read before it decodes it (``transport.express``). The lane
(``kernel.send_lane``, which says what it takes and what it leaves) turns whole frames into records,
rows, keys and replies. The store takes them as a wave (``store.wave``). The log writer gets one
pending send for each call, with all its replies, and treats it like any other:

    read      a connection offers bytes; frames that are plain become part of the wave
    commit    the wave is written together with everything else of this iteration
    confirm   its messages become visible
    answer    its replies are written, one write for each connection

**Invariants:**

- Order: frames are taken in the order of the connection, positions in the order of the log.
- Safety: replies leave only when the log writer says so. If the write fails, the store takes the
  wave back, and each request is refused.
- Timing: only the bytes of requests that are plain *now* are taken. The lane is off while the store
  refuses messages, while no term is open, while too few replicas are in sync, while a topic has a
  deduplication window, while the broker accepts no sends, and where records get checksums; a topic
  is left out while it is announced.
- Back-pressure: every request that will be answered is counted when it is taken.
- Access: with access control on, only sends are taken that the gate would admit: those that are
  signed by the login of their connection, to topics that it may send to (``server.access.logins``).
"""

from __future__ import annotations

import logging
from operator import attrgetter
from typing import Final

from rocketpost.broker.dedup.unique_keys import KeyWindow
from rocketpost.broker.plain_topics import SPECIAL_NAMES, PlainTopics, pack_names
from rocketpost.broker.request_times import QUICK_SECONDS, RequestTimes
from rocketpost.broker.send import SendService
from rocketpost.broker.stats import BrokerStats
from rocketpost.broker.topic import TopicTable
from rocketpost.codec.codes import ResponseCode
from rocketpost.codec.command import Command, decode_commands, encode_response
from rocketpost.codec.frames import FrameDecoder
from rocketpost.codec.send_replies import binary_pieces, json_pieces
from rocketpost.errors import StoreError
from rocketpost.kernel import FORM
from rocketpost.kernel.send_lane import FULL, OTHER, Lane
from rocketpost.model.ids import Position
from rocketpost.server.access.logins import Logins
from rocketpost.server.name_servers.announcing import Announcing
from rocketpost.server.writer.log_writer import NO_TERM, LogWriter
from rocketpost.server.writer.pending_sends import PendingSend, refusal_code
from rocketpost.store.message_store import MessageStore
from rocketpost.store.queue.consume_queue import ConsumeQueue
from rocketpost.transport.connection import Connection
from rocketpost.transport.express import Data

logger = logging.getLogger(__name__)

_NOTHING: Final = []  # type: ignore[var-annotated]
_connection_of = attrgetter("connection")


class LaneSends(PendingSend, gc=False):
    """Sends of one connection that were taken in one call, with their replies."""

    connection: Connection
    end: Position
    """End of the last record."""
    replies: bytes
    """Complete responses, one after the other."""
    count: int
    """Number of requests."""
    answers: int
    """Number of responses; oneway requests have none."""
    code: int
    """Code of all of them."""
    since: float
    """Time at which the first sends of their iteration were taken, if requests are measured."""


class SendLane:
    """Takes plain sends from connections, and answers them. Owned by the loop.

    Args:
        writer: The log writer; it commits what is taken.
        store: The store that takes the waves.
        service: Knows the limits of messages and the properties that the broker adds.
        keys: The deduplication windows of topics.
        topics: Decides which topics are plain.
        stats: Counts failures, and measures requests.
        store_host: The broker's address in the form of a record.
        region: The region in every reply.
        logins: Knows whose sends are admitted; None if access control is off.
    """

    def __init__(
        self,
        *,
        lane: Lane,
        writer: LogWriter,
        store: MessageStore,
        service: SendService,
        keys: KeyWindow,
        topics: PlainTopics,
        stats: BrokerStats,
        store_host: bytes,
        region: str,
        logins: Logins | None = None,
    ) -> None:
        self._logins = logins
        self._writer = writer
        self._wave = store.wave
        self._service = service
        self._keys = keys
        self._stats = stats
        self._store_host = store_host
        self._region = region
        self._lane = lane
        self._packer = lane.writer
        self._topics = topics
        self._is_on = False
        self._since = 0.0
        self.why_off: str | None = "the broker is starting"
        """The reason why nothing is taken, as far as settings decide; None if sends are taken."""
        self._wave.watch_slots(self.forget_topics)
        self.forget_topics()

    @classmethod
    def of(
        cls,
        *,
        writer: LogWriter,
        store: MessageStore,
        service: SendService,
        keys: KeyWindow,
        topics: TopicTable,
        announcing: Announcing,
        stats: BrokerStats,
        store_host: bytes,
        region: str,
        logins: Logins | None = None,
    ) -> SendLane:
        """Return the lane of a store."""
        wave = store.wave
        lane = Lane(wave.records, wave.rows, wave.keys)
        return cls(
            lane=lane,
            writer=writer,
            store=store,
            service=service,
            keys=keys,
            topics=PlainTopics(
                topics=topics,
                table=lane.topics,
                unannounced=announcing.topics,
                unused=topics.auto.unused,
            ),
            stats=stats,
            store_host=store_host,
            region=region,
            logins=logins,
        )

    def configure(self, *, is_wanted: bool, trace_on: bool, append_checksum: bool) -> None:
        """Apply settings, after they were applied to the service."""
        service = self._service
        self._topics.checks_types = service.checks_types
        self._lane.configure(
            special=pack_names(SPECIAL_NAMES),
            added=service.added_properties,
            body_max=service.message_bytes_max,
            properties_max=service.properties_bytes_max,
            store_host=self._store_host,
            prefix=self._store_host.hex().upper().encode(),
            json_pieces=json_pieces(self._region, trace_on=trace_on),
            binary_pieces=binary_pieces(self._region, trace_on=trace_on),
        )
        self.forget_topics()
        self.why_off = self._reason(is_wanted, append_checksum)
        self._is_on = self.why_off is None

    def _reason(self, is_wanted: bool, append_checksum: bool) -> str | None:
        if not is_wanted:
            return "sendLaneEnable=false"
        if not FORM.is_compiled:
            return f"the kernel is not compiled: {FORM.reason}"
        if append_checksum:
            return "records get checksums"
        return "the broker accepts no sends" if self._service.is_closed else None

    def forget_topics(self) -> None:
        """Forget all topics, because a topic or a setting has changed."""
        self._topics.clear(self._wave.next_offsets)

    def learn(
        self, topic: str, queue: ConsumeQueue | None, connection: Connection, command: Command
    ) -> None:
        """Let the lane take the next messages of a queue, if it is plain.

        Args:
            topic: The topic that was sent to.
            queue: The queue that the message was stored in, perhaps that of another topic.
            connection: The connection of the sender.
            command: The send.
        """
        if not self._is_on or queue is None or queue.topic != topic:
            return
        self._topics.add(topic, queue.queue_id, queue.slot)
        if self._logins is not None:
            number = self._topics.number_of(topic)
            if number is not None:
                epoch = self._lane.topics.epoch
                self._logins.note_send(connection, command, topic, number, epoch)

    def take(self, connection: Connection, data: Data, at: int, end: int) -> int:
        """Take plain sends from ``at`` on; returns the index of the first request left.

        See ``transport.express``.
        """
        lane = self._lane
        if not self._is_on or not lane.is_offered(data, at, end) or self._keys.is_on:
            return at
        signer = None
        if self._logins is not None:
            signer = self._logins.signer_of(connection)
            if signer is None:
                return at
        writer, wave, times, packer = self._writer, self._wave, self._stats.times, self._packer
        while writer.term != NO_TERM and not (writer.is_short or writer.is_paused):
            if not wave.begin(packer):
                break
            if times is not None and not wave.row_end:
                self._since = times.now()  # one clock read for all connections of an iteration
            replies = lane.take(data, at, end, connection.peer_host, signer)
            frames = lane.frames
            if frames:
                at, answers = lane.at, lane.answers
                wave.take(packer)
                connection.encoding = lane.encoding
                connection.expect_answers(answers)
                writer.submit(
                    LaneSends(
                        self,
                        _NOTHING,
                        writer.term,
                        not answers,
                        connection,
                        Position(packer.position),
                        replies,
                        frames,
                        answers,
                        lane.code,
                        self._since,
                    )
                )
            if lane.verdict == OTHER:
                continue
            if lane.verdict != FULL or not wave.row_end:
                break
            writer.commit()  # the buffers are full; then they are empty
        return at

    # Called by the log writer.

    def acknowledge(self, sends: list[LaneSends]) -> None:
        """Write the replies, those of one connection together."""
        times = self._stats.times
        if len(sends) == 1:
            (send,) = sends
            answers = send.answers
            if answers:
                send.connection.answer_at_once(send.replies, answers)
            if times is None:
                return
            if answers == send.count:
                counted, seconds = times.sends, times.now() - send.since
                if seconds <= QUICK_SECONDS and send.code == counted.request:
                    counted.quick += answers
                    counted.quick_seconds += seconds * answers
                else:
                    counted.count(send.code, seconds, answers)
                return
        else:
            self._answer_together(sends)
        if times is not None:
            _count(times, sends)

    def _answer_together(self, sends: list[LaneSends]) -> None:
        if len(set(map(_connection_of, sends))) == len(sends):  # usually each was read once
            for send in sends:
                if send.answers:
                    send.connection.answer_at_once(send.replies, send.answers)
            return
        of_connections: dict[Connection, list[LaneSends]] = {}
        for send in sends:
            if send.answers:
                of_connections.setdefault(send.connection, []).append(send)
        for connection, run in of_connections.items():
            replies = b"".join([send.replies for send in run])
            connection.answer_at_once(replies, sum([send.answers for send in run]))

    def answer_late(self, sends: list[LaneSends], status: ResponseCode) -> None:
        """Answer written sends with a status that names the rule they do not meet."""
        for send in sends:
            for reply in _replies_of(send):
                send.connection.answer(encode_response(reply, status, fields=reply.fields))

    def refuse(self, sends: list[LaneSends], error: StoreError) -> None:
        """Refuse sends whose messages may be lost in a crash."""
        for send in sends:
            for reply in _replies_of(send):
                refusal = encode_response(reply, refusal_code(error), remark=str(error))
                send.connection.answer(refusal)

    def refuse_unwritten(self, sends: list[LaneSends], error: StoreError) -> None:
        """Refuse sends that could not be written."""
        for send in sends:
            for _ in range(send.count):
                self._stats.count_failed_put()
        self.refuse(sends, error)


def _replies_of(send: LaneSends) -> list[Command]:
    """Return the replies that will not be sent; they name the requests that get another answer."""
    return list(decode_commands(FrameDecoder().feed(send.replies)))


def _count(times: RequestTimes, sends: list[LaneSends]) -> None:
    """Count sends that were answered now, those of one kind that were taken together at once."""
    now, count = times.now(), times.sends.count
    code, since, answers = sends[0].code, sends[0].since, 0
    for send in sends:
        if send.answers < send.count:
            times.sends.count_oneway(send.code, now - send.since, send.count - send.answers)
            if not send.answers:
                continue
        if send.since != since or send.code != code:
            if answers:
                count(code, now - since, answers)
            code, since, answers = send.code, send.since, 0
        answers += send.answers
    if answers:
        count(code, now - since, answers)
